//! Edits of a pool.toml that keep what its administrator has written.

use std::collections::BTreeMap;

use attest::tpm::reference_values::EventLogRule;
use attest::tpm::rules::Check;
use toml_edit::{Array, DocumentMut, Item, Key, Table, TableLike, Value, value};

use super::observed_boots::BootSection;
use super::rules::{PcrSays, ProposedRules};

/// The folder of reference values, where the file names none.
const FOLDER: &str = "reference-values";

/// Reason why a file cannot be edited. The gateway has read it before.
#[derive(Debug, thiserror::Error)]
pub enum PoolFileError {
    #[error("pool.toml: {0}")]
    Toml(#[from] toml_edit::TomlError),
    #[error("pool.toml: {0} has an unexpected form")]
    Form(String),
}

/// The file with these rules, and the folder of reference values that it names; `with_values` is whether it has to name one.
pub(super) fn edited(
    text: &str,
    rules: &BTreeMap<BootSection, ProposedRules>,
    with_values: bool,
) -> Result<(String, String), PoolFileError> {
    let mut document: DocumentMut = text.parse()?;
    for (section, rules) in rules {
        let key = section.key();
        let form = || PoolFileError::Form(format!("[{key}]"));
        let table = document.get_mut(key).and_then(Item::as_table_like_mut).ok_or_else(form)?;
        if let Some(event_log) = rules.event_log {
            set(table, "event_log", event_log_label(event_log).into());
        }
        if rules.only_while_booting {
            set(table, "only_while_booting", true.into());
        }
        if let Some(boot) = &rules.boot {
            set(
                table,
                "boot",
                Value::Array(boot.iter().map(|check| Check::label(*check)).collect::<Array>()),
            );
        }
        if !rules.pcrs.is_empty() {
            let pcrs = table.get_mut("pcrs").and_then(Item::as_table_like_mut).ok_or_else(form)?;
            set_pcrs(pcrs, &rules.pcrs).map_err(|key| PoolFileError::Form(format!("PCR {key:?}")))?;
        }
    }
    let named = document.get("reference_values").and_then(|section| section.get("folder")?.as_str());
    let folder = named.unwrap_or(FOLDER).to_owned();
    if with_values && named.is_none() {
        let mut section = Table::new();
        section.insert("folder", value(FOLDER));
        section.decor_mut().set_prefix("\n");
        document.insert("reference_values", Item::Table(section));
    }
    Ok((document.to_string(), folder))
}

const fn event_log_label(rule: EventLogRule) -> &'static str {
    match rule {
        EventLogRule::Required => "required",
        EventLogRule::Checked => "checked",
        EventLogRule::Recorded => "recorded",
    }
}

/// Puts a value there, with the comments and spaces around the previous one.
fn set(table: &mut dyn TableLike, key: &str, mut new: Value) {
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        *new.decor_mut() = old.decor().clone();
    }
    table.insert(key, Item::Value(new));
}

/// Changes the rules of some PCRs; splits a range of which only a part changes. The error is a key that does not name PCRs.
fn set_pcrs(table: &mut dyn TableLike, says: &BTreeMap<u8, PcrSays>) -> Result<(), String> {
    let before: Vec<(Key, Item)> = table
        .iter()
        .map(|(name, item)| (table.key(name).cloned().unwrap_or_else(|| Key::new(name)), item.clone()))
        .collect();
    let mut after = Vec::new();
    for (key, item) in before {
        let (first, last) = range(key.get()).ok_or_else(|| key.get().to_owned())?;
        if !(first..=last).any(|pcr| says.contains_key(&pcr)) {
            after.push((key, item));
            continue;
        }
        let comments = key.leaf_decor().prefix().cloned();
        for (place, (first, last, says)) in runs(first, last, says).into_iter().enumerate() {
            let mut new = named(first, last);
            if let (0, Some(comments)) = (place, &comments) {
                new.leaf_decor_mut().set_prefix(comments.clone());
            }
            after.push((new, says.map_or_else(|| item.clone(), |says| value(label(says)))));
        }
    }
    let names: Vec<String> = table.iter().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        table.remove(&name);
    }
    for (key, item) in after {
        table.entry_format(&key).or_insert(item);
    }
    Ok(())
}

