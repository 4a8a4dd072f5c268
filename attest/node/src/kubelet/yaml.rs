//! As much of YAML as kubeconfigs are written in: blocks of mappings and sequences, and scalars on one line. `sigs.k8s.io/yaml` writes no other, by
//! which the Machine Config Server and kubeadm write theirs. Whatever else there is in YAML is refused: nothing is read in another way than the kubelet
//! reads it.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

/// Deepest nesting: a kubeconfig has four levels.
const DEPTH_LIMIT: usize = 16;
/// How a plain scalar does not begin: with what means something else in YAML.
const INDICATORS: &str = "&*!|>%@`{}[],?#\"'-:";

/// A value.
#[derive(Clone, PartialEq, Eq)]
pub enum Yaml {
    Null,
    /// Also numbers and truth values: nobody asks for these.
    Text(Zeroizing<String>),
    Map(BTreeMap<String, Yaml>),
    List(Vec<Yaml>),
}

impl Yaml {
    /// Reads a document.
    ///
    /// # Errors
    /// What is not understood, with its line; nothing of its content, which may be secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let trimmed = line.trim_end();
            let content = trimmed.trim_start_matches(' ');
            if content.is_empty() || content.starts_with('#') || (number == 1 && trimmed == "---") {
                continue;
            }
            if content.starts_with('\t') || matches!(content, "---" | "...") {
                return Err(format!("line {number} is not understood"));
            }
            let indent = trimmed.len() - content.len();
            lines.push(Line { number, indent, content });
        }
        let mut reader = Reader { lines, next: 0 };
        let Some(first) = reader.lines.first() else { return Ok(Self::Null) };
        let indent = first.indent;
        let value = reader.block(indent, 0)?;
        match reader.peek() {
            None => Ok(value),
            Some(line) => Err(line.not_understood()),
        }
    }

    /// A member of a mapping.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Map(members) => members.get(name).filter(|value| **value != Self::Null),
            _ => None,
        }
    }

    /// The text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a sequence; none of anything else.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

#[derive(Clone, Copy)]
struct Line<'t> {
    number: usize,
    indent: usize,
    content: &'t str,
}

impl Line<'_> {
    fn not_understood(&self) -> String {
        format!("line {} is not understood", self.number)
    }

    fn is_item(&self) -> bool {
        self.content == "-" || self.content.starts_with("- ")
    }
}

struct Reader<'t> {
    lines: Vec<Line<'t>>,
    next: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<Line<'t>> {
        self.lines.get(self.next).copied()
    }

    /// What stands at this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Yaml, String> {
        match self.peek() {
            Some(line) if depth > DEPTH_LIMIT || line.indent != indent => Err(line.not_understood()),
            Some(line) if line.is_item() => self.list(indent, depth),
            Some(_) => self.map(indent, depth),
            None => Ok(Yaml::Null),
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Yaml, String> {
        let mut items = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent && line.is_item()) {
            let content = line.content.trim_start_matches('-').trim_start_matches(' ');
            let inner = Line {
                indent: line.indent + line.content.len() - content.len(),
                content,
                ..line
            };
            let item = if content.is_empty() {
                self.next += 1;
                self.nested(indent, depth)?
            } else if inner.is_item() || split(content).is_some() {
                // What follows the dash is the first line of the item's own block.
                if let Some(place) = self.lines.get_mut(self.next) {
                    *place = inner;
                }
                self.block(inner.indent, depth + 1)?
            } else {
                self.next += 1;
                scalar(content).ok_or_else(|| line.not_understood())?
            };
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Yaml, String> {
        let mut members = BTreeMap::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent && !line.is_item()) {
            let (name, value) = split(line.content).ok_or_else(|| line.not_understood())?;
            self.next += 1;
            let value = if value.is_empty() {
                match self.peek() {
                    // A sequence may stand under its name.
                    Some(next) if next.indent == indent && next.is_item() => self.list(indent, depth + 1)?,
                    _ => self.nested(indent, depth)?,
                }
            } else {
                scalar(value).ok_or_else(|| line.not_understood())?
            };
            if members.insert(name, value).is_some() {
                return Err(format!("line {} says something twice", line.number));
            }
        }
        Ok(Yaml::Map(members))
    }

    /// What stands deeper than this, if anything does.
    fn nested(&mut self, indent: usize, depth: usize) -> Result<Yaml, String> {
        match self.peek() {
            Some(next) if next.indent > indent => self.block(next.indent, depth + 1),
            _ => Ok(Yaml::Null),
        }
    }
}

