//! Azure's vTPM as a kind of evidence: requests for it, other evidence next to it, and a pool's rules for it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::log_builder::LogBuilder;
use crate::measured_boot::machine::{Parts, grub_machine, sha256};
use crate::support::{Case, NOW, SERVER_KEY, SoftKey, at, no_roots};
use attest::appraisal::Rules;
use attest::azure::attested_document::{AzureCloud, AzureSubject, AzureTrust, ImdsNonce, NonceForm};
use attest::azure::vtpm::{AkRoots, AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmRules, AzureVtpmSubject, VmId};
use attest::challenge::Drawn;
use attest::condition::Condition;
use attest::endorsements::CloudEndorsements;
use attest::protocol::{Attester, AzureEvidence, BearerText, Blob, ChallengeRequest, Evidence, HexDigest, Nothing};
use attest::{
    AppraisalPolicy, Challenge, Claims, EkDigest, Endorsements, HashAlg, Kind, PcrSelection, Reject, Subject, Submission, appraise, verify,
};
use cloud_fixtures::azure::vtpm::{Vtpm, VtpmCas, ak_params, measured, nv_contents};
use cloud_fixtures::azure::{AzureAuthority, AzureMachine};

static CAS: LazyLock<VtpmCas> = LazyLock::new(VtpmCas::global);
static DOCUMENTS: LazyLock<AzureAuthority> = LazyLock::new(|| AzureAuthority::new("eastus"));
const OTHER_VM_ID: &str = "3c18c97a-0d2a-4565-969d-166cdcef26a3";
const PCRS: &str = "[pcrs]\n\"0-7\" = \"not checked\"";

/// A machine of Azure's, and its metadata service's answer.
struct Shown {
    vtpm: Vtpm,
    /// Machine in the attested document that is shown too, if there is one.
    document: Option<AzureMachine>,
    roots: Option<Arc<AkRoots>>,
    event_log: Option<Vec<u8>>,
}

impl Shown {
    fn new(document: Option<AzureMachine>) -> Self {
        Self {
            vtpm: Vtpm::new(&AzureMachine::default().vm_id),
            document,
            roots: Some(Arc::new(AkRoots::new(vec![CAS.root()], CAS.intermediates()).unwrap())),
            event_log: None,
        }
    }

    /// A machine that has booted by this log.
    fn booted(log: &LogBuilder) -> Self {
        let log = azure_log(log);
        let mut shown = Self::new(None);
        for (pcr, value) in log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 8) {
            shown.vtpm.pcrs.insert(pcr, value.as_bytes().to_vec());
        }
        shown.event_log = Some(log.build());
        shown
    }

    fn attester(&self) -> AzureVtpmAttester {
        let certificate = CAS.certify(&ak_params("f859864a6a31.TrustedVM.Azure.windows.net"), &self.vtpm.ak.pair);
        AzureVtpmAttester {
            ak_public: Blob(self.vtpm.ak_public()),
            ak_certificate: Blob(nv_contents(&certificate)),
            ak_intermediates: Vec::new(),
            vm_id: VmId::try_from(AzureMachine::default().vm_id).unwrap(),
        }
    }

    fn endorsements(&self) -> Endorsements {
        let trust = AzureTrust::new(
            vec![AzureCloud::Public],
            &[DOCUMENTS.root().clone()],
            vec![DOCUMENTS.intermediate().clone()],
        );
        Endorsements::new(Arc::new(no_roots())).with_clouds(CloudEndorsements {
            azure: Some(Arc::new(trust.unwrap())),
            azure_vtpm: self.roots.clone(),
            ..CloudEndorsements::default()
        })
    }

    fn verify(&self) -> Result<Claims, Reject> {
        self.verify_with(None)
    }

    /// Verifies it together with evidence of a TPM that has attested as such.
    fn verify_with(&self, tpm: Option<&Case>) -> Result<Claims, Reject> {
        let case = Case::new(SoftKey::p256());
        let bound: [u8; 32] = case.quoted.extra_data.clone().try_into().unwrap();
        let pcrs: Vec<u8> = (0..8).collect();
        let (mut subject, mut evidence) = (Subject::default(), Evidence::default());
        subject.azure_vtpm = Some(AzureVtpmSubject {
            attester: self.attester(),
            selection: PcrSelection::new(HashAlg::Sha256, pcrs.iter().copied()).unwrap(),
        });
        let quoted = self.vtpm.quoted(&bound, &pcrs);
        let values = pcrs.iter().map(|pcr| (*pcr, HexDigest::new(&self.vtpm.pcrs[pcr]).unwrap()));
        evidence.azure_vtpm = Some(AzureVtpmEvidence {
            signature: Blob(self.vtpm.sign(&quoted)),
            quoted: Blob(quoted),
            pcrs: values.collect::<BTreeMap<u8, HexDigest>>(),
            event_log: self.event_log.clone().map(Blob),
        });
        if let Some(machine) = &self.document {
            let nonce = NonceForm::Alphanumeric32;
            subject.azure = Some(AzureSubject { nonce });
            let document = machine.document(Some(ImdsNonce::derive(&bound).as_str()), case.now);
            evidence.azure = Some(AzureEvidence {
                signature: BearerText(DOCUMENTS.sign(&document)),
            });
        }
        let mut endorsements = self.endorsements();
        if let Some(tpm) = tpm {
            (subject.tpm, evidence.tpm) = (tpm.challenge().subject.tpm, tpm.evidence().tpm);
            endorsements = endorsements.allow(EkDigest::from_public_area(&tpm.ek_area.to_bytes()).unwrap());
        }
        let challenge = Challenge {
            subject,
            ..case.challenge()
        };
        let submission = Submission::new(&challenge, &evidence, &[SERVER_KEY]);
        verify(&submission, &endorsements, at(case.now))
    }
}

