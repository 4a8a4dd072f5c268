use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use attest_gateway::settings::Settings;
use attest_machines::enrolment;

use super::super::EVERY_POOL;
use super::super::{output, reading_store};
use super::rows::{COLUMNS, csv_cell};

pub(super) fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let (list, names) = reading_store(&settings, async |store| {
        let names: BTreeMap<String, String> = enrolment::names(store).await?.into_iter().collect();
        Ok((enrolment::allowlist(store).await?, names))
    })?;
    // A name that went to another machine is that one's.
    let is_own = |name: &&str, identity: &str| names.get(*name).is_none_or(|owner| owner == identity);
    let mut text = format!("{}\n", COLUMNS.join(","));
    for (identity, record) in list.into_iter().filter(|(_, record)| record.removed.is_none()) {
        let (ek, instance) = match identity.strip_prefix("tpm:") {
            Some(digest) => (digest, ""),
            None => ("", identity.as_str()),
        };
        let pools = match record.pools.as_slice() {
            [] => EVERY_POOL.to_owned(),
            pools => pools.join(" "),
        };
        let cells = [
            ek,
            "",
            instance,
            record.name.as_deref().filter(|name| is_own(name, &identity)).unwrap_or_default(),
            &pools,
            record.note.as_deref().unwrap_or_default(),
        ];
        text.push_str(&cells.map(csv_cell).join(","));
        text.push('\n');
    }
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}
