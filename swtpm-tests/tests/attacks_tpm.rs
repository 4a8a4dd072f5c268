//! Attacks on TPM evidence, with a live TPM against a running gateway. Each is refused with its own code, leaves its record in the
//! attestation log, and earns nothing.

#[path = "attacks_tpm/keys.rs"]
pub mod keys;

use attest::HashAlg;
use attest::protocol::{HexDigest, TpmEvidence};
use attest_node::tpm::{AkKind, TpmDevice};
use swtpm_tests::IssuedChallenge;
use tss_esapi::constants::StartupType;
use tss_esapi::handles::AuthHandle;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Data, SignatureScheme};
use tss_esapi::traits::Marshall as _;

use crate::bench::{self, Bench, SHA1_BANK, SHA256_BANK, endorsement_key, extend, honest, quote_instead, request, sha256, with_password};
use crate::log_builder::{self, BuiltEvent, EV_SEPARATOR, LogBuilder};
use keys::{invented_quote, sign, signing_key};

/// Digest that an accepted machine has extended into PCR 7.
const GOLDEN_DIGEST: [u8; 32] = [0x60; 32];

#[test]
fn attack_01_other_pcrs_than_asked_for() {
    let golden = sha256(&[[0; 32], GOLDEN_DIGEST].concat());
    let accepted = format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", HexDigest::from(golden));
    let bench = Bench::with(|gateway| {
        gateway.edit_pool("\"0-7\" = \"not checked\"", &accepted).unwrap();
        // 7 is the last that is asked for: then 16 in its place has the same digest.
        gateway
            .edit_pool("only_while_booting = true", "only_while_booting = false")
            .unwrap();
    });
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    // The machine booted something else; but 16 and 23 are for everybody to fill.
    extend(&mut tpm, 7, [0xbd; 32]);
    extend(&mut tpm, 16, GOLDEN_DIGEST);
    extend(&mut tpm, 23, GOLDEN_DIGEST);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.refuses_altered(&mut attester, &request, "pcr-mismatch", |_, _, _| {});

    let mut substituted = |banks: &[(u16, &[u8])], code: &str| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, attester, asked| {
            // With the golden value in the place of 7 the digest over the values is the one that is signed.
            evidence.pcrs.insert(7, HexDigest::from(golden));
            quote_instead(evidence, attester, &asked.extra_data(), banks);
        });
    };
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 16])], "quote-selection");
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 23])], "quote-selection");
    // The same bank twice, whose union looks like what was asked for or like more.
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6]), (SHA256_BANK, &[16])], "quote-selection");
    substituted(
        &[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7]), (SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])],
        "quote-selection",
    );
    substituted(&[(SHA1_BANK, &[7]), (SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])], "quote-selection");
    substituted(&[(SHA256_BANK, &[])], "quote-selection");
    substituted(&[], "quote-selection");
    // What was asked for, with another value claimed.
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])], "quote-pcr-digest");
}

