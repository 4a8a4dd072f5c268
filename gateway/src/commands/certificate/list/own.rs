//! CA and certificate that nodes see, and the keys behind them: theirs, the seal's and the attestation log's.

use std::fs;
use std::path::{Path, PathBuf};

use attest::{SpkiSha256, UnixTime};
use attest_certificates::{Certificate, Fingerprint, source};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::pki::ServingCertificate;
use attest_gateway::settings::Settings;
use attest_log::LogKey;
use rustls::crypto::aws_lc_rs;

use super::{CertificateState, Item, clean, described, place};

/// Beginnings of the names of CAs that this program or the cluster's operator makes.
const USUAL_NAMES: [&str; 2] = ["CN=machine-config-server-ca@", "CN=attestation-gateway MCS CA"];
const CA_PURPOSE: &str = "trust anchor in every pointer: booting nodes accept only gateways whose certificate it signed";
const CA_FAILS: &str = "booting nodes refuse the gateway: Ignition retries forever, attest-node gives up; running nodes do not notice";
const KEY_PURPOSE: &str = "signs new MCS certificates; the gateway serves without it";

/// Returns all items, in the order of trust.
pub(super) fn items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let serving = ServingCertificate::load(&settings.tls, now);
    let authorities = source::authorities(&settings.tls.ca);
    let signed_by = serving.as_ref().ok().map(ServingCertificate::signed_by);
    let keys = authority_keys(&settings.tls.ca);
    let mut items = Vec::new();
    match &authorities {
        Ok(authorities) => {
            let newest = authorities.last().map(|authority| authority.fingerprint);
            for authority in authorities {
                items.push(ca(settings, authority, signed_by, newest, &keys, now));
            }
        }
        Err(error) => items.push(
            Item {
                name: "MCS CA".to_owned(),
                state: CertificateState::Good,
                problem: None,
                purpose: CA_PURPOSE,
                made: "not known".to_owned(),
                place: place(&settings.tls.ca),
                fails: CA_FAILS,
                expires: None,
                rotates: "restore the file, or create another CA and write new pointers".to_owned(),
            }
            .problem(error),
        ),
    }
    items.push(certificate(settings, serving.as_ref().err().map(ToString::to_string), now));
    items.push(key(settings));
    if settings.tls.serving_of_cluster {
        for item in &mut items {
            item.rotates = "by the cluster's operator, and the gateway follows: cluster.mcs_certificate".to_owned();
        }
    }
    items.extend(ca_keys(settings, authorities.as_deref().unwrap_or_default(), &keys));
    items.push(seal(settings));
    items.push(log(settings));
    items
}

/// Possible file of a CA's private key, with its role, and the public halves if it can be read.
struct AuthorityKey {
    name: &'static str,
    path: PathBuf,
    found: Option<Result<Vec<SpkiSha256>, String>>,
}

fn authority_keys(ca: &Path) -> Vec<AuthorityKey> {
    let stem = ca.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let beside = |word: &str| ca.with_file_name(format!("{stem}{word}.key"));
    [("CA key", ""), ("next CA key", "-next"), ("old CA key", "-old")]
        .into_iter()
        .map(|(name, word)| {
            let path = beside(word);
            let found = fs::symlink_metadata(&path).is_ok().then(|| public_keys(&path));
            AuthorityKey { name, path, found }
        })
        .collect()
}

/// Returns the public halves of the private keys in a file.
pub(super) fn public_keys(path: &Path) -> Result<Vec<SpkiSha256>, String> {
    let provider = aws_lc_rs::default_provider().key_provider;
    let mut public = Vec::new();
    for key in source::keys(path).map_err(|error| error.to_string())? {
        let key = provider
            .load_private_key(key)
            .map_err(|_| format!("{}: a private key of an unknown type", path.display()))?;
        let spki = key
            .public_key()
            .ok_or_else(|| format!("{}: a private key without a public one", path.display()))?;
        public.push(SpkiSha256::from_spki(&spki));
    }
    Ok(public)
}

fn holds(key: &AuthorityKey, authority: &Certificate) -> bool {
    matches!(&key.found, Some(Ok(public)) if public.contains(&authority.key))
}

