//! Trust anchors of the gateway: the kubelets' client CA, the manufacturers of TPMs, the servers that pools come from.

use std::path::Path;

use attest::UnixTime;
use attest_certificates::ek_roots;
use attest_certificates::{Certificate, source};
use attest_gateway::settings::Settings;
use attest_pool::upstream::UpstreamSettings;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use serde::Deserialize;

use super::{CertificateState, Item, described, place};

/// Beyond so many EK roots, one line for all of them.
const EK_ROOTS_ONE_BY_ONE_LIMIT: usize = 20;

pub(super) fn items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let mut items = kubelet_client_ca(settings, now);
    items.extend(endorsers(settings, now));
    items.extend(upstreams(settings, now));
    items
}

/// Returns the certificates of a file that was made elsewhere; one broken item if they cannot be read.
pub(super) fn file_items(path: &Path, now: UnixTime, item: impl Fn() -> Item) -> Vec<Item> {
    match source::authorities(path) {
        Ok(certificates) => certificates.iter().map(|certificate| with(item(), certificate, now)).collect(),
        Err(error) => vec![item().problem(error)],
    }
}

pub(super) fn with(item: Item, certificate: &Certificate, now: UnixTime) -> Item {
    Item {
        name: format!("{} {}", item.name, certificate.fingerprint.short()),
        state: CertificateState::from_dates(certificate, now),
        made: format!("{}; {}", described(certificate), item.made),
        expires: Some(certificate.not_after),
        ..item
    }
}

/// Returns the state of a manufacturer's certificate. An expired one endorses no TPM, and that is all: the others do.
pub(super) fn manufacturer_state(certificate: &Certificate, now: UnixTime) -> CertificateState {
    match CertificateState::from_dates(certificate, now) {
        CertificateState::Expired => CertificateState::OutOfUse,
        state => state,
    }
}

fn kubelet_client_ca(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let Some(path) = &settings.tls.client_ca else { return Vec::new() };
    file_items(path, now, || Item {
        name: "kubelet client CA".to_owned(),
        state: CertificateState::Good,
        problem: None,
        purpose: "verifies the client certificates of kubelets, for grants.kubelet of the pools",
        made: "by the cluster, which replaces it from time to time".to_owned(),
        place: place(path),
        fails: "approved nodes do not get the full config by their kubelet's certificate",
        expires: None,
        rotates:
            "write the output of this command into the file: oc -n openshift-config-managed get configmap kube-apiserver-client-ca -o yaml"
                .to_owned(),
    })
}

fn endorsers(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let item = |name: &str| Item {
        name: name.to_owned(),
        state: CertificateState::Good,
        problem: None,
        purpose: "endorses TPMs whose EK certificate chains to it",
        made: "by a TPM manufacturer".to_owned(),
        place: place(&settings.ek_roots),
        fails: "TPMs of this manufacturer are endorsed only by the allowlist (`attest-gateway ek add`)",
        expires: None,
        rotates: "put the manufacturer's new certificate into the folder; used within a second, or after SIGHUP".to_owned(),
    };
    let folder = match ek_roots::load(&settings.ek_roots) {
        Ok(folder) => folder,
        Err(error) => return vec![item("EK roots").problem(error)],
    };
    let (mut read, mut broken) = (Vec::new(), Vec::new());
    for refused in &folder.refused {
        broken.push(item("EK root").problem(refused));
    }
    for der in folder.certificates {
        // What cannot be parsed is among the refused already.
        if let Ok(certificate) = Certificate::parse(der) {
            read.push(certificate);
        }
    }
    let mut items = if read.len() > EK_ROOTS_ONE_BY_ONE_LIMIT {
        read.iter()
            .min_by_key(|certificate| certificate.not_after)
            .map_or_else(Vec::new, |first| {
                vec![Item {
                    made: format!("by TPM manufacturers. The first to expire: {}", described(first)),
                    state: manufacturer_state(first, now),
                    expires: Some(first.not_after),
                    ..item(&format!("{} EK roots", read.len()))
                }]
            })
    } else {
        read.iter()
            .map(|certificate| Item {
                state: manufacturer_state(certificate, now),
                ..with(item("EK root"), certificate, now)
            })
            .collect()
    };
    items.extend(broken);
    items
}

/// The part of a `pool.toml` that is needed here.
#[derive(Deserialize)]
struct PoolFileHead {
    upstream: Option<UpstreamSettings>,
}

fn upstreams(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let item = |name: String, place: String| Item {
        name,
        state: CertificateState::Good,
        problem: None,
        purpose: "verifies the Machine Config Server from which the gateway fetches the pool's config",
        made: "by the cluster".to_owned(),
        place,
        fails: "the gateway serves the pool's last config; after a restart it does not serve the pool",
        expires: None,
        rotates: "replace the file that pool.toml names".to_owned(),
    };
    let folders = match attest_pool::folders(&settings.pools) {
        Ok(folders) => folders.pools,
        Err(error) => return vec![item("upstream CAs".to_owned(), place(&settings.pools)).problem(error)],
    };
    let mut items = Vec::new();
    for (pool, folder) in folders {
        let file = folder.join("pool.toml");
        let read = files::read_text(&file, SMALL_FILE_LIMIT_BYTES).map_err(|error| error.to_string());
        let read = read.and_then(|text| toml::from_str::<PoolFileHead>(&text).map_err(|error| error.message().to_owned()));
        let upstream = match read {
            Ok(PoolFileHead { upstream }) => upstream,
            Err(error) => {
                items.push(item(format!("upstream of pool {pool}"), place(&file)).problem(error));
                continue;
            }
        };
        let Some(upstream) = upstream.map(|upstream| upstream.in_folder(&folder)) else {
            continue;
        };
        items.extend(file_items(&upstream.ca, now, || Item {
            rotates: format!(
                "replace the file of [upstream] ca in {}, and send SIGHUP (not needed in the pool's folder). During the change it may hold both CAs",
                file.display()
            ),
            ..item(format!("upstream CA of pool {pool}"), place(&upstream.ca))
        }));
        for key in &upstream.keys_sha256 {
            let digest = key.to_string();
            items.push(Item {
                purpose: "pins the upstream's key: the gateway fetches only from a server with this key",
                made: format!("SHA-256 of the key: {digest}"),
                rotates: "add the next key to keys_sha256 before the upstream changes, and remove the old one afterwards".to_owned(),
                ..item(
                    format!("upstream key of pool {pool} {}", digest.chars().take(16).collect::<String>()),
                    format!("[upstream] keys_sha256 in {}", file.display()),
                )
            });
        }
    }
    items
}