const fn label(says: PcrSays) -> &'static str {
    match says {
        PcrSays::ReferenceValues => "reference values",
        PcrSays::NotChecked => "not checked",
    }
}

/// Splits a range into runs of neighbours with the same rule.
fn runs(first: u8, last: u8, says: &BTreeMap<u8, PcrSays>) -> Vec<(u8, u8, Option<PcrSays>)> {
    let mut runs: Vec<(u8, u8, Option<PcrSays>)> = Vec::new();
    for pcr in first..=last {
        let says = says.get(&pcr).copied();
        match runs.last_mut() {
            Some((_, end, before)) if *before == says => *end = pcr,
            _ => runs.push((pcr, pcr, says)),
        }
    }
    runs
}

fn named(first: u8, last: u8) -> Key {
    let name = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    // As the sample writes ranges: with quotes.
    let quoted = (first != last).then(|| format!("{name:?}").parse().ok()).flatten();
    quoted.unwrap_or_else(|| Key::new(name))
}

fn range(key: &str) -> Option<(u8, u8)> {
    let (first, last) = key.split_once('-').unwrap_or((key, key));
    let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(text: &str, rules: ProposedRules, with_values: bool, expect: &str) {
        let rules = [(BootSection::Tpm, rules)].into();
        let (edited, _) = edited(text, &rules, with_values).unwrap();
        assert_eq!(edited, expect);
    }

    #[test]
    fn edit_preserves_comments_of_the_administrator() {
        let text = "# Mine.\n[tpm]\n# why\nbank = \"sha256\" # the bank\nboot = [] # nothing yet\n\n[tpm.pcrs]\n# of the firmware\n\"0-7\" = \"not checked\"\n# of GRUB\n8 = \"not checked\" # for now\n\n# More.\n[source]\nmachine_configs = \"m\"\n";
        let rules = ProposedRules {
            event_log: Some(EventLogRule::Required),
            only_while_booting: true,
            boot: Some(vec![Check::SecureBoot, Check::Images]),
            pcrs: [
                (0, PcrSays::ReferenceValues),
                (3, PcrSays::ReferenceValues),
                (4, PcrSays::ReferenceValues),
            ]
            .into(),
        };
        let expect = "# Mine.\n[tpm]\n# why\nbank = \"sha256\" # the bank\nboot = [\"secure-boot\", \"images\"] # nothing yet\nevent_log = \"required\"\nonly_while_booting = true\n\n[tpm.pcrs]\n# of the firmware\n0 = \"reference values\"\n\"1-2\" = \"not checked\"\n\"3-4\" = \"reference values\"\n\"5-7\" = \"not checked\"\n# of GRUB\n8 = \"not checked\" # for now\n\n# More.\n[source]\nmachine_configs = \"m\"\n\n[reference_values]\nfolder = \"reference-values\"\n";
        check(text, rules, true, expect);
        check(text, ProposedRules::default(), false, text);
    }

    #[test]
    fn edits_pool_files_in_any_toml_form() {
        let rules = || ProposedRules {
            boot: Some(vec![Check::SecureBoot]),
            pcrs: [(7, PcrSays::NotChecked)].into(),
            ..ProposedRules::default()
        };
        check(
            "[tpm.pcrs]\n\"0-6\" = \"not checked\"\n7 = [\"ab\"]\n",
            rules(),
            false,
            "[tpm]\nboot = [\"secure-boot\"]\n[tpm.pcrs]\n\"0-6\" = \"not checked\"\n7 = \"not checked\"\n",
        );
        check(
            "tpm = { pcrs = { 0-6 = \"not checked\", 7 = [\"ab\"] } }\n",
            rules(),
            false,
            "tpm = { pcrs = { 0-6 = \"not checked\", 7 = \"not checked\" } , boot = [\"secure-boot\"] }\n",
        );
    }

    #[test]
    fn edit_preserves_the_reference_values_folder() {
        let text = "[tpm.pcrs]\n\"0-7\" = \"not checked\"\n[reference_values]\nfolder = \"../shared\"\n";
        let (edited, folder) = edited(text, &BTreeMap::new(), true).unwrap();
        assert_eq!((edited.as_str(), folder.as_str()), (text, "../shared"));
    }
}