/// The log of a machine whose firmware says which machine it is.
fn azure_log(log: &LogBuilder) -> LogBuilder {
    let mut log = log.clone();
    log.events.retain(|event| event.pcr != 6);
    let measured = measured(&AzureMachine::default().vm_id).into_iter();
    measured.fold(log, |log, measured| log.event(6, 12, &measured))
}

/// Two keys of one TPM: each proves its own quote, and the verifier does not guess which of them is meant.
#[test]
fn tpm_and_vtpm_quotes_prove_separate_boots() {
    let log = grub_machine(true);
    let shown = Shown::booted(&log);
    let verified = |last: u8| {
        let values = azure_log(&log).pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr <= last);
        let values = values.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
        let tpm = Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, values).but(|case| case.event_log = shown.event_log.clone());
        shown.verify_with(Some(&tpm)).unwrap()
    };
    let kinds = |claims: &Claims| claims.measured_boots().iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
    let same = verified(7);
    assert_eq!(kinds(&same), [Kind::Tpm, Kind::AzureVtpm]);
    assert_eq!(same.measured_boot().unwrap().secure_boot(), Ok(true));
    let other = verified(8);
    assert_eq!(kinds(&other), [Kind::Tpm, Kind::AzureVtpm]);
    assert_eq!(other.measured_boot(), None);
    assert_eq!(kinds(&shown.verify().unwrap()), [Kind::AzureVtpm]);
    assert_eq!(kinds(&Shown::new(None).verify().unwrap()), []);
    // A condition sees what each has proven.
    let holds = |condition: &str| Condition::parse(condition).unwrap().holds_of(&other);
    let each = "claims.tpm.boot.grub.all(g, has(g.text)) && claims.azure_vtpm.boot.secure_boot && !has(claims.azure_vtpm.boot.grub)";
    assert_eq!(holds(each), Ok(true));
    let said = holds("claims.azure_vtpm.boot.grub.all(g, has(g.text))").unwrap_err();
    assert!(
        said.contains("claims.azure_vtpm.boot.grub is absent: the log's events do not give the quoted PCR 8"),
        "{said}"
    );
}

#[track_caller]
fn refused(result: Result<impl Sized, Reject>, code: &str) {
    match result {
        Ok(_) => panic!("accepted, expected {code}"),
        Err(reject) => assert_eq!(reject.code(), code, "{reject}"),
    }
}

fn policy(accepts: &str, rules: &str) -> Result<AppraisalPolicy, String> {
    let azure = "subscriptions = [\"8a205152-b25a-417f-a676-80465535a6c9\"]";
    let vtpm: AzureVtpmRules = toml::from_str(&format!("{rules}\n{PCRS}")).unwrap();
    let rules = Rules {
        azure: accepts.contains("\"azure\"").then(|| toml::from_str(azure).unwrap()),
        azure_vtpm: Some(vtpm),
        ..Rules::default()
    };
    AppraisalPolicy::new(serde_json::from_str(accepts).unwrap(), rules).map_err(|error| error.to_string())
}

