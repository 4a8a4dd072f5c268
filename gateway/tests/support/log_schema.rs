//! Check of the attestation log against the schema in the documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// Schema of the log's lines: `docs/attestation-log.schema.json`.
pub static LOG: LazyLock<Schema> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/attestation-log.schema.json");
    Schema::read(serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).unwrap()
});

/// JSON Schema with the keywords that the log's needs. Others are refused, because they would not be checked; so are open objects.
#[derive(Debug)]
pub struct Schema {
    root: Value,
    patterns: BTreeMap<String, Regex>,
}

impl Schema {
    pub fn read(root: Value) -> Result<Self, String> {
        let mut patterns = BTreeMap::new();
        examine(&root, &mut patterns)?;
        Ok(Self { root, patterns })
    }

    /// Verifies a value against this schema. The error gives the reason.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.check_part(&self.root, value, "")
    }

    /// Returns the fields of this definition's object, or of the whole for the empty name, without those that only older releases wrote.
    pub fn fields(&self, definition: &str) -> BTreeSet<&str> {
        let object = match definition {
            "" => &self.root,
            name => &self.root["$defs"][name],
        };
        let fields = object["properties"].as_object().unwrap().iter();
        fields
            .filter(|(_, schema)| schema.get("deprecated").is_none())
            .map(|(name, _)| name.as_str())
            .collect()
    }

    fn check_part(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(keywords) = schema else {
            return if schema == &Value::Bool(true) {
                Ok(())
            } else {
                Err(format!("{at} is not in the schema: {value}"))
            };
        };
        for (keyword, wanted) in keywords {
            self.check_keyword(keywords, keyword, value, at)
                .map_err(|error| error.unwrap_or_else(|| format!("{at} is {value}, and {keyword} is {wanted}")))?;
        }
        Ok(())
    }

    /// Checks one keyword; the error is `Some` with the place if it is about a part of the value.
    fn check_keyword(&self, keywords: &Map<String, Value>, keyword: &str, value: &Value, at: &str) -> Result<(), Option<String>> {
        let wanted = &keywords[keyword];
        let (empty, none) = (Map::new(), Vec::new());
        let members = value.as_object().unwrap_or(&empty);
        let part = |schema: &Value, value: &Value, name: &str| self.check_part(schema, value, &format!("{at}/{name}")).map_err(Some);
        let holds = match keyword {
            "$ref" => return self.check_part(self.definition(wanted), value, at).map_err(Some),
            // What no gateway of this release writes.
            "deprecated" => false,
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|name| is_of_type(value, name)),
                name => is_of_type(value, name),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
            "pattern" => value
                .as_str()
                .is_none_or(|text| self.patterns[wanted.as_str().unwrap()].is_match(text)),
            "required" => wanted
                .as_array()
                .unwrap()
                .iter()
                .all(|name| members.contains_key(name.as_str().unwrap())),
            "oneOf" => {
                let choices = wanted.as_array().unwrap().iter();
                choices.filter(|schema| self.check_part(schema, value, at).is_ok()).count() == 1
            }
            "properties" => {
                for (name, schema) in wanted.as_object().unwrap() {
                    members.get(name).map_or(Ok(()), |value| part(schema, value, name))?;
                }
                true
            }
            "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object).unwrap_or(&empty);
                for (name, value) in members.iter().filter(|(name, _)| !known.contains_key(*name)) {
                    part(wanted, value, name)?;
                }
                true
            }
            "propertyNames" => {
                for name in members.keys() {
                    part(wanted, &Value::String(name.clone()), name)?;
                }
                true
            }
            "items" => {
                for (index, item) in value.as_array().unwrap_or(&none).iter().enumerate() {
                    part(wanted, item, &index.to_string())?;
                }
                true
            }
            _ => true,
        };
        if holds { Ok(()) } else { Err(None) }
    }

    fn definition(&self, reference: &Value) -> &Value {
        let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
        self.root.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in the schema"))
    }
}

/// Verifies that the checker knows all keywords of a schema, and collects its patterns.
fn examine(schema: &Value, patterns: &mut BTreeMap<String, Regex>) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return schema.as_bool().map(drop).ok_or_else(|| format!("no schema: {schema}"));
    };
    if keywords.get("type") == Some(&Value::from("object"))
        && !["additionalProperties", "deprecated"]
            .iter()
            .any(|word| keywords.contains_key(*word))
    {
        return Err(format!("an open object: {schema}"));
    }
    for (keyword, value) in keywords {
        match keyword.as_str() {
            "$schema" | "title" | "description" | "deprecated" | "$ref" | "type" | "const" | "enum" | "minimum" | "required" => {}
            "pattern" => {
                let pattern = value.as_str().ok_or("a pattern that is no text")?;
                patterns.insert(pattern.to_owned(), Regex::new(pattern).map_err(|error| error.to_string())?);
            }
            "items" | "additionalProperties" | "propertyNames" => examine(value, patterns)?,
            "oneOf" => value
                .as_array()
                .ok_or("oneOf is no list")?
                .iter()
                .try_for_each(|schema| examine(schema, patterns))?,
            "properties" | "$defs" => {
                let schemas = value.as_object().ok_or("no object of schemas")?;
                schemas.values().try_for_each(|schema| examine(schema, patterns))?;
            }
            unknown => return Err(format!("the keyword {unknown} is not checked")),
        }
    }
    Ok(())
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("the type {unknown} is not checked"),
    }
}

/// Verifies that every record of a log matches the schema. Lines that a crash has cut off are skipped, and so are a test's filler lines.
pub fn check_log(log: &Path) {
    let text = fs::read(log).unwrap_or_default();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let record = serde_json::from_slice::<Value>(line).ok();
        if let Some(record) = record.filter(|record| record.get("filler").is_none()) {
            let checked = LOG.check(&record);
            assert!(checked.is_ok(), "line {number} of the log: {}\n{record}", checked.unwrap_err());
        }
    }
}
