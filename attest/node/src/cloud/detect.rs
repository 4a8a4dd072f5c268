//! Detects the cloud for nodes whose Ignition has no platform setting.
//!
//! The firmware's DMI tables come first: they cost nothing, and every cloud fills them in. Only a machine without them is asked
//! for a metadata server, for a moment.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;

use crate::deadline::Deadline;

use super::metadata::Ask;
use super::{Cloud, MetadataClient, aws, azure, gcp};

/// Folder in which the kernel exposes the DMI tables.
pub const DMI: &str = "/sys/class/dmi/id";
/// Largest DMI text read: DMI's own limit.
const DMI_TEXT_LIMIT_BYTES: u64 = 256;
/// Time limit for finding a metadata server on a machine without DMI tables. On bare metal this time is lost.
const SEARCH_LIMIT: Duration = Duration::from_millis(1500);
/// The largest answer that is waited for while searching: an instance's description.
const SEARCH_ANSWER_LIMIT_BYTES: usize = 64 * 1024;
/// The chassis' asset tag of every virtual machine in Azure. Elsewhere Hyper-V has other tags.
const AZURE_ASSET_TAG: &str = "7783-7084-3265-9085-8269-3286-77";

/// Cloud according to the DMI tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dmi {
    Cloud(Cloud),
    Other,
    /// DMI tables are missing or empty.
    Silent,
}

impl Dmi {
    /// Reads the DMI tables in this folder. Unreadable files count as empty.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let [vendor, product, chassis, board, bios, bios_version] = [
            "sys_vendor",
            "product_name",
            "chassis_asset_tag",
            "board_asset_tag",
            "bios_vendor",
            "bios_version",
        ]
        .map(|name| text(&folder.join(name)));
        // A Chromebook's vendor is Google, too.
        if product == "Google Compute Engine" {
            Self::Cloud(Cloud::Gcp)
        // Xen instances have Xen's names and AWS's build of it.
        } else if vendor == "Amazon EC2" || bios == "Amazon EC2" || (vendor == "Xen" && bios_version.ends_with(".amazon")) {
            Self::Cloud(Cloud::Aws)
        } else if chassis == AZURE_ASSET_TAG {
            Self::Cloud(Cloud::Azure)
        } else if [vendor, product, chassis, board, bios, bios_version].iter().all(String::is_empty) {
            Self::Silent
        } else {
            Self::Other
        }
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(DMI_TEXT_LIMIT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Finds the cloud by its metadata server; `None` if no server answers within [`SEARCH_LIMIT`].
///
/// All clouds use the same address, so the first request without an answer ends the search.
#[must_use]
pub fn search(metadata: &MetadataClient, deadline: Deadline) -> Option<Cloud> {
    let until = deadline.at_most(SEARCH_LIMIT);
    for (cloud, ask) in [
        (Cloud::Gcp, gcp::recognise()),
        (Cloud::Azure, azure::recognise()),
        (Cloud::Aws, aws::recognise()),
    ] {
        let raw = metadata.probe(
            Ask {
                limit_bytes: SEARCH_ANSWER_LIMIT_BYTES,
                ..ask
            },
            until.remaining(),
        )?;
        let recognised = match cloud {
            // Google's servers say so in each answer, and others answer 200 to any path.
            Cloud::Gcp => raw.flavor.as_deref() == Some(gcp::FLAVOR),
            Cloud::Aws | Cloud::Azure => raw.status == StatusCode::OK,
        };
        if recognised {
            return Some(cloud);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expect: Dmi) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        assert_eq!(Dmi::read(folder.path()), expect, "{files:?}");
    }

    #[test]
    fn dmi_tables_name_the_cloud() {
        let (gcp, aws, azure) = (Dmi::Cloud(Cloud::Gcp), Dmi::Cloud(Cloud::Aws), Dmi::Cloud(Cloud::Azure));
        check(&[("sys_vendor", "Google"), ("product_name", "Google Compute Engine")], gcp);
        check(&[("sys_vendor", "Amazon EC2"), ("product_name", "m7i.large")], aws);
        check(&[("bios_vendor", "Amazon EC2")], aws);
        check(&[("sys_vendor", "Xen"), ("bios_version", "4.11.amazon")], aws);
        check(
            &[("sys_vendor", "Microsoft Corporation"), ("chassis_asset_tag", AZURE_ASSET_TAG)],
            azure,
        );
        check(
            &[("sys_vendor", "Microsoft Corporation"), ("product_name", "Virtual Machine")],
            Dmi::Other,
        );
        check(&[("sys_vendor", "Google"), ("product_name", "Eve")], Dmi::Other);
        check(&[("sys_vendor", "Xen"), ("bios_version", "4.11")], Dmi::Other);
        check(&[("sys_vendor", "QEMU")], Dmi::Other);
        check(&[("board_asset_tag", "i-0123456789abcdef0")], Dmi::Other);
        check(&[("sys_vendor", "Not Amazon EC2")], Dmi::Other);
        check(&[("sys_vendor", ""), ("product_name", " ")], Dmi::Silent);
        check(&[], Dmi::Silent);
        assert_eq!(Dmi::read(Path::new("/nonexistent")), Dmi::Silent);
    }
}