fn ca(
    settings: &Settings,
    authority: &Certificate,
    signed_by: Option<Fingerprint>,
    newest: Option<Fingerprint>,
    keys: &[AuthorityKey],
    now: UnixTime,
) -> Item {
    let signs = signed_by == Some(authority.fingerprint);
    let is_newest = newest == Some(authority.fingerprint);
    let rotates = match (signs, is_newest) {
        (true, true) => {
            "`attest-gateway ca introduce`, new pointers, `attest-gateway ca switch`, `attest-gateway ca retire`; for the next step: `attest-gateway ca status`"
        }
        (true, false) => {
            "being replaced, and still signs the certificate in use; when all pointers carry the newest CA: `attest-gateway ca switch`"
        }
        (false, true) if signed_by.is_some() => "introduced, and signs nothing yet: write new pointers, then `attest-gateway ca switch`",
        (false, false) if signed_by.is_some() => "replaced, and no longer signs the certificate in use: `attest-gateway ca retire`",
        (false, _) => "unknown while the certificate in use is broken; see `attest-gateway ca status`",
    };
    let usual = USUAL_NAMES.iter().any(|name| authority.subject.contains(name));
    let by = if usual {
        "by this program or the cluster's operator, according to its name"
    } else {
        "elsewhere"
    };
    let key = match keys.iter().find(|key| holds(key, authority)) {
        Some(key) => format!(
            "its private key is in {}: an intruder on this machine can sign with it",
            key.path.display()
        ),
        None => "its private key is not on this machine".to_owned(),
    };
    Item {
        name: format!("MCS CA {}", authority.fingerprint.short()),
        state: CertificateState::from_dates(authority, now),
        problem: None,
        purpose: CA_PURPOSE,
        made: format!("{}; {by}; {key}", described(authority)),
        place: place(&settings.tls.ca),
        fails: CA_FAILS,
        expires: Some(authority.not_after),
        rotates: rotates.to_owned(),
    }
}

fn certificate(settings: &Settings, problem: Option<String>, now: UnixTime) -> Item {
    let chain = source::certificates(&settings.tls.certificate);
    let leaf = chain.as_ref().ok().and_then(|chain| chain.first());
    // The first of the chain that ends takes the rest with it.
    let ends = chain
        .as_ref()
        .ok()
        .and_then(|chain| chain.iter().map(|certificate| certificate.not_after).min());
    let item = Item {
        name: "MCS certificate".to_owned(),
        state: leaf.map_or(CertificateState::Good, |leaf| CertificateState::from_dates(leaf, now)),
        problem: None,
        purpose: "proves to nodes, in each TLS handshake, that this is the gateway of their pointer",
        made: leaf.map_or_else(
            || "not known".to_owned(),
            |leaf| format!("{}; for {}", described(leaf), clean(&leaf.names.join(", "))),
        ),
        place: place(&settings.tls.certificate),
        fails: "booting nodes refuse the gateway until the certificate is renewed; pointers stay valid",
        expires: ends,
        rotates: "`attest-gateway certificate renew`, or replace both files. Used within a second, or after SIGHUP; no connection drops"
            .to_owned(),
    };
    match (problem, &item.state) {
        // What the state says already.
        (Some(_), CertificateState::Expired | CertificateState::NotYetValid) | (None, _) => item,
        (Some(problem), _) => item.problem(problem),
    }
}

fn key(settings: &Settings) -> Item {
    let path = &settings.tls.key;
    let item = Item {
        name: "MCS key".to_owned(),
        state: CertificateState::Good,
        problem: None,
        purpose: "the MCS certificate's private key; evidence is bound to it, so that it cannot be relayed through another server",
        made: "with the certificate".to_owned(),
        place: place(path),
        fails: "the gateway does not start, or keeps the previous pair; a thief of the key can pose as the gateway",
        expires: None,
        rotates: "with the certificate: `attest-gateway certificate renew`".to_owned(),
    };
    private(item, path, public_keys(path).map(drop))
}

/// Completes the item of a private key with the state of its file.
pub(super) fn private(item: Item, path: &Path, read: Result<(), String>) -> Item {
    match (read, source::exposed(path)) {
        (Err(problem), _) => item.problem(problem),
        (Ok(()), Some(exposed)) => item.problem(exposed),
        (Ok(()), None) => item,
    }
}