#[test]
fn azure_vtpm_identity_includes_a_proven_subscription() {
    let machine = AzureMachine::default();
    let (vm_id, subscription) = (machine.vm_id.clone(), machine.subscription_id.clone());
    let alone = Shown::new(None).verify().unwrap();
    assert_eq!(alone.identity().as_str(), format!("azure-vtpm:{vm_id}"));
    assert_eq!(alone.instance(), Some(alone.identity()));
    assert_eq!(alone.server_key(), Some(&SERVER_KEY));
    assert!(alone.is_of_the_instances_own_tpm());
    let both = Shown::new(Some(machine)).verify().unwrap();
    assert_eq!(both.identity().as_str(), format!("azure:{subscription}/{vm_id}"));
    let record = serde_json::to_value(&both).unwrap();
    assert_eq!(record["azure_vtpm"]["subscription_id"], subscription);
}

/// The vTPM's quote proves the boot like any TPM's quote.
#[test]
fn condition_reads_the_boot_of_a_vtpm() {
    let digest = |content: &[u8]| data_encoding::HEXLOWER.encode(&sha256(content));
    let images = format!(
        "claims.azure_vtpm.boot.images == ['{}', '{}', '{}']",
        digest(b"shim"),
        digest(b"grub"),
        digest(b"kernel")
    );
    let strict = format!("claims.azure_vtpm.boot.secure_boot && {images}");
    let judged = |shown: &Shown, condition: &str| {
        let rules = Rules {
            azure_vtpm: Some(toml::from_str(&format!("accept_any_subscription = true\nevent_log = \"recorded\"\n{PCRS}")).unwrap()),
            condition: Some(Condition::parse(condition).unwrap()),
            ..Rules::default()
        };
        let policy = AppraisalPolicy::new(vec![Kind::AzureVtpm.into()], rules).map_err(|error| error.to_string())?;
        let result = appraise(shown.verify().unwrap(), &policy, at(NOW));
        result.map(drop).map_err(|reject| reject.code().to_owned())
    };
    let check = |shown: &Shown, condition: &str, expect: Result<(), &str>| {
        assert_eq!(judged(shown, condition), expect.map_err(str::to_owned), "{condition}");
    };
    let booted = Shown::booted(&grub_machine(true));
    assert_eq!(
        booted.verify().unwrap().measured_boot().map(|boot| boot.secure_boot()),
        Some(Ok(true))
    );
    check(&booted, &strict, Ok(()));
    check(&Shown::booted(&grub_machine(false)), &strict, Err("condition-not-met"));
    check(
        &Shown::booted(&grub_machine(true).image("another", "")),
        &strict,
        Err("condition-not-met"),
    );
    check(&Shown::new(None), &strict, Err("condition-undecided"));
    let mut other = Shown::booted(&grub_machine(true));
    other.event_log.as_mut().unwrap().truncate(100);
    check(&other, &strict, Err("condition-undecided"));
    // It is no TPM's that has attested as such.
    check(&booted, "claims.tpm.boot.secure_boot", Err("condition-undecided"));
    assert!(judged(&booted, "claims.azure_vtpm.boot.grub == []").unwrap_err().contains("PCR 8"));
}

#[test]
fn attack_13_document_of_another_vm_is_refused() {
    let vm_id = OTHER_VM_ID.to_owned();
    let other = AzureMachine {
        vm_id,
        ..AzureMachine::default()
    };
    refused(Shown::new(Some(other)).verify(), "identities-differ");
}

#[test]
fn azure_vtpm_without_roots_is_not_configured() {
    let mut shown = Shown::new(None);
    shown.roots = None;
    refused(shown.verify(), "evidence-not-configured");
}

