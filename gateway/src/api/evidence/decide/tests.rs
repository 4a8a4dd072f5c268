#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use attest::challenge::{Drawn, Subject};
use attest::endorsements::CloudEndorsements;
use attest::gcp::{Audience, GoogleKeys};
use attest::protocol::{Attester, BearerText, Blob, ChallengeRequest, Evidence, GcpEvidence, HexDigest, Nothing};
use attest::{Challenge, Endorsements, SpkiSha256, Submission};
use attest_log::Decision;
use attest_machines::instances::InstanceRecord;
use attest_store::{Embedded, Store, Transact};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rsa::KeySize;
use cloud_fixtures::google::{GoogleInstance, JwtSigner};
use serde_json::json;

use super::*;
use crate::credentials::challenges::{self, OpenedChallenge};
use crate::credentials::tokens::{Draft, create};
use crate::pools::load;
use attest_pool::needed_before_approval::NeededState;

const POOL_TOML: &str = r#"
[grants]
attested = "full"
nothing = "pre-approved"
[attestation]
accepts = [["gcp"]]
[gcp]
projects = [{ id = "example-project", number = 739419398126 }]
regions = ["europe-west3"]
instance_names = ["worker-*"]
service_accounts = ["739419398126-compute@developer.gserviceaccount.com"]
licenses = ["5926592092274602096"]
max_instance_age_seconds = 3600
"#;
const INSTANCE: &str = "gcp:example-project/152986662232938449";
const NAME: &str = "worker-7";
const GATEWAY: &str = "https://gateway.example.com";
const NOW: u64 = 1_800_000_000;
const PEER: &str = "192.0.2.7";
const CLAIMANT: [u8; 32] = [1; 32];

static GOOGLE: LazyLock<JwtSigner> = LazyLock::new(|| JwtSigner::new(KeySize::Rsa2048));

fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(NOW))
}

fn sha256(bytes: &[u8]) -> HexDigest {
    let bytes: [u8; 32] = digest(&SHA256, bytes).as_ref().try_into().unwrap();
    HexDigest::from(bytes)
}

/// A store, and what evidence of an instance of Google's proves.
struct Case {
    folder: tempfile::TempDir,
    store: Embedded,
    pool: Arc<Pool>,
    claims: Claims,
}

impl Case {
    async fn new() -> Self {
        Self::for_pool(POOL_TOML).await
    }

