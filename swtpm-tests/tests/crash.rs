//! Kills of the gateway at any moment of an attestation: everything that it acknowledged holds after its restart. Also torn, replayed and
//! altered attestation logs.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench;
use crate::bench::{Bench, endorsement_key, honest, request};
use crate::log_builder;
use crate::log_builder::LogBuilder;
use attest::protocol::{Blob, EvidenceRequest, EvidenceResponse, HexDigest};
use attest_node::tpm::{AkKind, Attester, TpmDevice};
use swtpm_tests::{Client, IssuedChallenge, LogRecord, POOL, TestEndorsement, TestGateway, TpmServer};

/// Default number of uses of a ticket.
const TICKET_USES: usize = 4;
/// Number of kills at random moments.
const RANDOM_KILLS: u32 = 32;
/// Number of kills at each chosen moment.
const KILLS_AT_EACH_MOMENT: u32 = 3;
/// Seed, for the same moments in each run.
const SEED: u64 = 0x5eed;
/// Maximum wait for an event that triggers the kill, which comes in milliseconds.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// Moment of the gateway's kill.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The challenge has been answered.
    Challenged,
    /// The evidence is on its way.
    Sent,
    /// The store has been written to: the challenge is spent.
    Spent,
    /// The attestation log has been written to: the decision is recorded.
    Recorded,
    /// The node has its ticket.
    Trusted,
    /// The node has its config.
    Served,
    /// Duration after the evidence was sent.
    After(Duration),
}

/// Observation of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Sending,
    Trusted,
    Served,
    Done,
}

/// Attestation, and its acknowledged results.
struct Attempt {
    moment: Moment,
    asked: IssuedChallenge,
    evidence: EvidenceRequest,
    /// Answer to the evidence, if it came.
    earned: Option<EvidenceResponse>,
    /// Number of fetches that were answered with the config.
    served: usize,
}

impl Attempt {
    fn nonce(&self) -> String {
        data_encoding::BASE64.encode(self.asked.response.nonce.as_ref())
    }

    /// Sends the evidence, then fetches until the ticket is spent. Ends when the gateway is gone.
    fn run(&mut self, client: &Client, seen: &mpsc::Sender<Seen>) {
        seen.send(Seen::Sending).unwrap();
        if let Ok(reply) = client.evidence(&self.evidence) {
            let earned: EvidenceResponse = reply.json().unwrap();
            seen.send(Seen::Trusted).unwrap();
            while client.config(POOL, Some(&earned.ticket)).is_ok_and(|reply| reply.status == 200) {
                self.served += 1;
                seen.send(Seen::Served).unwrap();
            }
            self.earned = Some(earned);
        }
        seen.send(Seen::Done).unwrap();
    }

