//! Decisions follow the state at their commit.

use std::collections::BTreeSet;
use std::path::Path;

use attest::{EkDigest, EndorsedBy, NodeIdentity, UnixTime};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::credentials::tickets::{self, TicketConfig, TicketError, TicketGrant};
use attest_gateway::credentials::tokens::{self, Draft, RotateOptions, TokenError, TokenHolder};
use attest_gateway::settings::TicketSettings;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::instances::{self, InstanceRecord};
use attest_machines::revocations;
use attest_store::EntryTransaction;
use data_encoding::HEXLOWER;
use tokio::sync::Semaphore;

use super::*;
use crate::support::interleaving::interleave;

const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1000));
const NAME: &str = "worker-7";

fn ek() -> EkDigest {
    "ab".repeat(32).parse().unwrap()
}

fn tpm() -> NodeIdentity {
    NodeIdentity::from_ek(ek())
}

fn instance() -> NodeIdentity {
    serde_json::from_str(r#""aws:1/i-1""#).unwrap()
}

fn allowed(pools: &[&str]) -> EkRecord {
    EkRecord {
        name: Some(NAME.to_owned()),
        added: 1,
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        note: None,
        removed: None,
    }
}

fn held(holder: &str, at: u64) -> InstanceRecord {
    InstanceRecord {
        holder: holder.to_owned(),
        at,
        peer: "::1".to_owned(),
    }
}

async fn bind(store: &dyn Store, record: &InstanceRecord) {
    let bound = entry(instance().as_str(), &serde_json::to_string(record).unwrap());
    store.put(EntryKind::Instance, bound).await.unwrap();
}

async fn revoke(store: &dyn Store, who: &str) {
    let all = BTreeSet::from([who.to_owned()]);
    revocations::revoke(store, &all, 1000, None).await.unwrap();
}

/// Change of a machine's state or of the basis of its ticket, by another process.
#[derive(Debug, Clone, Copy)]
enum Ground {
    RevokeName,
    RevokeTpm,
    RevokeInstance,
    /// Gives the name to a machine that is revoked.
    RevokeItsNamesOwner,
    TakeOffTheList,
    ForgetOnTheList,
    KeepToAnotherPool,
    Release,
    /// Binds the instance to another machine, or to the same again.
    Bind(&'static str),
    Nothing,
}

impl Ground {
    async fn remove(self, store: &dyn Store) {
        match self {
            Self::RevokeName => revoke(store, NAME).await,
            Self::RevokeTpm => revoke(store, tpm().as_str()).await,
            Self::RevokeInstance => revoke(store, instance().as_str()).await,
            Self::RevokeItsNamesOwner => {
                store.put(EntryKind::Name, entry(NAME, "tpm:other")).await.unwrap();
                revoke(store, "tpm:other").await;
            }
            Self::TakeOffTheList => assert!(enrolment::disallow(store, &ek().identity(), 1000).await.unwrap()),
            Self::ForgetOnTheList => assert!(enrolment::forget_entry(store, &ek().identity()).await.unwrap()),
            Self::KeepToAnotherPool => enrolment::allow(store, ek(), allowed(&["infra"]), false).await.unwrap(),
            Self::Release => assert!(store.remove(EntryKind::Instance, instance().as_str()).await.unwrap()),
            Self::Bind(holder) => bind(store, &held(holder, 999)).await,
            // Another record, which says as much.
            Self::Nothing => enrolment::allow(store, ek(), allowed(&["worker"]), false).await.unwrap(),
        }
    }
}

/// Attested machine, and its ticket.
struct Attested {
    store: Arc<dyn Store>,
    seal: SealKeyRing,
    settings: TicketSettings,
    ticket: String,
}

impl Attested {
    async fn at(place: &impl Place) -> Self {
        let store = place.open().await;
        let holder = held(tpm().as_str(), 5);
        bind(&*store, &holder).await;
        enrolment::allow(&*store, ek(), allowed(&[]), false).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let seal = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
        let settings = TicketSettings {
            lifetime: Duration::from_secs(600),
            late: Duration::ZERO,
            uses: 10_000,
        };
        let earned = TicketGrant {
            identity: &tpm(),
            instance: Some(&instance()),
            holder: Some(&holder),
            name: Some(NAME),
            pool: "worker",
            decision: "d",
            endorsed_by: Some(&EndorsedBy::Allowlist),
            object: None,
            config: &TicketConfig::default(),
        };
        let ticket = tickets::issue(&seal, &settings, &earned, NOW).unwrap().text;
        Self {
            store,
            seal,
            settings,
            ticket,
        }
    }

    /// Uses the ticket. Returns the number of the use.
    async fn redeem(&self, store: &dyn Store, decision: &str) -> Result<u32, TicketError> {
        let ticket = tickets::open(&self.seal, &self.settings, &self.ticket, "worker", NOW)?;
        let decided = decided(decision);
        let redeemed = store.decide(decision, move |transaction| {
            let redeemed = ticket.redeem(transaction)?;
            transaction.decide(decided.clone())?;
            Ok(redeemed.use_number())
        });
        redeemed.await
    }
}

pub async fn attack_44_a_ticket_is_good_by_what_stands_when_it_is_used<P: Place>() {
    use Ground::*;
    for (ground, expected) in [
        (RevokeName, "revoked"),
        (RevokeTpm, "revoked"),
        (RevokeInstance, "revoked"),
        (RevokeItsNamesOwner, "revoked"),
        (TakeOffTheList, "was removed from the allowlist"),
        (ForgetOnTheList, "was removed from the allowlist"),
        (KeepToAnotherPool, "was removed from the allowlist"),
        (Release, "released"),
        (Bind("tpm:other"), "released"),
        (Bind(tpm().as_str().to_owned().leak()), "released"),
        (Nothing, ""),
    ] {
        let place = P::empty().await;
        let attested = Attested::at(&place).await;
        let store = interleave(&place.open().await, 1, move |store| async move {
            ground.remove(&*store).await;
        });
        match attested.redeem(&store, "c").await {
            Ok(number) => assert_eq!((expected, number), ("", 1)),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{ground:?}: {error}");
                assert_eq!(decisions(&*attested.store).await, [""; 0], "{ground:?} has used it up");
            }
        }
        // Whoever comes later finds the same.
        assert_eq!(
            attested.redeem(&*attested.store, "later").await.is_ok(),
            expected.is_empty(),
            "{ground:?}"
        );
    }
}

/// Uses the ticket repeatedly until it is refused. Returns the decisions for which it was used.
async fn redeem_until_refused(attested: &Attested, racer: &str, used: &Semaphore) -> Vec<String> {
    let mut decisions = Vec::new();
    loop {
        let decision = format!("{racer} {}", decisions.len());
        match attested.redeem(&*attested.store, &decision).await {
            Ok(_) => decisions.push(decision),
            Err(TicketError::Revocation(_)) => return decisions,
            Err(error) => panic!("{error}"),
        }
        used.add_permits(1);
    }
}

pub async fn attack_44_nothing_is_used_after_a_revocation_was_answered<P: Place>() {
    let place = P::empty().await;
    let attested = Arc::new(Attested::at(&place).await);
    let other = place.open().await;
    for round in 0..5 {
        let used = Arc::new(Semaphore::new(0));
        let racing: Vec<_> = (0..8)
            .map(|racer| {
                let (attested, used) = (Arc::clone(&attested), Arc::clone(&used));
                tokio::spawn(async move { redeem_until_refused(&attested, &format!("{round} {racer}"), &used).await })
            })
            .collect();
        used.acquire_many(20).await.unwrap().forget();
        revoke(&*other, NAME).await;
        let before = decisions(&*other).await;
        for redeemed in racing {
            for decision in redeemed.await.unwrap() {
                assert!(before.contains(&decision), "round {round}: {decision} came after it");
            }
        }
        for decision in before {
            attested.store.give_back(&decision).await.unwrap();
            attested.store.settle(&decision);
        }
        revocations::restore(&*other, NAME, false).await.unwrap();
    }
}

/// Change of a token by another process.
#[derive(Debug, Clone, Copy)]
enum Step {
    Revoke,
    /// Replaces the token, which stays valid for this number of seconds.
    Rotate(u64),
    /// Removes the token, and adds it again for another pool.
    Replace,
}

impl Step {
    async fn is_done(self, store: &dyn Store) {
        match self {
            Self::Revoke => assert_eq!(tokens::revoke(store, "t").await.unwrap(), 1),
            Self::Rotate(grace) => {
                let options = RotateOptions {
                    grace: Some(grace),
                    lifetime: None,
                };
                // The fetch began before.
                let later = UnixTime::since_unix_epoch(Duration::from_secs(1001));
                tokens::rotate(store, "t", options, Path::new("/none"), later).await.unwrap();
            }
            Self::Replace => {
                let token = store.list(EntryKind::Token).await.unwrap().remove(0);
                store.remove(EntryKind::Token, &token.id).await.unwrap();
                let value = token.value.replace("worker", "infra");
                store.put(EntryKind::Token, StoreEntry { value, ..token }).await.unwrap();
            }
        }
    }
}

pub async fn attack_44_a_token_is_good_by_what_stands_when_it_is_used<P: Place>() {
    for (step, expected) in [
        (Step::Revoke, "the token does not exist"),
        (Step::Rotate(0), "expired"),
        (Step::Replace, "is for pool infra"),
        (Step::Rotate(60), ""),
    ] {
        let place = P::empty().await;
        let store = place.open().await;
        let draft = Draft {
            name: "t".to_owned(),
            pools: BTreeSet::from(["worker".to_owned()]),
            lifetime: 600,
            uses: Some(1),
            again: None,
            networks: Vec::new(),
            rotation: None,
        };
        let text = tokens::create(&*store, draft, Path::new("/none"), NOW).await.unwrap().text;
        let id = store.list(EntryKind::Token).await.unwrap().remove(0).id;
        let open = |transaction: &mut EntryTransaction<'_>, text: &str| {
            tokens::open(transaction, text, "worker", "192.0.2.1".parse().unwrap(), NOW)
        };
        // As it is looked at before, and where it is used.
        let shown = text.clone();
        let looked = store.read(move |transaction| open(transaction, &shown).map(drop));
        looked.await.unwrap();
        let meanwhile = interleave(&store, 1, move |store| async move { step.is_done(&*store).await });
        let redeemed = meanwhile.decide("d", move |transaction| {
            let redeemed = open(transaction, &text)?.redeem(transaction, TokenHolder::Unknown)?;
            transaction.decide(decided("d"))?;
            Ok(redeemed)
        });
        let redeemed: Result<_, TokenError> = redeemed.await;
        match redeemed {
            Ok(redeemed) => {
                assert_eq!((expected, redeemed.use_number()), ("", 1), "{step:?}");
                assert!(redeemed.stale().is_some(), "{step:?}: it is told what the token is by now");
            }
            Err(TokenError::Store(error)) => panic!("{step:?}: {error}"),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{step:?}: {error}");
                assert_eq!(
                    store.uses(EntryKind::TokenUse, &id).await.unwrap(),
                    0,
                    "{step:?}: its uses begin anew"
                );
            }
        }
    }
}

