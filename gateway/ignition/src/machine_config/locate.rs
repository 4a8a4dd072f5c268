//! Line numbers of places within a file. They are for errors, and are looked up only when there is one.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::yaml::yaml_options;

/// Maximum depth of a document. No Kubernetes object is half as deep, and each level takes more stack than reading it did.
const DEPTH_LIMIT: usize = 32;

/// A document, reduced to where its parts are.
enum YamlNode {
    Map(BTreeMap<String, Spanned<YamlNode>>),
    List(Vec<Spanned<YamlNode>>),
    Leaf,
}

/// Returns the line of a part of a file's document, or of the nearest existing part around it; both are counted from 0. `None` if the file
/// cannot be read that way, or is nested too deep.
pub(super) fn line_of(text: &str, document: usize, place: &str) -> Option<u64> {
    let mut reader = text.as_bytes();
    let mut options = yaml_options();
    options.budget = serde_saphyr::budget! { max_depth: DEPTH_LIMIT };
    let found: Spanned<YamlNode> = serde_saphyr::read_with_options(&mut reader, options).nth(document)?.ok()?;
    let mut line = found.referenced.line();
    let mut here = &found;
    for step in place.split('.').filter(|step| !step.is_empty()) {
        let next = match &here.value {
            YamlNode::Map(fields) => fields.get(step),
            YamlNode::List(entries) => step.parse().ok().and_then(|index: usize| entries.get(index)),
            YamlNode::Leaf => None,
        };
        let Some(next) = next else { break };
        here = next;
        line = here.referenced.line();
    }
    (line > 0).then_some(line)
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlNode, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            fields.insert(key, value);
        }
        Ok(YamlNode::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlNode, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            entries.push(entry);
        }
        Ok(YamlNode::List(entries))
    }

    fn visit_bool<E>(self, _: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlNode, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| YamlNode::Leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_line_of_yaml_and_json_fields() {
        let text = "kind: A\n---\n# comment\nkind: B\nspec:\n  list:\n  - a: 1\n  - a: 2\n    b: 3\n";
        let check = |document, place, expected| assert_eq!(line_of(text, document, place), expected, "{document} {place:?}");
        check(0, "", Some(1));
        check(1, "", Some(4));
        check(1, "spec.list.1.b", Some(9));
        check(1, "spec.list.0.a", Some(7));
        check(1, "spec.list.7.a", Some(7));
        check(1, "nowhere", Some(4));
        check(2, "", None);
        assert_eq!(line_of("{\n\"a\": [\n1,\n {\"b\": null}]}", 0, "a.1.b"), Some(4));
        assert_eq!(line_of("{", 0, "a"), None);
        let deep = |depth: usize| line_of(&format!("a:\n  b: {}{}", "[".repeat(depth), "]".repeat(depth)), 0, "a.b");
        assert_eq!([deep(DEPTH_LIMIT - 2), deep(DEPTH_LIMIT - 1), deep(100_000)], [Some(2), None, None]);
    }
}