    /// Returns the decisions about this evidence, and the successful fetches with its ticket.
    fn records<'r>(&self, records: &'r [LogRecord]) -> (Vec<&'r LogRecord>, Vec<&'r LogRecord>) {
        let nonce = self.nonce();
        let trusted: Vec<&LogRecord> = records
            .iter()
            .filter(|record| record.verdict() == "trusted" && record.text("/basis/challenge/nonce") == Some(&nonce))
            .collect();
        let id = trusted.first().and_then(|record| record.text("/id"));
        let served = records
            .iter()
            .filter(|record| record.verdict() == "served" && id.is_some() && record.text("/earned_by") == id)
            .collect();
        (trusted, served)
    }

    /// Verifies after a restart that acknowledged results are in the log, and that used credentials are spent.
    fn holds(&self, gateway: &TestGateway, client: &Client) {
        let records = gateway.records().unwrap();
        let (trusted, served) = self.records(&records);
        let moment = self.moment;
        assert!(trusted.len() <= 1, "{moment:?}: trusted {} times", trusted.len());
        assert!(self.earned.is_none() || trusted.len() == 1, "{moment:?}: no record of the ticket");
        assert!(
            served.len() >= self.served,
            "{moment:?}: {} of {} fetches recorded",
            served.len(),
            self.served
        );
        let numbers: BTreeSet<u64> = served.iter().map(|record| record.json()["use_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers.len(), served.len(), "{moment:?}: a use was given twice: {numbers:?}");
        if !trusted.is_empty() {
            let reply = client.evidence(&self.evidence).unwrap();
            assert_eq!((reply.status, reply.code().as_str()), (403, "challenge-spent"), "{moment:?}");
        }
    }

    /// Uses up the remaining uses: before and after the kill together, never more than were granted.
    fn exhaust(&mut self, gateway: &TestGateway, client: &Client) {
        let again = client.evidence(&self.evidence).unwrap();
        if self.earned.is_none() && again.status == 200 {
            // It was killed before it had spent the challenge.
            self.earned = Some(again.json().unwrap());
            assert_eq!(client.evidence(&self.evidence).unwrap().code(), "challenge-spent");
        } else {
            assert_eq!(again.code(), "challenge-spent", "{:?}", self.moment);
        }
        let Some(earned) = &self.earned else { return };
        loop {
            let reply = client.config(POOL, Some(&earned.ticket)).unwrap();
            if reply.status != 200 {
                assert_eq!(reply.code(), "ticket-spent", "{:?}", self.moment);
                break;
            }
            self.served += 1;
        }
        assert!(self.served <= TICKET_USES, "{:?}: {} uses", self.moment, self.served);
        // No more was given than was granted, and no less: what a kill used up for nothing was given back.
        let records = gateway.records().unwrap();
        assert_eq!(self.records(&records).1.len(), TICKET_USES, "{:?}", self.moment);
    }
}

fn wait_for(moment: Moment, state: &Path, sizes: [u64; 2], seen: &Receiver<Seen>) {
    let until = |wanted: Seen| while ![wanted, Seen::Done].contains(&seen.recv_timeout(EVENT_LIMIT).unwrap()) {};
    let grows = |file: &str, before: u64| {
        let deadline = Instant::now() + EVENT_LIMIT;
        // No pause between two looks: the moment is short.
        while size(&state.join(file)) == before && Instant::now() < deadline {
            thread::yield_now();
        }
    };
    match moment {
        Moment::Challenged => {}
        Moment::Sent => until(Seen::Sending),
        Moment::Spent => grows(STORE, sizes[0]),
        Moment::Recorded => grows(LOG, sizes[1]),
        Moment::Trusted => until(Seen::Trusted),
        Moment::Served => until(Seen::Served),
        Moment::After(time) => {
            until(Seen::Sending);
            let deadline = Instant::now() + time;
            while seen
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .is_ok_and(|seen| seen != Seen::Done)
            {}
        }
    }
}

/// File that each commit appends to.
const STORE: &str = "gateway.db-wal";
const LOG: &str = "attestation.jsonl";

fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

/// Attests, kills the gateway at the moment, and starts it again.
fn attest_and_kill(bench: &mut Bench, attester: &mut Attester<'_>, ek: &attest_node::tpm::EndorsementKey, moment: Moment) -> Attempt {
    let asked = bench.asked(&request(ek, attester.ak_public()));
    let evidence = asked.answered(honest(attester, &asked));
    let mut attempt = Attempt {
        moment,
        asked,
        evidence,
        earned: None,
        served: 0,
    };
    let state = bench.gateway.folder().join("state");
    let sizes = [size(&state.join(STORE)), size(&state.join(LOG))];
    let (sender, seen) = mpsc::channel();
    thread::scope(|scope| {
        let Bench { client, gateway, .. } = bench;
        if !matches!(moment, Moment::Challenged) {
            let attempt = &mut attempt;
            scope.spawn(|| attempt.run(client, &sender));
        }
        wait_for(moment, &state, sizes, &seen);
        gateway.kill().unwrap();
    });
    bench.gateway.start(None).unwrap();
    attempt
}

/// Knuth's multiplicative generator, which is random enough for the moments.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn acknowledged_decisions_survive_a_kill_at_any_moment() {
    let mut bench = Bench::with(|gateway| {
        // So that nothing is refused merely because the test takes its time.
        let mut settings = OpenOptions::new().append(true).open(gateway.settings()).unwrap();
        settings
            .write_all(b"\n[challenge]\nlifetime_seconds = 600\n[ticket]\nlifetime_seconds = 3600\n")
            .unwrap();
    });
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();

    // How long it takes when nobody is killed: the random moments spread over that.
    let asked = bench.asked(&request(&ek, attester.ak_public()));
    let evidence = asked.answered(honest(&mut attester, &asked));
    let started = Instant::now();
    let earned: EvidenceResponse = bench.client.evidence(&evidence).unwrap().json().unwrap();
    for _ in 0..TICKET_USES {
        bench.client.config(POOL, Some(&earned.ticket)).unwrap();
    }
    let whole = u64::try_from(started.elapsed().as_micros()).unwrap();

    let mut random = Random(SEED);
    let thought_of = [
        Moment::Challenged,
        Moment::Sent,
        Moment::Spent,
        Moment::Recorded,
        Moment::Trusted,
        Moment::Served,
    ];
    let mut moments: Vec<Moment> = (0..KILLS_AT_EACH_MOMENT).flat_map(|_| thought_of).collect();
    moments.extend((0..RANDOM_KILLS).map(|_| Moment::After(Duration::from_micros(random.below(whole)))));

    let mut attempts = Vec::new();
    for moment in moments {
        let attempt = attest_and_kill(&mut bench, &mut attester, &ek, moment);
        attempt.holds(&bench.gateway, &bench.client);
        attempts.push(attempt);
    }
    // All of them were killed many more times since then.
    for attempt in &mut attempts {
        attempt.holds(&bench.gateway, &bench.client);
        attempt.exhaust(&bench.gateway, &bench.client);
        attempt.holds(&bench.gateway, &bench.client);
    }
    // What was killed, where: if all kills had come too early or too late, this test would prove nothing.
    let trusted = attempts.iter().filter(|attempt| attempt.earned.is_some()).count();
    let lost = attempts.iter().filter(|attempt| attempt.earned.is_none()).count();
    println!(
        "{} kills within {whole} µs each: {trusted} with a ticket in the end, {lost} whose challenge was spent for nothing",
        attempts.len()
    );
    assert!(trusted > 10);
    // And whatever it was killed in, every decision comes out again as it was recorded.
    bench.gateway.audit(&[]).unwrap();
}