#[test]
fn attack_04_magic_and_type_confusion() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    let data = |asked: &IssuedChallenge| Data::try_from(asked.extra_data().to_vec()).unwrap();
    // The AK may sign these, for this very challenge; but they are no quotes.
    let both = (Some(AuthSession::Password), Some(AuthSession::Password), None);
    bench.refuses_altered(&mut attester, &request, "quote-type", |evidence, attester, asked| {
        let ak = attester.ak_handle();
        let certify = |context: &mut tss_esapi::Context| context.certify(ak.into(), ak, data(asked), SignatureScheme::Null);
        let (attest, signature) = attester.tpm().context().execute_with_sessions(both, certify).unwrap();
        evidence.quoted = attest.marshall().unwrap().into();
        evidence.signature = signature.marshall().unwrap().into();
    });
    bench.refuses_altered(&mut attester, &request, "quote-type", |evidence, attester, asked| {
        let ak = attester.ak_handle();
        let time = |context: &mut tss_esapi::Context| context.get_time(ak, data(asked), SignatureScheme::Null);
        let (attest, signature) = attester.tpm().context().execute_with_sessions(both, time).unwrap();
        evidence.quoted = attest.marshall().unwrap().into();
        evidence.signature = signature.marshall().unwrap().into();
    });
    // The AK also signs any bytes that do not begin with the magic: then everything else in them can be invented.
    for magic in [[0xff, 0x54, 0x43, 0x48], [0; 4], [0x47, 0x43, 0x54, 0xff]] {
        bench.refuses_altered(&mut attester, &request, "quote-magic", |evidence, attester, asked| {
            let mut invented = invented_quote(asked, evidence);
            invented[..4].copy_from_slice(&magic);
            let ak = attester.ak_handle();
            evidence.signature = sign(attester.tpm(), ak, &invented).unwrap().into();
            evidence.quoted = invented.into();
        });
    }
    // A true quote whose magic or type is altered afterwards is no longer what was signed.
    for at in 0..6 {
        bench.refuses_altered(&mut attester, &request, "quote-signature", |evidence, _, _| {
            evidence.quoted.0[at] ^= 1
        });
    }
}

#[test]
fn attack_05_pcr_values_that_the_quote_does_not_cover() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    let mut with = |code: &str, alter: fn(&mut TpmEvidence)| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, _, _| alter(evidence));
    };
    fn value(byte: u8) -> HexDigest {
        HexDigest::from([byte; 32])
    }
    with("pcr-not-quoted", |evidence| _ = evidence.pcrs.insert(14, value(1)));
    with("pcr-not-quoted", |evidence| _ = evidence.pcrs.insert(16, value(0)));
    with("pcr-not-quoted", |evidence| _ = evidence.pcrs.insert(255, value(0)));
    with("pcr-missing", |evidence| _ = evidence.pcrs.remove(&3));
    with("pcr-missing", |evidence| evidence.pcrs.clear());
    with("pcr-missing", |evidence| {
        _ = evidence.pcrs.insert(3, HexDigest::new(&[0; 48]).unwrap())
    });
    with("quote-pcr-digest", |evidence| _ = evidence.pcrs.insert(0, value(1)));
    with("quote-pcr-digest", |evidence| _ = evidence.pcrs.insert(7, value(1)));
}

#[test]
fn attack_06_sha1_quotes_and_signatures() {
    let bench = Bench::new();
    // Both banks, as on many machines.
    let tool = std::process::Command::new("tpm2_pcrallocate")
        .arg("sha1:all+sha256:all")
        .env("TPM2TOOLS_TCTI", bench.server.tcti())
        .output()
        .unwrap();
    assert!(tool.status.success(), "{}", String::from_utf8_lossy(&tool.stderr));
    bench.server.reset().unwrap();
    let mut tpm = bench.tpm();
    tpm.context().startup(StartupType::Clear).unwrap();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = |ak: &[u8]| bench::request(&ek, ak);
    let good = request(attester.ak_public());
    bench.trusts(&mut attester, &good);
    bench.refuses_altered(&mut attester, &good, "quote-selection", |evidence, attester, asked| {
        quote_instead(evidence, attester, &asked.extra_data(), &[(SHA1_BANK, &asked.task().pcrs)]);
    });
    drop(attester);
    let (key, ak) = signing_key(&mut tpm, true, HashingAlgorithm::Sha1);
    bench.refuses_request(&request(&ak), "algorithm-refused");
    // A SHA-1 signature by a key whose public area is presented as a better one's.
    let mut claimed = ak;
    let hash = claimed.windows(4).position(|bytes| bytes == [0x00, 0x18, 0x00, 0x04]).unwrap() + 3;
    claimed[hash] = 0x0b;
    let asked = bench.asked(&request(&claimed));
    let quoted = |context: &mut tss_esapi::Context| {
        let selection = tss_esapi::structures::PcrSelectionList::default();
        context.quote(key, Data::default(), SignatureScheme::Null, selection)
    };
    let (quoted, signature) = with_password(&mut tpm, quoted).unwrap();
    let evidence = TpmEvidence {
        secret_sha256: [0; 32].into(),
        quoted: quoted.marshall().unwrap().into(),
        signature: signature.marshall().unwrap().into(),
        pcrs: Default::default(),
        event_log: None,
    };
    bench.refuses(&asked, evidence, "credential-mismatch");
    tpm.context()
        .execute_without_session(|context| context.flush_context(key.into()))
        .unwrap();
    // The true AK, with the signature relabelled as SHA-1.
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    bench.refuses_altered(&mut attester, &good, "algorithm-refused", |evidence, _, _| {
        assert_eq!(evidence.signature.0[..4], [0x00, 0x18, 0x00, 0x0b]);
        evidence.signature.0[3] = 0x04;
    });
}