pub async fn attack_44_a_name_is_not_taken_for_a_machine_that_was_revoked_meanwhile<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let meanwhile = interleave(&store, 1, |store| async move { revoke(&*store, tpm().as_str()).await });
    let take = async |store: &dyn Store| {
        let taken = store.decide("d", |transaction| {
            revocations::refuse(transaction, &[NAME], &[tpm().as_str()])?;
            enrolment::settle_name(transaction, None, Some(NAME), &tpm())?;
            transaction.decide(decided("d"))?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
        taken.await
    };
    let refused = take(&meanwhile).await.unwrap_err();
    assert!(refused.to_string().contains("was revoked"), "{refused}");
    assert!(enrolment::names(&*store).await.unwrap().is_empty() && decisions(&*store).await.is_empty());
    // Unchanged, it is taken, with both of its entries.
    revocations::restore(&*store, tpm().as_str(), false).await.unwrap();
    take(&*store).await.unwrap();
    assert_eq!(store.list(EntryKind::NameOf).await.unwrap(), [entry(tpm().as_str(), NAME)]);
    assert_eq!(store.pending().await.unwrap(), [without_use("d")]);
    store.settle("d");
    assert_eq!(enrolment::names(&*store).await.unwrap().len(), 1);
}

pub async fn what_is_changed_while_a_machine_is_taken_off_or_released_stays<P: Place>() {
    // Taken off the list, with the pools that it is kept to by then.
    let place = P::empty().await;
    let store = place.open().await;
    enrolment::allow(&*store, ek(), allowed(&[]), false).await.unwrap();
    let narrowed = interleave(&store, 1, |store| async move {
        enrolment::allow(&*store, ek(), allowed(&["infra"]), false).await.unwrap();
    });
    assert!(enrolment::disallow(&narrowed, &ek().identity(), 1000).await.unwrap());
    let listed = || async { store.read(|transaction| enrolment::allowlisted(transaction, ek())).await.unwrap() };
    let removed = |pools: &[&str], at| {
        let removed = Some(at);
        Some(EkRecord { removed, ..allowed(pools) })
    };
    assert_eq!(listed().await, removed(&["infra"], 1000));
    // What is taken off, or forgotten, by somebody else is not taken off again.
    enrolment::allow(&*store, ek(), allowed(&[]), false).await.unwrap();
    let taken_off = interleave(&store, 1, |store| async move {
        assert!(enrolment::disallow(&*store, &ek().identity(), 2000).await.unwrap());
    });
    assert!(!enrolment::disallow(&taken_off, &ek().identity(), 3000).await.unwrap());
    assert_eq!(listed().await, removed(&[], 2000));
    enrolment::allow(&*store, ek(), allowed(&[]), false).await.unwrap();
    let forgotten = interleave(&store, 1, |store| async move {
        assert!(enrolment::forget_entry(&*store, &ek().identity()).await.unwrap());
    });
    assert!(!enrolment::disallow(&forgotten, &ek().identity(), 3000).await.unwrap());
    assert_eq!(listed().await, None);
    // Released, with what is beside it by then; what has gone over to another instance stays there.
    let id = |byte: u8| format!("tpm:{}", HEXLOWER.encode(&[byte; 32]));
    let beside = |id: &str, of: &str| entry(id, &serde_json::to_string(&held(of, 5)).unwrap());
    let (a, b, c) = (id(1), id(2), id(3));
    for tpm in [&a, &b] {
        store.put(EntryKind::Instance, beside(tpm, instance().as_str())).await.unwrap();
    }
    bind(&*store, &held(&a, 5)).await;
    let (gone, come) = (beside(&b, "aws:1/i-2"), beside(&c, instance().as_str()));
    let others = interleave(&store, 1, move |store| {
        let (gone, come) = (gone.clone(), come.clone());
        async move {
            let holder = held(&come.id, 7);
            store.put(EntryKind::Instance, gone).await.unwrap();
            store.put(EntryKind::Instance, come).await.unwrap();
            bind(&*store, &holder).await;
        }
    });
    assert!(instances::release(&others, instance().as_str()).await.unwrap());
    let left = store.list(EntryKind::Instance).await.unwrap();
    assert_eq!(left, [beside(&b, "aws:1/i-2")]);
    assert!(!instances::release(&*store, instance().as_str()).await.unwrap());
}
