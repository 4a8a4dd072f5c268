//! Values that others computed from the files in images of Fedora CoreOS and RHEL (`compute-pcrs`, from the vectors). The tests compare the
//! events that differ between releases and between platforms with the document's tables, and try the recommended pool on these images.

use std::collections::BTreeMap;

use attest::protocol::HexDigest;
use attest::reference_sets::{EventValue, Values};
use serde_json::Value;

use super::boots::{FEDORA, SBAT_LEVEL_2023, SBAT_LEVEL_2024, on_coreos};
use super::{BANK, Fleet, refused};
use crate::booted::{SHIM, sha256, variable};
use crate::log_builder::{LogBuilder, SHA1};
use crate::vectors::vector;

/// Events of an image on a platform: the PCR and the digest, by name.
type Events = BTreeMap<String, (u64, String)>;

fn events(image: &str) -> Option<Events> {
    let bytes = vector(&format!("fcos-pcrs/{image}/all-pcrs.json"))?;
    let all: Value = serde_json::from_slice(&bytes).unwrap();
    let events = all["pcrs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|pcr| pcr["events"].as_array().unwrap());
    let event = |event: &Value| {
        let name = event["id"].as_str().unwrap().to_owned();
        (name, (event["pcr"].as_u64().unwrap(), event["hash"].as_str().unwrap().to_owned()))
    };
    Some(events.map(event).collect())
}

const FEDORA_42: &str = "qemu-ovmf/fedora-42/fedora-42.20250929.3.0";
const FEDORA_44: &str = "qemu-ovmf/fedora-42/fedora-44.20260111.91.1";
const FEDORA_42_AZURE: &str = "azure/20251013/fedora-42.20250929.3.0";
const RHEL: &str = "qemu-ovmf/fedora-42/rhel-9.6.20250523-0";

#[test]
fn releases_and_platforms_change_only_documented_events() {
    let check = |one: &str, other: &str, expect: &[&str]| {
        let (Some(one), Some(other)) = (events(one), events(other)) else {
            return;
        };
        let mut differ: Vec<&str> = one
            .keys()
            .chain(other.keys())
            .map(String::as_str)
            .filter(|name| one.get(*name) != other.get(*name))
            .collect();
        differ.sort_unstable();
        differ.dedup();
        assert_eq!(differ, expect);
    };
    check(FEDORA_42, FEDORA_44, &["Pcr4Grub", "Pcr4Shim", "Pcr4Vmlinuz", "Pcr7SbatLevel"]);
    check(FEDORA_42, FEDORA_42_AZURE, &["Pcr7Db", "Pcr7Dbx", "Pcr7Kek", "Pcr7Pk"]);
    let of_another_maker = [
        "Pcr14MokList",
        "Pcr4Grub",
        "Pcr4Shim",
        "Pcr4Vmlinuz",
        "Pcr7GrubMokListCert",
        "Pcr7GrubVendorDbCert",
    ];
    check(FEDORA_42, RHEL, &of_another_maker);
}

/// The digests of shim's enforced SBAT levels match these texts.
#[test]
fn the_sbat_levels_are_those_of_the_document() {
    for (image, text) in [(FEDORA_42, SBAT_LEVEL_2023), (RHEL, SBAT_LEVEL_2023), (FEDORA_44, SBAT_LEVEL_2024)] {
        let Some(events) = events(image) else { return };
        let digest = sha256(&variable(SHIM, "SbatLevel", text.as_bytes()));
        assert_eq!(events["Pcr7SbatLevel"].1, data_encoding::HEXLOWER.encode(&digest), "{image}");
    }
}

/// Returns a boot with the digests of an image in PCRs 4 and 14. The vectors do not have the events of PCR 7.
fn boot_of(events: &Events) -> LogBuilder {
    let mut log = on_coreos(FEDORA).log();
    let named = |name: &str| events[name].1.as_str();
    let images = ["Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"].map(named);
    let lists = ["Pcr14MokList", "Pcr14MokListX", "Pcr14MokListTrusted"].map(named);
    // In PCR 4, an action and the separator come first.
    for (pcr, first, digests) in [(4, 2, images), (14, 0, lists)] {
        let of_pcr = log.events.iter_mut().filter(|event| event.pcr == pcr).skip(first);
        let mut digests = digests.iter();
        for event in of_pcr {
            let digest = data_encoding::HEXLOWER.decode(digests.next().unwrap().as_bytes()).unwrap();
            for (algorithm, found) in &mut event.digests {
                if *algorithm != SHA1 {
                    found.clone_from(&digest);
                }
            }
        }
        assert!(digests.next().is_none());
    }
    log
}

fn value(name: &str, events: &Events) -> EventValue {
    EventValue {
        digests: [(
            BANK,
            HexDigest::new(&data_encoding::HEXLOWER.decode(events[name].1.as_bytes()).unwrap()).unwrap(),
        )]
        .into(),
        name: Some(name.to_owned()),
    }
}

#[tokio::test]
async fn recommended_pool_accepts_images_of_two_releases() {
    let (Some(old), Some(new), Some(rhel)) = (events(FEDORA_42), events(FEDORA_44), events(RHEL)) else {
        return;
    };
    let mut fleet = Fleet::from_example("fedora-coreos");
    // Files, texts and certificates: those of the boot that is made up here.
    let mut others: Values = {
        let policy = fleet.policy().await;
        let claims = fleet.claims(&policy, &on_coreos(FEDORA).log());
        attest::tpm::rules::recorded(claims.measured_boot().unwrap(), &BTreeMap::new())
    };
    others.images.clear();
    others.mok.clear();
    let of = |events: &Events| Values {
        images: ["Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"].map(|name| value(name, events)).into(),
        mok: ["Pcr14MokList", "Pcr14MokListX", "Pcr14MokListTrusted"]
            .map(|name| value(name, events))
            .into(),
        ..Values::default()
    };
    fleet.add(others, None);
    fleet.add(of(&old), None);
    assert_eq!(fleet.judged(&boot_of(&old)).await, Ok(()));
    assert_eq!(fleet.judged(&boot_of(&new)).await, refused(4));
    assert_eq!(fleet.judged(&boot_of(&rhel)).await, refused(14));
    fleet.add(of(&new), None);
    assert_eq!(fleet.judged(&boot_of(&new)).await, Ok(()));
    // The new boot loaders with the old kernel.
    let mut mixed = new.clone();
    mixed.insert("Pcr4Vmlinuz".to_owned(), old["Pcr4Vmlinuz"].clone());
    assert_eq!(fleet.judged(&boot_of(&mixed)).await, Ok(()));
}
