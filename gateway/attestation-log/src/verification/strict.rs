//! Strict parser of lines, which accepts only the form that a gateway writes. In a line that is not followed by another, nothing else would
//! reveal a change of form.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use super::super::chain::Link;
use super::super::checkpoint::Checkpoint;
use super::super::removal::Removal;

/// Bytes before a line's place.
const PLACE: &[u8] = b",\"chain\":";

/// A line with a place in a chain.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) link: Link,
    pub(super) at: u64,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) removed: Option<Removal>,
}

#[derive(Deserialize)]
struct LineHead {
    at: u64,
    chain: Option<IgnoredAny>,
    checkpoint: Option<Checkpoint>,
    removed: Option<Removal>,
}

/// Parses a line; the error is the reason for which it has no place in a chain.
pub(super) fn read(line: &[u8]) -> Result<Placed, String> {
    serde_json::from_slice::<Unique>(line).map_err(|error| error.to_string())?;
    let head: LineHead = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if head.chain.is_none() {
        return Err("it has no place in a chain".to_owned());
    }
    if has_blanks(line) {
        return Err("it has blanks between its members".to_owned());
    }
    let link = place(line).ok_or("its place in the chain is not at its end as a gateway writes it")?;
    Ok(Placed {
        link,
        at: head.at,
        checkpoint: head.checkpoint,
        removed: head.removed,
    })
}

/// Returns the place at a line's end, if it has the form in which it is written.
fn place(line: &[u8]) -> Option<Link> {
    let at = line.windows(PLACE.len()).rposition(|window| window == PLACE)?;
    let text = line.get(at + PLACE.len()..)?.strip_suffix(b"}")?;
    let link: Link = serde_json::from_slice(text).ok()?;
    (serde_json::to_vec(&link).ok()? == text).then_some(link)
}

/// Returns whether there are blanks between members, which no gateway writes.
fn has_blanks(line: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b' ' | b'\t' | b'\r' if !quoted => return true,
            _ => {}
        }
    }
    false
}

/// Parser of JSON in which no object has a member twice.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            map.next_value::<Self>()?;
            if let Some(name) = names.replace(name) {
                return Err(de::Error::custom(format_args!("it has the member {name:?} twice")));
            }
        }
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(Self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn line(before: &str, place: &str) -> Vec<u8> {
        format!("{{\"at\":1{before},\"chain\":{place}}}").into_bytes()
    }

    #[test]
    fn rejects_json_that_a_gateway_would_not_write() {
        let place = format!(r#"{{"id":"{}","number":1,"previous":"{}"}}"#, "0".repeat(32), "0".repeat(64));
        let reads = |before: &str, place: &str| read(&line(before, place)).map(drop);
        reads("", &place).unwrap();
        reads(r#","reason":"a b\" \\","x":[1,-1,0.5,null,true,{"a":{}},{"a":7}]"#, &place).unwrap();
        for (before, place) in [
            (r#","reason":1,"reason":1"#, place.clone()),
            (r#","x":[{"a":1,"a":1}]"#, place.clone()),
            (r#","chain":{}"#, place.clone()),
            (r#", "x":1"#, place.clone()),
            (r#","x": 1"#, place.clone()),
            ("", format!("{place} ")),
            ("", place.replace(r#""number":1"#, r#""number":1.0"#)),
            ("", place.replace("previous", "previou\\u0073")),
            ("", place.replace(r#"{"id""#, r#"{"x":1,"id""#)),
            ("", format!(r#"{place},"x":1"#)),
            ("", "null".to_owned()),
            ("", "7".to_owned()),
        ] {
            assert!(reads(before, &place).is_err(), "{before} {place}");
        }
        for none in [&b""[..], b"x", b"[]", br#"{"at":1}"#, b"\xff", br#"{"chain":{}}"#] {
            assert!(read(none).is_err());
        }
        assert!(read(format!("{}x", String::from_utf8(line("", &place)).unwrap()).as_bytes()).is_err());
    }
}