/// A member's name and what stands behind it, if a line is one.
fn split(content: &str) -> Option<(String, &str)> {
    let (name, value) = match content.split_once(": ") {
        Some((name, value)) => (name, value.trim_start()),
        None => (content.strip_suffix(':')?, ""),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    let is_name = !name.is_empty() && !name.starts_with(['-', '.']) && name.bytes().all(is_plain);
    let value = if value.starts_with('#') { "" } else { value };
    is_name.then(|| (name.to_owned(), value))
}

/// A value on one line.
fn scalar(text: &str) -> Option<Yaml> {
    match text {
        "null" | "~" => return Some(Yaml::Null),
        "{}" => return Some(Yaml::Map(BTreeMap::new())),
        "[]" => return Some(Yaml::List(Vec::new())),
        _ => {}
    }
    let text = if let Some(rest) = text.strip_prefix('"') {
        // Without escapes: they stand for what no kubeconfig needs.
        rest.strip_suffix('"').filter(|inner| !inner.contains(['"', '\\']))?
    } else if let Some(rest) = text.strip_prefix('\'') {
        rest.strip_suffix('\'').filter(|inner| !inner.contains('\''))?
    } else {
        let plain = text.split_once(" #").map_or(text, |(plain, _)| plain.trim_end());
        let is_plain = !plain.starts_with(|first: char| INDICATORS.contains(first)) && !plain.contains(": ") && !plain.ends_with(':');
        Some(plain).filter(|_| is_plain)?
    };
    (!text.chars().any(char::is_control)).then(|| Yaml::Text(Zeroizing::new(text.to_owned())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn at<'y>(yaml: &'y Yaml, path: &str) -> Option<&'y str> {
        let step = |yaml: &'y Yaml, name: &str| match name.parse::<usize>() {
            Ok(index) => yaml.items().get(index),
            Err(_) => yaml.get(name),
        };
        path.split(' ').try_fold(yaml, step)?.text()
    }

    fn check(text: &str, path: &str, expect: Option<&str>) {
        let yaml = Yaml::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(at(&yaml, path), expect, "{text}");
    }

    #[test]
    fn blocks_are_read_as_they_are_written() {
        check("a: b", "a", Some("b"));
        check("---\na: b\n", "a", Some("b"));
        check("# x\n\na: b # c\n", "a", Some("b"));
        check("a: b#c", "a", Some("b#c"));
        check("a: \"b: c\"", "a", Some("b: c"));
        check("a: 'b # c'", "a", Some("b # c"));
        check("a: https://x:6443", "a", Some("https://x:6443"));
        check("a:\n  b:\n    c: d\n  e: f", "a b c", Some("d"));
        check("a:\n  b:\n    c: d\n  e: f", "a e", Some("f"));
        // As `sigs.k8s.io/yaml` has sequences, and as others do.
        for text in [
            "a:\n- b: c\n  d:\n    e: f\n- b: g\nh: i",
            "a:\n  - b: c\n    d:\n      e: f\n  - b: g\nh: i",
            "a:\n-\n  b: c\n  d:\n    e: f\n-\n  b: g\nh: i",
            "a:\n-   b: c\n    d:\n      e: f\n-   b: g\nh: i",
        ] {
            check(text, "a 0 b", Some("c"));
            check(text, "a 0 d e", Some("f"));
            check(text, "a 1 b", Some("g"));
            check(text, "h", Some("i"));
        }
        check("- a\n- b", "1", Some("b"));
        check("- - a\n  - b", "0 1", Some("b"));
        check("a: null\nb: {}\nc: []\nd:\ne: f", "e", Some("f"));
        check("a: null", "a", None);
        check("a:", "a", None);
        check("", "a", None);
        check("a: 1", "a", Some("1"));
    }

    #[test]
    fn what_is_not_understood_is_refused_without_saying_what_it_is() {
        for text in [
            "a: &b SECRET",
            "a: *SECRET",
            "a: !!binary SECRET",
            "a: |\n  SECRET",
            "a: >-\n  SECRET",
            "a: {b: SECRET}",
            "a: [SECRET]",
            "a: \"SECRET\\n\"",
            "a: \"SECRET",
            "a: 'SECRET''s'",
            "a: b\n  SECRET",
            "a: b\n c: SECRET",
            "a: b\na: SECRET",
            "\ta: SECRET",
            "a:\n\t- SECRET",
            "a: b: SECRET",
            "SECRET",
            "? SECRET",
            "\"SECRET\": b",
            "a: b\n---\nc: SECRET",
            "a: b\n...\n",
            "- a\nb: SECRET",
            "a: @SECRET",
            "a: %SECRET",
            "a: SEC\u{7}RET",
            " a: b\nc: SECRET",
            "<<: SECRET",
        ] {
            let error = Yaml::parse(text).err().unwrap_or_else(|| panic!("{text:?} is read"));
            assert!(error.starts_with("line ") && !error.contains("SECRET"), "{text:?}: {error}");
        }
        let deep: String = (0..100).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        Yaml::parse(&deep).err().unwrap();
        Yaml::parse(&"- ".repeat(10_000)).err().unwrap();
        Yaml::parse(&"-".repeat(10_000)).err().unwrap();
    }
}
