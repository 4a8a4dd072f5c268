//! A prediction as a set of reference values of one generation.

use attest::HashAlg;
use attest::tpm::prediction::{Digests, Prediction, What};
use serde_json::{Value, json};

/// Longest name of a value, in characters: what a file of reference values takes in bytes is four times as much.
const NAME_LIMIT_CHARACTERS: usize = 64;

/// What a generation says of itself.
pub struct Generation<'a> {
    pub name: &'a str,
    /// RFC 3339.
    pub added: &'a str,
    pub by: &'a str,
    /// Each file that was read, with its SHA-256.
    pub files: &'a [String],
}

/// The file. Of PCR 11 it has what is in it until systemd says that the initrd has begun, and right after: a node attests in its initrd, and what
/// comes later is no boot any more.
pub fn set(prediction: &Prediction, generation: &Generation<'_>) -> Value {
    let digests = |digests: &Digests| {
        let of_bank = |bank: &HashAlg| Some((bank.to_string(), json!(digests.get(*bank)?)));
        Value::Object(prediction.banks().iter().filter_map(of_bank).collect())
    };
    let pcrs = prediction.pcrs().iter().filter(|value| !value.is_behind_the_initrd());
    let pcrs: Vec<Value> = pcrs
        .map(|value| json!({"pcr": value.pcr, "digests": digests(&value.values)}))
        .collect();
    let mut values = serde_json::Map::new();
    values.insert("pcrs".to_owned(), json!(pcrs));
    for event in prediction.events() {
        let (list, value) = match &event.what {
            What::Image(_) => ("images", json!({"name": name(&event.what), "digests": digests(&event.digests)})),
            // A certificate has one digest, whatever the bank is.
            What::Authority(certificate) => ("authorities", json!({"digests": {"sha256": certificate}})),
            What::Command(_) | What::GrubCommandLine(_) => ("grub", json!({"name": name(&event.what), "digests": digests(&event.digests)})),
            What::File(_) | What::Initrd | What::CommandLine(_) => {
                ("files", json!({"name": name(&event.what), "digests": digests(&event.digests)}))
            }
            What::Section(section) => {
                let section = section.to_string();
                let section = section.trim_start_matches('.');
                ("uki_sections", json!({"section": section, "digests": digests(&event.digests)}))
            }
            What::BootOption | What::Separator | What::Variable(_) | What::SectionName(_) | What::Phase(_) => continue,
        };
        let list = values.entry(list).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut()
            && !list.contains(&value)
        {
            list.push(value);
        }
    }
    values.retain(|_, list| list.as_array().is_none_or(|list| !list.is_empty()));
    json!({
        "format": "attest-reference-values/1",
        "generations": [{
            "name": generation.name,
            "added": generation.added,
            "by": generation.by,
            "from": {"predicted": {"files": generation.files}},
            "values": values,
        }],
    })
}

fn name(what: &What) -> String {
    let text = what.to_string();
    match text.char_indices().nth(NAME_LIMIT_CHARACTERS - 1) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