#[test]
fn a_torn_last_line_is_cut_off_and_the_rest_stays() {
    let mut bench = Bench::new();
    bench.gives_only_pre_approved();
    bench.gives_only_pre_approved();
    let log = bench.gateway.attestation_log();
    let whole = fs::read(&log).unwrap();
    let line = whole.split_inclusive(|byte| *byte == b'\n').next().unwrap();
    for torn in [
        &line[..line.len() / 2],
        &line[..1],
        &line[..line.len() - 1],
        &[b'x'; 200_000],
        b"\0\0\0\0",
    ] {
        bench.gateway.kill().unwrap();
        let before = fs::read(&log).unwrap();
        OpenOptions::new().append(true).open(&log).unwrap().write_all(torn).unwrap();
        bench.gateway.start(None).unwrap();
        // What was not signed when it was killed is signed now.
        assert!(fs::read(&log).unwrap().starts_with(&before));
        assert_eq!(bench.gateway.records().unwrap().len(), 2);
    }
    bench.gives_only_pre_approved();
    assert_eq!(bench.gateway.records().unwrap().len(), 3);
    // Nothing but half a line.
    bench.gateway.kill().unwrap();
    fs::write(&log, &line[..line.len() / 2]).unwrap();
    bench.gateway.start(None).unwrap();
    assert!(bench.gateway.records().unwrap().is_empty());
    bench.gives_only_pre_approved();
}

/// Makes decisions about evidence, trusted and refused for many reasons, from an EK of this kind.
fn decisions(bench: &Bench, server: &TpmServer) {
    let mut tpm = TpmDevice::open(&server.tcti()).unwrap();
    let log = LogBuilder::typical(&[log_builder::SHA256]);
    for event in &log.events {
        bench::extend(
            &mut tpm,
            event.pcr.try_into().unwrap(),
            event.digests[0].1.as_slice().try_into().unwrap(),
        );
    }
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.trusts(&mut attester, &request);
    let mut check = |code: &str, alter: &dyn Fn(&mut attest::protocol::TpmEvidence)| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, _, _| {
            evidence.event_log = Some(log.build().into());
            alter(evidence);
        });
    };
    check("credential-mismatch", &|evidence| evidence.secret_sha256 = HexDigest::from([0; 32]));
    check("quote-signature", &|evidence| *evidence.signature.0.last_mut().unwrap() ^= 1);
    check("tpm-malformed", &|evidence| evidence.signature.0.truncate(3));
    check("quote-pcr-digest", &|evidence| {
        _ = evidence.pcrs.insert(0, HexDigest::from([0; 32]))
    });
    check("event-log-malformed", &|evidence| {
        evidence.event_log = Some(Blob(b"no log".to_vec()))
    });
    check("event-log-mismatch", &|evidence| {
        evidence.event_log = Some(LogBuilder::new(&[log_builder::SHA256]).build().into());
    });
    let spent = bench.asked(&request);
    let evidence = honest(&mut attester, &spent);
    assert_eq!(bench.client.evidence(&spent.answered(evidence.clone())).unwrap().status, 200);
    bench.refuses(&spent, evidence.clone(), "challenge-spent");
    // Nothing in it can be judged again, and it must not look as if the log were altered.
    let mut forged = spent;
    forged.response.challenge.replace_range(..4, "XXXX");
    bench.refuses(&forged, evidence, "challenge-invalid");
}

