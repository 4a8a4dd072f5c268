//! Hints for keys under the wrong heading of a TOML file.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Start of serde's message for an unknown key: `unknown field `key`, expected …`.
const UNKNOWN: &str = "unknown field `";

/// Returns a hint to the headings under which the file `F` has a key that it does not have in this place; empty without such a heading.
/// `sections` are the headings to try, `a.b` for nested ones; keys without a heading are tried too.
#[must_use]
pub fn hint<F: DeserializeOwned>(error: &toml::de::Error, sections: &[&str]) -> String {
    let key = error.message().strip_prefix(UNKNOWN).and_then(|rest| rest.split('`').next());
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return String::new();
    };
    let homes: Vec<String> = [""]
        .iter()
        .chain(sections)
        .filter(|section| has::<F>(section, key))
        .map(|section| {
            if section.is_empty() {
                "the top, before any heading".to_owned()
            } else {
                format!("[{section}]")
            }
        })
        .collect();
    match homes.is_empty() {
        true => String::new(),
        false => format!("; {key} belongs under {}", homes.join(" or ")),
    }
}

/// Returns whether a section has a key. Tries it with a value that no key accepts, and checks that the error is not about an unknown key.
fn has<F: DeserializeOwned>(section: &str, key: &str) -> bool {
    let mut table = Table::from_iter([(key.to_owned(), Value::Float(f64::NAN))]);
    for name in section.rsplit('.').filter(|name| !name.is_empty()) {
        table = Table::from_iter([(name.to_owned(), Value::Table(table))]);
    }
    match Value::Table(table).try_into::<F>() {
        Ok(_) => true,
        Err(error) => !error.message().starts_with(UNKNOWN),
    }
}

/// Returns in what `sections` differs from the headings that the file `F` has, and those within them: nothing if it is complete.
#[must_use]
pub fn incomplete<F: DeserializeOwned>(sections: &[&str]) -> Vec<String> {
    let complaint = |text: &str| {
        let error = toml::from_str::<F>(text).err();
        error.map(|error| error.message().to_owned()).unwrap_or_default()
    };
    let is_section = |name: &str| complaint(&format!("[{name}]\nno_such_key = 1")).starts_with(UNKNOWN);
    let expected = complaint("no_such_key = 1");
    let names: Vec<&str> = expected.split('`').skip(3).step_by(2).collect();
    let mut differences: Vec<String> = names
        .iter()
        .filter(|name| is_section(name) != sections.contains(name))
        .map(|name| format!("{name} is listed: {}", sections.contains(name)))
        .collect();
    differences.extend(
        sections
            .iter()
            .filter(|section| !is_section(section))
            .map(|section| format!("{section} is no section")),
    );
    if names.len() <= 5 {
        differences.push(expected);
    }
    differences
}