#[test]
fn challenge_requests_the_accepted_azure_evidence() {
    let issue = |change: &dyn Fn(&mut AzureVtpmAttester)| {
        let shown = Shown::new(None);
        let mut attester = shown.attester();
        change(&mut attester);
        let request = ChallengeRequest {
            kubelet_key_sha256: None,
            rehearsal: false,
            pool: "worker".to_owned(),
            name: None,
            attester: Attester {
                azure_vtpm: Some(attester),
                azure: Some(Nothing {}),
                ..Attester::default()
            },
        };
        let policy = policy(r#"[["azure-vtpm"]]"#, "accept_any_subscription = true").unwrap();
        let drawn = Drawn::draw().unwrap();
        let lifetime = Duration::from_secs(60);
        Challenge::issue(&request, &shown.endorsements(), &policy, "gateway.test", &drawn, at(NOW), lifetime)
    };
    // No claimant: its own vTPM stands for the machine.
    let issued = issue(&|_| {}).unwrap();
    assert!(issued.task.kinds().iter().eq([&Kind::AzureVtpm]));
    let task = issued.task.azure_vtpm.unwrap();
    assert_eq!((task.pcr_bank.as_str(), task.pcrs), ("sha256", (0..8).collect()));
    assert!(issued.challenge.subject.azure_vtpm.is_some());
    let many = |attester: &mut AzureVtpmAttester| attester.ak_intermediates = vec![Blob::default(); 9];
    refused(issue(&many), "malformed-request");
    refused(issue(&|attester| attester.ak_public = Blob::default()), "tpm-malformed");
    // Without the bit that says restricted.
    refused(issue(&|attester| attester.ak_public.0[5] &= !1), "ak-attributes");
}

#[test]
fn azure_vtpm_pool_must_name_its_machines() {
    let alone = r#"[["azure-vtpm"]]"#;
    let both = r#"[["azure-vtpm", "azure"]]"#;
    assert!(policy(alone, "").unwrap_err().contains("no subscription"));
    assert!(policy(r#"[["azure-vtpm", "token"]]"#, "").unwrap_err().contains("no subscription"));
    policy(alone, "accept_any_subscription = true").unwrap();
    policy(both, "").unwrap();
    let named = format!("vm_ids = [\"{OTHER_VM_ID}\"]");
    let appraised = |shown: Shown, policy: &AppraisalPolicy| appraise(shown.verify().unwrap(), policy, at(NOW));
    refused(
        appraised(Shown::new(None), &policy(alone, &named).unwrap()),
        "azure-vm-not-accepted",
    );
    appraised(Shown::new(None), &policy(alone, "accept_any_subscription = true").unwrap()).unwrap();
    appraised(Shown::new(Some(AzureMachine::default())), &policy(both, "").unwrap()).unwrap();
    let subscription_id = "00000000-0000-0000-0000-000000000001".to_owned();
    let of_others = AzureMachine {
        subscription_id,
        ..AzureMachine::default()
    };
    refused(
        appraised(Shown::new(Some(of_others)), &policy(both, "").unwrap()),
        "azure-subscription-not-accepted",
    );
}

#[test]
fn observe_covers_boot_rules_but_not_identity_rules() {
    let other = format!("7 = [\"{}\"]", "ab".repeat(32));
    let judged = |document: Option<AzureMachine>, accepts: &str, rules: &str, pcrs: &str, observe: bool| {
        let rules = Rules {
            azure: accepts
                .contains("\"azure\"")
                .then(|| toml::from_str("subscriptions = [\"8a205152-b25a-417f-a676-80465535a6c9\"]").unwrap()),
            azure_vtpm: Some(toml::from_str(&format!("{rules}\n[pcrs]\n\"0-6\" = \"not checked\"\n{pcrs}")).unwrap()),
            observe,
            ..Rules::default()
        };
        let policy = AppraisalPolicy::new(serde_json::from_str(accepts).unwrap(), rules).unwrap();
        appraise(Shown::new(document).verify().unwrap(), &policy, at(NOW))
    };
    let (alone, both) = (r#"[["azure-vtpm"]]"#, r#"[["azure-vtpm", "azure"]]"#);
    let (any, named) = ("accept_any_subscription = true", format!("vm_ids = [\"{OTHER_VM_ID}\"]"));
    let of_others = || AzureMachine {
        subscription_id: "00000000-0000-0000-0000-000000000001".to_owned(),
        ..AzureMachine::default()
    };
    for observe in [false, true] {
        refused(judged(None, alone, &named, "7 = \"not checked\"", observe), "azure-vm-not-accepted");
        refused(judged(None, alone, &named, &other, observe), "azure-vm-not-accepted");
        refused(
            judged(Some(of_others()), both, "", "7 = \"not checked\"", observe),
            "azure-subscription-not-accepted",
        );
        refused(judged(None, both, any, "7 = \"not checked\"", observe), "evidence-not-accepted");
    }
    refused(judged(None, alone, any, &other, false), "pcr-mismatch");
    let result = judged(None, alone, &format!("{any}\nevent_log = \"required\""), &other, true).unwrap();
    let codes: Vec<&str> = result.would_refuse().iter().map(Reject::code).collect();
    assert_eq!(codes, ["pcr-mismatch", "event-log-missing"]);
}
