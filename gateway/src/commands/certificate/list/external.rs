//! Optional trust anchors: the CAs of servers that the gateway asks or sends to, and what clouds sign with.

use std::path::Path;

use attest::UnixTime;
use attest_certificates::{Certificate, folder};
use attest_gateway::settings::Settings;
use attest_store::settings::EngineSettings;

use super::own::{private, public_keys};
use super::trusted::{file_items, manufacturer_state, with};
use super::{CertificateState, Item, place};

pub(super) fn items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let mut items = etcd_items(settings, now);
    if let Some(ca) = &settings.clouds.outgoing.ca {
        items.extend(file_items(ca, now, || Item {
            purpose: "verifies the clouds' servers that the gateway asks (Google's keys, Azure's CAs, AWS STS)",
            fails: "the gateway cannot reach the clouds' servers, and cannot verify evidence that needs them",
            rotates: "replace the file of outgoing.ca, and restart the gateway".to_owned(),
            ..brought("outgoing CA", ca)
        }));
    }
    items.extend(cloud_items(settings, now));
    items
}

/// Returns an item for a file that was made elsewhere.
fn brought(name: &str, path: &Path) -> Item {
    Item {
        name: name.to_owned(),
        state: CertificateState::Good,
        problem: None,
        purpose: "",
        made: "elsewhere".to_owned(),
        place: place(path),
        fails: "",
        expires: None,
        rotates: String::new(),
    }
}

fn etcd_items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    const FAILS: &str = "the gateway cannot reach its store, and serves no nodes";
    let EngineSettings::Etcd(etcd) = &settings.store.engine else {
        return Vec::new();
    };
    let mut items = Vec::new();
    if let Some(ca) = &etcd.ca {
        items.extend(file_items(ca, now, || Item {
            purpose: "verifies the etcd members that hold the store",
            fails: FAILS,
            rotates: "put old and new CA into the file of store.ca, restart the gateway, then remove the old CA".to_owned(),
            ..brought("etcd CA", ca)
        }));
    }
    if let Some((certificate, key)) = &etcd.identity {
        items.extend(file_items(certificate, now, || Item {
            purpose: "authenticates the gateway to etcd",
            fails: FAILS,
            rotates: "replace the files of store.certificate and store.key, and restart the gateway".to_owned(),
            ..brought("etcd client certificate", certificate)
        }));
        let item = Item {
            purpose: "the private key of the etcd client certificate",
            fails: "like the certificate; a thief of the key can read and write the store",
            rotates: "with the certificate".to_owned(),
            ..brought("etcd client key", key)
        };
        items.push(private(item, key, public_keys(key).map(drop)));
    }
    items
}

/// Returns the certificates in the folders of clouds. An expired one is out of use, since others are there.
fn cloud_items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let (gcp, aws, azure) = (&settings.clouds.gcp, &settings.clouds.aws, &settings.clouds.azure);
    let folders = [
        ("GCP vTPM root", &gcp.vtpm_roots),
        ("AWS region certificate", &aws.region_certificates),
        ("AWS Nitro root", &aws.nitro_roots),
        ("Azure root", &azure.roots),
        ("Azure intermediate", &azure.intermediates),
        ("Azure vTPM root", &azure.vtpm_roots),
    ];
    let mut items = Vec::new();
    for (name, path) in folders {
        let item = |name: &str| Item {
            purpose: "verifies evidence of this cloud's machines",
            fails: "evidence that chains to it is refused",
            rotates: "put the cloud's new certificate into the folder, and restart the gateway".to_owned(),
            ..brought(name, path)
        };
        match folder::read(path) {
            Ok(read) => {
                items.extend(read.refused.iter().map(|refused| item(name).problem(refused)));
                for found in read.found {
                    items.push(match Certificate::parse(found.certificate) {
                        Ok(certificate) => Item {
                            state: manufacturer_state(&certificate, now),
                            ..with(item(name), &certificate, now)
                        },
                        Err(problem) => item(name).problem(format!("{}: {problem}", found.path.display())),
                    });
                }
            }
            Err(error) => items.push(item(name).problem(error)),
        }
    }
    items
}