    async fn for_pool(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("worker");
        for set in ["full", "pre-approved"] {
            fs::create_dir_all(pool.join(set)).unwrap();
            fs::write(pool.join(set).join("config.ign"), r#"{"ignition":{"version":"3.1.0"}}"#).unwrap();
        }
        fs::write(pool.join("pool.toml"), text).unwrap();
        let pool = Arc::new(load("worker", &pool, &NeededState::Pending).await.unwrap());
        Self {
            store: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
            claims: claims(&pool),
            folder,
            pool,
        }
    }

    /// Opens a challenge that nobody has answered.
    fn opened(seal: &SealKeyRing) -> AnsweredChallenge {
        static ISSUED: AtomicU32 = AtomicU32::new(0);
        let number = ISSUED.fetch_add(1, Ordering::Relaxed);
        let challenge = Challenge {
            id: sha256(&number.to_be_bytes()),
            issued: NOW,
            expires: NOW + 120,
            purpose: "ignition-config".to_owned(),
            pool: "worker".to_owned(),
            name: None,
            nonce: Blob(vec![7; 32]),
            subject: Subject::default(),
        };
        let sealed = challenges::seal(seal, &challenge).unwrap();
        AnsweredChallenge::Opened(OpenedChallenge::open(seal, &sealed, now()).unwrap())
    }

    fn verified(&self) -> DecisionInput {
        let seal = Arc::new(SealKeyRing::open(&self.folder.path().join("seal.key")).unwrap());
        DecisionInput {
            answered: Arc::new(Self::opened(&seal)),
            observed: None,
            pool: Arc::clone(&self.pool),
            now: now(),
            peer: PEER.parse().unwrap(),
            seal,
            ticket: TicketSettings {
                lifetime: Duration::from_secs(600),
                late: Duration::ZERO,
                uses: 4,
            },
            notes_attested: true,
            ek: None,
            listed: None,
            allowlisted: None,
            claims: Arc::new(self.claims.clone()),
            appraised: attest::appraise(self.claims.clone(), &self.pool.policy, now()),
            config: tickets::TicketConfig::default(),
            admitted: Ok(None),
            token: None,
            record: Record::new("d1".to_owned(), Decision::Evidence, NOW, PEER.to_owned(), "worker".to_owned()),
        }
    }

    /// Decides about evidence that is changed so; returns the record of what was earned, or the refusal.
    async fn decide(&self, change: impl Fn(&mut DecisionInput)) -> Result<Record, EvidenceRefusal> {
        let mut verified = self.verified();
        change(&mut verified);
        let decided = self.store.decide("d1", move |transaction| decide(transaction, &verified));
        decided.await.map(|earned| *earned.record)
    }

    async fn earned(&self, change: impl Fn(&mut DecisionInput)) -> Record {
        self.decide(change).await.unwrap_or_else(|turned| panic!("{:?}", turned.refusal))
    }

    /// Returns a refusal with this code, which leaves the store as it was.
    async fn refused(&self, code: &str, change: impl Fn(&mut DecisionInput)) -> EvidenceRefusal {
        let before = Store::store_mark(&self.store);
        let turned = self.decide(change).await.err().unwrap();
        assert_eq!(turned.refusal.code(), code);
        assert_eq!(Store::store_mark(&self.store), before, "{code}: a refusal writes nothing");
        if let Some(record) = &turned.record {
            assert_eq!((record.use_number, record.ticket.is_some()), (None, false), "{code}");
        }
        turned
    }

    async fn put(&self, kind: EntryKind, id: &str, value: &str) {
        let [id, value] = [id, value].map(str::to_owned);
        self.store.put(kind, attest_store::StoreEntry { id, value }).await.unwrap();
    }

    async fn has(&self, kind: EntryKind, id: &str) -> Option<String> {
        self.store.get(kind, id).await.unwrap().map(|entry| entry.value)
    }
}

/// Returns the claims that verification finds in evidence of the instance.
fn claims(pool: &Pool) -> Claims {
    let request = ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: "worker".to_owned(),
        name: Some(NAME.to_owned()),
        attester: Attester {
            gcp: Some(Nothing {}),
            claimant_sha256: Some(sha256(&CLAIMANT)),
            ..Attester::default()
        },
    };
    let keys = GoogleKeys::from_jwks(GOOGLE.jwks().to_string().as_bytes()).unwrap();
    let endorsements = Endorsements::new(Arc::default()).with_clouds(CloudEndorsements {
        google_keys: Some(Arc::new(keys)),
        ..CloudEndorsements::default()
    });
    let drawn = Drawn::draw().unwrap();
    let issued = Challenge::issue(
        &request,
        &endorsements,
        &pool.policy,
        GATEWAY,
        &drawn,
        now(),
        Duration::from_secs(120),
    )
    .unwrap();
    let Challenge { nonce, purpose, pool, .. } = &issued.challenge;
    let key: SpkiSha256 = serde_json::from_value(json!("07".repeat(32))).unwrap();
    let audience = Audience::new(GATEWAY, purpose, pool, &nonce.0, &key);
    let token = GOOGLE.sign(&GoogleInstance::example(NOW - 60).claims(audience.as_str(), NOW));
    let evidence = Evidence {
        gcp: Some(GcpEvidence { token: BearerText(token) }),
        claimant: Some(Blob(CLAIMANT.to_vec())),
        ..Evidence::default()
    };
    attest::verify(&Submission::new(&issued.challenge, &evidence, &[key]), &endorsements, now()).unwrap()
}

fn revocation() -> String {
    json!({ "at": 1, "reason": "stolen" }).to_string()
}

#[tokio::test]
async fn claims_instance_and_name_in_one_transaction() {
    let case = Case::new().await;
    let before = Store::store_mark(&case.store).unwrap().mark;
    let record = case.earned(|_| {}).await;
    assert_eq!(Store::store_mark(&case.store).unwrap().mark, before + 1);
    assert_eq!(
        (record.verdict, record.name.as_deref(), record.alerts.len()),
        (Verdict::Trusted, Some(NAME), 0)
    );
    assert_eq!(record.ticket.map(|ticket| ticket.uses), Some(4));
    let instance: InstanceRecord = serde_json::from_str(&case.has(EntryKind::Instance, INSTANCE).await.unwrap()).unwrap();
    assert_eq!(instance.holder, format!("claimant:{}", sha256(&CLAIMANT)));
    assert_eq!((instance.at, instance.peer.as_str()), (NOW, PEER));
    assert_eq!(case.has(EntryKind::Name, NAME).await.as_deref(), Some(INSTANCE));
    assert_eq!(case.has(EntryKind::NameOf, INSTANCE).await.as_deref(), Some(NAME));
    assert!(
        case.has(EntryKind::Attested, INSTANCE)
            .await
            .unwrap()
            .contains("\"decision\":\"d1\"")
    );
    // The same claimant comes again; what is its own stays as it was.
    let later = |verified: &mut DecisionInput| verified.record.decide_at(NOW + 5);
    case.earned(later).await;
    let again: InstanceRecord = serde_json::from_str(&case.has(EntryKind::Instance, INSTANCE).await.unwrap()).unwrap();
    assert_eq!(again, instance);
}