#[test]
fn attack_07_replay() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());

    // The same evidence again; and other evidence, even right, for a challenge that was answered.
    let first = bench.asked(&request);
    let evidence = honest(&mut attester, &first);
    assert_eq!(bench.client.evidence(&first.answered(evidence.clone())).unwrap().status, 200);
    bench.refuses(&first, evidence.clone(), "challenge-spent");
    let again = honest(&mut attester, &first);
    bench.refuses(&first, again, "challenge-spent");
    // A refused answer has spent its challenge, too.
    let asked = bench.asked(&request);
    let mut wrong = honest(&mut attester, &asked);
    let right = wrong.clone();
    wrong.pcrs.clear();
    bench.refuses(&asked, wrong, "pcr-missing");
    bench.refuses(&asked, right, "challenge-spent");

    // Evidence of one challenge for another.
    let second = bench.asked(&request);
    bench.refuses(&second, evidence.clone(), "credential-mismatch");
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |fresh, _, _| {
        fresh.quoted = evidence.quoted.clone();
        fresh.signature = evidence.signature.clone();
    });
    // The nonce, for another pool, purpose or server; no nonce at all.
    let mut bound_otherwise = |alter: fn(&mut IssuedChallenge)| {
        bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, asked| {
            let mut other = asked.clone();
            alter(&mut other);
            let quote = attester.quote(&other.extra_data(), HashAlg::Sha256, &asked.task().pcrs).unwrap();
            evidence.quoted = quote.quoted.into();
            evidence.signature = quote.signature.into();
        });
    };
    bound_otherwise(|asked| asked.pool = "master".to_owned());
    bound_otherwise(|asked| asked.response.purpose = "other".to_owned());
    bound_otherwise(|asked| asked.server_key.0[0] ^= 1);
    bound_otherwise(|asked| asked.response.nonce.0.clear());
    let pcrs = first.task().pcrs.clone();
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, asked| {
        quote_instead(evidence, attester, asked.response.nonce.as_ref(), &[(SHA256_BANK, &pcrs)]);
    });
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, _| {
        quote_instead(evidence, attester, &[], &[(SHA256_BANK, &pcrs)]);
    });

    // A challenge that this gateway did not make.
    let evidence = honest(&mut attester, &second);
    for at in [0, 20, second.response.challenge.len() - 1] {
        let mut forged = second.clone();
        let other = if forged.response.challenge.as_bytes()[at] == b'A' {
            "B"
        } else {
            "A"
        };
        forged.response.challenge.replace_range(at..=at, other);
        bench.refuses(&forged, evidence.clone(), "challenge-invalid");
    }
}