#[test]
fn audit_replays_decisions_and_detects_altered_records() {
    let bench = Bench::new();
    let unendorsed = TpmServer::start(&bench.folder.path().join("allowed"), TestEndorsement::None).unwrap();
    let digest = {
        let mut tpm = TpmDevice::open(&unendorsed.tcti()).unwrap();
        endorsement_key(&mut tpm).digest.to_string()
    };
    decisions(&bench, &bench.server);
    bench.gateway.command(&["ek", "add", &digest]).unwrap();
    decisions(&bench, &unendorsed);
    // What was decided then is judged by what was known then.
    bench.gateway.command(&["ek", "remove", &digest]).unwrap();
    let table = bench.gateway.audit(&[]).unwrap();
    let counted = |said: &str| table.lines().filter(|line| line.ends_with(said)).count();
    // Whoever does not know the secret, or comes with a challenge that was answered, has proven nothing.
    assert_eq!(
        (counted("same"), counted("recorded by digest"), counted("unread")),
        (14, 4, 2),
        "{table}"
    );
    assert!(!table.contains("DIFFERENT"), "{table}");

    // Somebody edits the log afterwards.
    let log = bench.gateway.attestation_log();
    let whole = fs::read_to_string(&log).unwrap();
    let records = bench.gateway.records().unwrap();
    let found = |alter: &dyn Fn(&mut serde_json::Value), verdict: &str| {
        let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
        let is_wanted = |record: &&swtpm_tests::LogRecord| record.verdict() == verdict && record.decision() == "evidence";
        let honest = records.iter().find(is_wanted).unwrap().json();
        let mut record = honest.clone();
        alter(&mut record);
        assert_ne!(record, *honest);
        let id = honest["id"].as_str().unwrap();
        *lines
            .iter_mut()
            .find(|line| line.contains(&format!("\"id\":\"{id}\",\"decision\"")))
            .unwrap() = record.to_string();
        fs::write(&log, lines.join("\n") + "\n").unwrap();
        let audit = bench.gateway.audit(&[]);
        let Err(error) = audit else { panic!("not found: {record}") };
        let error = format!("{error:#}");
        assert!(error.contains("exit status: 1") && error.contains("DIFFERENT"), "{error}");
    };
    let pcr_0 = |record: &mut serde_json::Value| record["claims"]["tpm"]["pcrs"]["0"] = "00".repeat(32).into();
    found(&pcr_0, "trusted");
    found(&|record| record["basis"]["challenge"]["pool"] = "master".into(), "trusted");
    found(&|record| record["basis"]["ek_roots"] = serde_json::Value::Null, "trusted");
    found(&|record| record["basis"]["event_log_sha256"] = "00".repeat(32).into(), "trusted");
    found(&|record| record["at"] = 9_999_999_999_u64.into(), "trusted");
    found(&|record| record["verdict"] = "trusted".into(), "refused");
    let unread = |record: &mut serde_json::Value| {
        record["code"] = "challenge-invalid".into();
    };
    found(&unread, "trusted");
    found(&unread, "refused");
    found(
        &|record| {
            record["verdict"] = "trusted".into();
            record.as_object_mut().unwrap().remove("code");
        },
        "refused",
    );
    fs::write(&log, &whole).unwrap();
    bench.gateway.audit(&[]).unwrap();
    // An event log that was altered, among the large parts.
    let parts = bench.gateway.folder().join("state/evidence");
    let name = records.iter().find_map(|record| record.text("/basis/event_log_sha256")).unwrap();
    let part = parts.join(format!("{name}.gz"));
    let before = fs::read(&part).unwrap();
    let another = fs::read_dir(&parts)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| *path != part)
        .unwrap();
    fs::copy(another, &part).unwrap();
    bench.gateway.audit(&[]).unwrap_err();
    fs::write(&part, before).unwrap();
    bench.gateway.audit(&[]).unwrap();
}
