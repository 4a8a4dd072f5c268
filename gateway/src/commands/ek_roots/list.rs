use std::collections::BTreeMap;
use std::path::Path;

use attest_certificates::ek_import::EkProvenance;
use attest_certificates::ek_roots;
use attest_gateway::settings::Settings;
use attest_system::clock::rfc3339;

use crate::commands::{OutputOption, list};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway ek-roots list\n\nExample: the number of CAs of each manufacturer\n  attest-gateway ek-roots list --output json | jq -r '.[].maker' | sort | uniq -c\n\nA CA of role unusable endorses nothing; `attest-gateway check` has the reason. BUNDLE, BUNDLE SHA-256 and IMPORTED are empty for files\nthat `attest-gateway ek-roots import` did not write."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    format: OutputOption,
}

pub(super) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let folder = ek_roots::load(&settings.ek_roots)?;
    let mut origins: BTreeMap<&Path, Option<EkProvenance>> = BTreeMap::new();
    let mut rows = Vec::new();
    for ca in folder.authorities() {
        let origin = origins.entry(ca.file).or_insert_with(|| EkProvenance::of_file(ca.file));
        let [bundle, sha256, imported] = match origin {
            Some(origin) => [&origin.bundle, &origin.sha256, &origin.imported].map(Clone::clone),
            None => ["-"; 3].map(str::to_owned),
        };
        rows.push([
            ca.maker,
            ca.role.label().to_owned(),
            rfc3339(ca.certificate.not_after),
            ca.certificate.fingerprint.to_string(),
            ca.certificate.subject,
            ca.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bundle,
            imported,
            sha256,
        ]);
    }
    rows.sort();
    list(
        arguments.format,
        [
            "MAKER",
            "ROLE",
            "EXPIRES",
            "SHA-256",
            "SUBJECT",
            "FILE",
            "BUNDLE",
            "IMPORTED",
            "BUNDLE SHA-256",
        ],
        &rows,
    )
}