#[test]
fn attack_07_counters_that_run_backwards_are_noticed() {
    let bench = Bench::new();
    let attest = || {
        let mut tpm = bench.tpm();
        let ek = endorsement_key(&mut tpm);
        let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
        let request = request(&ek, attester.ak_public());
        bench.trusts(&mut attester, &request);
        let record = bench.last_record();
        let resets = record.json().pointer("/claims/tpm/reset_count").unwrap().as_u64().unwrap();
        (resets, record.text("/alerts/0").map(str::to_owned))
    };
    let (first, alert) = attest();
    assert_eq!(alert, None);
    // A reboot between two attestations is an everyday thing, and is in the record.
    bench.server.reset().unwrap();
    bench.tpm().context().startup(StartupType::Clear).unwrap();
    assert_eq!(attest(), (first + 1, None));
    // The same EK, a younger TPM.
    with_password(&mut bench.tpm(), |context| context.clear(AuthHandle::Lockout)).unwrap();
    let (resets, alert) = attest();
    assert!(resets <= first, "{resets}");
    let alert = alert.unwrap();
    assert!(
        alert.contains(&format!("ran backwards: resets {} to {resets}", first + 1)),
        "{alert}"
    );
}

/// Extends the measurements of the firmware into the TPM, and returns their event log.
fn measured_boot(tpm: &mut TpmDevice) -> LogBuilder {
    let log = LogBuilder::typical(&[log_builder::SHA256]);
    for event in &log.events {
        let [(_, digest)] = event.digests.as_slice() else {
            panic!("one bank")
        };
        extend(tpm, event.pcr.try_into().unwrap(), digest.as_slice().try_into().unwrap());
    }
    log
}

#[test]
fn attack_24_forged_event_logs() {
    // PCRs 8 to 11 are quoted too, and 13, which is empty while a machine boots; 14, which the log speaks of, is not.
    let bench = Bench::with(|gateway| gateway.edit_pool("\"0-7\" = ", "\"0-11\" = ").unwrap());
    let mut tpm = bench.tpm();
    let log = measured_boot(&mut tpm);
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());

    let asked = bench.asked(&request);
    let evidence = TpmEvidence {
        event_log: Some(log.build().into()),
        ..honest(&mut attester, &asked)
    };
    assert_eq!(bench.client.evidence(&asked.answered(evidence)).unwrap().status, 200);
    let record = bench.last_record();
    let explained = record.json().pointer("/claims/tpm/event_log/explained_pcrs").unwrap();
    // All that were quoted, and not 14, whatever the log says of it.
    assert_eq!(*explained, serde_json::json!((0..12).chain([13]).collect::<Vec<u8>>()));

    let mut sends = |code: &str, bytes: Vec<u8>| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, _, _| {
            evidence.event_log = Some(bytes.into())
        });
    };
    let mut altered = |alter: fn(&mut Vec<BuiltEvent>)| {
        let mut log = log.clone();
        alter(&mut log.events);
        sends("event-log-mismatch", log.build());
    };
    altered(|events| events.swap(0, 1));
    altered(|events| events.reverse());
    altered(|events| events.truncate(10));
    altered(|events| events.clear());
    altered(|events| drop(events.remove(4)));
    altered(|events| events.insert(0, events[0].clone()));
    altered(|events| {
        let added = LogBuilder::new(&[log_builder::SHA256]).event(7, EV_SEPARATOR, b"added");
        events.extend(added.events);
    });
    altered(|events| events[0].digests[0].1[0] ^= 1);
    altered(|events| events[0].pcr = 1);
    altered(|events| events[0].event_type = log_builder::EV_NO_ACTION);

    let whole = log.build();
    for cut in [1, 17, whole.len() / 2, whole.len() - 1] {
        sends("event-log-malformed", whole[..whole.len() - cut].to_vec());
    }
    sends("event-log-malformed", [whole.as_slice(), &[0]].concat());
    sends("event-log-malformed", [whole.as_slice(), &[0xff; 64]].concat());
    sends("event-log-malformed", Vec::new());
    // Zeros are a first event in the format of TPM 1.2.
    sends("event-log-sha1-only", vec![0; 100]);
    let mut sha1_only = LogBuilder::new(&[log_builder::SHA1]);
    sha1_only.events = LogBuilder::typical(&[log_builder::SHA1]).events;
    sends("event-log-sha1-only", sha1_only.build());
}