fn ca_keys(settings: &Settings, authorities: &[Certificate], keys: &[AuthorityKey]) -> Vec<Item> {
    let mut items = Vec::new();
    for key in keys {
        let whose = authorities.iter().find(|authority| holds(key, authority));
        let item = Item {
            name: key.name.to_owned(),
            state: CertificateState::NotHere,
            problem: None,
            purpose: KEY_PURPOSE,
            made: match whose {
                Some(authority) => format!("the private key of MCS CA {}", authority.fingerprint.short()),
                None => format!("belongs to no CA in {}", settings.tls.ca.display()),
            },
            place: place(&key.path),
            fails: "certificates cannot be renewed without it (--ca-key); a thief of the key can pose as the gateway",
            expires: None,
            rotates: "with its CA: `attest-gateway ca introduce`, `attest-gateway ca switch`, `attest-gateway ca retire`. Store it on another machine if you can".to_owned(),
        };
        match &key.found {
            Some(found) => {
                let there = Item {
                    state: CertificateState::Good,
                    ..item
                };
                items.push(private(there, &key.path, found.as_ref().map(drop).map_err(Clone::clone)));
            }
            // Where a single CA's key would be. The others come and go with a rotation.
            None if key.name == "CA key" => items.push(Item {
                made: "elsewhere".to_owned(),
                place: format!("not on this machine (expected at {})", key.path.display()),
                ..item
            }),
            None => {}
        }
    }
    items
}

/// Returns the item of the key that signs the attestation log's checkpoints.
fn log(settings: &Settings) -> Item {
    let path = settings.log_key();
    let item = Item {
        name: "log key".to_owned(),
        state: CertificateState::NotHere,
        problem: None,
        purpose: "Ed25519: signs the checkpoints of the attestation log, and nothing else",
        made: "by the gateway, at its first start".to_owned(),
        place: place(&path),
        fails: "auditors reject checkpoints of a new key until they get its public half; a thief of the key can forge a log",
        expires: None,
        rotates: "by hand: remove the file, restart the gateway, and give auditors both public keys (`attest-gateway log show-key`)"
            .to_owned(),
    };
    if !path.exists() {
        return item;
    }
    let there = Item {
        state: CertificateState::Good,
        ..item
    };
    private(there, &path, LogKey::read(&path).map(drop).map_err(|error| error.to_string()))
}

/// Returns the item of the key that encrypts the seal's keys in the store.
fn store_key(path: &Path) -> Item {
    let item = Item {
        name: "store key".to_owned(),
        state: CertificateState::Good,
        problem: None,
        purpose: "AES-256-GCM: the seal's keys are encrypted by it in the store that replicas share",
        made: "by `attest-gateway store create-key`: 32 random bytes; every replica has the same file".to_owned(),
        place: place(path),
        fails: "a gateway without it does not start; a thief of key and store can forge tickets",
        expires: None,
        rotates: "`attest-gateway store create-key --rotate`, then copy the file to all replicas; if it was stolen, also `attest-gateway seal rotate --drop`".to_owned(),
    };
    private(item, path, SealKeyRing::check_key_file(path).map_err(|error| error.to_string()))
}

fn seal(settings: &Settings) -> Item {
    if let Some(path) = &settings.store_key_file {
        return store_key(path);
    }
    let path = settings.seal_key();
    let item = Item {
        name: "seal key".to_owned(),
        state: CertificateState::NotHere,
        problem: None,
        purpose: "AES-256-GCM: encrypts challenges and tickets",
        made: "by the gateway, at its first start and each month: 32 random bytes".to_owned(),
        place: place(&path),
        fails: "nodes with a ticket are refused, and must boot again; a thief of the key can forge tickets",
        expires: None,
        rotates: "each month by itself, or `attest-gateway seal rotate`; if it was stolen: `attest-gateway seal rotate --drop`, then restart the gateway".to_owned(),
    };
    if !path.exists() {
        return item;
    }
    let there = Item {
        state: CertificateState::Good,
        ..item
    };
    private(there, &path, SealKeyRing::open(&path).map(drop).map_err(|error| error.to_string()))
}