#[tokio::test]
async fn attack_44_a_conflicting_store_entry_refuses_without_writes() {
    // What is in the store: kind, id, value; the code; how many alerts; whether the instance is known to belong to somebody.
    let other = format!("tpm:{}", "ab".repeat(32));
    let held = |holder: &str| json!({ "holder": holder, "at": 1, "peer": "::1" }).to_string();
    for (kind, id, value, code, alerts, is_somebodys) in [
        (EntryKind::Revoked, INSTANCE, revocation(), "node-revoked", 0, false),
        (EntryKind::Revoked, NAME, revocation(), "node-revoked", 0, false),
        (EntryKind::Name, NAME, other.clone(), "node-name-taken", 1, false),
        (EntryKind::NameOf, INSTANCE, "worker-8".to_owned(), "node-name-taken", 0, false),
        (EntryKind::Instance, INSTANCE, held("claimant:00"), "instance-claimed", 1, true),
        (EntryKind::Instance, INSTANCE, held(&other), "instance-claimed", 1, true),
    ] {
        let case = Case::new().await;
        case.put(kind, id, &value).await;
        let turned = case.refused(code, |_| {}).await;
        assert_eq!(turned.record.unwrap().alerts.len(), alerts, "{kind:?} {id}");
        assert_eq!(turned.is_somebodys, is_somebodys, "{kind:?} {id}");
        case.store.remove(kind, id).await.unwrap();
        assert!(case.decide(|_| {}).await.is_ok(), "{kind:?} {id}");
    }
}

#[tokio::test]
async fn a_policy_refusal_claims_neither_instance_nor_name() {
    let case = Case::new().await;
    let reject = Reject::ChallengeExpired { expires: 1, now: 2 };
    let turned = case
        .refused("challenge-expired", |verified| verified.appraised = Err(reject.clone()))
        .await;
    assert!(turned.obstacle == Obstacle::Policy && !turned.is_somebodys);
    let gone = Refusal::attested_not_accepted("worker");
    case.refused("attested-not-accepted", |verified| verified.admitted = Err(gone.clone()))
        .await;
    let refuses_all = Case::for_pool(&POOL_TOML.replace("attested = \"full\"", "attested = \"refuse\"")).await;
    refuses_all.refused("attested-not-accepted", |_| {}).await;
    // By an allowlist that is another by now, nothing is decided.
    let ek: EkDigest = "cd".repeat(32).parse().unwrap();
    let listed = EkRecord {
        name: None,
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    };
    let turned = case
        .refused("unavailable", |verified| {
            (verified.ek, verified.listed) = (Some(ek), Some(listed.clone()))
        })
        .await;
    assert!(turned.refusal.is_outdated());
}

#[tokio::test]
async fn one_of_many_decisions_about_a_challenge_is_made() {
    let case = Case::new().await;
    let answered = case.verified().answered;
    let with = |verified: &mut DecisionInput| verified.answered = Arc::clone(&answered);
    // A refusal writes nothing: not even that the challenge was answered.
    case.put(EntryKind::Revoked, INSTANCE, &revocation()).await;
    case.refused("node-revoked", with).await;
    assert!(case.store.remove(EntryKind::Revoked, INSTANCE).await.unwrap());
    let all = futures_util::future::join_all((0..20).map(|_| case.decide(with))).await;
    let (made, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 19));
    assert!(
        refused
            .into_iter()
            .all(|turned| turned.err().unwrap().refusal.code() == "challenge-spent")
    );
    // It stays spent when the decision cannot be recorded.
    case.store.give_back("d1").await.unwrap();
    case.refused("challenge-spent", with).await;
    assert!(matches!(answered.spend(&case.store).await, Err(challenges::ChallengeError::Spent)));
}

#[tokio::test]
async fn spends_the_token_after_all_other_checks() {
    let case = Case::new().await;
    let ca = case.folder.path().join("ca.pem");
    let draft = Draft {
        name: "rack".to_owned(),
        pools: ["worker".to_owned()].into(),
        lifetime: 3600,
        uses: Some(1),
        again: None,
        networks: Vec::new(),
        rotation: None,
    };
    let text = create(&case.store, draft, &ca, now()).await.unwrap().text;
    let with = |verified: &mut DecisionInput| verified.token = Some(text.clone());
    case.put(EntryKind::Name, NAME, "tpm:other").await;
    case.refused("node-name-taken", with).await;
    case.store.remove(EntryKind::Name, NAME).await.unwrap();
    let wrong = |verified: &mut DecisionInput| verified.token = Some(Zeroizing::new("wrong".to_owned()));
    case.refused("token-invalid", wrong).await;
    let record = case.earned(with).await;
    assert_eq!((record.use_number, record.again), (Some(1), false));
    // The same machine makes the same use again.
    let record = case.earned(with).await;
    assert_eq!((record.use_number, record.again), (Some(1), true));
}
