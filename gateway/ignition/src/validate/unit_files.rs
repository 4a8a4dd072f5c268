//! Unit files, as far as Ignition's parser (go-systemd's) refuses them.

/// The parser's limit `SYSTEMD_LINE_MAX`, in bytes.
const LINE_LIMIT_BYTES: usize = 2048;

/// A unit file that Ignition cannot parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAUnitFile {
    /// `[Unit` to the end.
    #[error("the end of a section's name is expected")]
    Section,
    /// Text after a section's name, such as `[Unit] x`.
    #[error("nothing is expected after a section's name")]
    AfterSection,
    /// A line without `=`.
    #[error("an option, as Name=value, is expected on each line")]
    Option,
    /// Longer than systemd reads.
    #[error("lines of less than 2048 bytes are expected")]
    LineTooLong,
}

/// Checks a unit file. The parser misses a line that is too long if it begins late in its read-ahead buffer. That depends on the text
/// before the line, so every such line is refused.
pub(super) fn check(contents: &str) -> Result<(), NotAUnitFile> {
    if contents.split(['\r', '\n']).any(|line| line.len() >= LINE_LIMIT_BYTES) {
        return Err(NotAUnitFile::LineTooLong);
    }
    let mut rest = Rest(contents);
    while let Some(letter) = rest.next() {
        match letter {
            '[' => return sections(rest),
            '#' | ';' => rest.comment(),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the sections, from the first section's name on.
fn sections(mut rest: Rest<'_>) -> Result<(), NotAUnitFile> {
    rest.section_name()?;
    while let Some(letter) = rest.next() {
        match letter {
            '[' => rest.section_name()?,
            '#' | ';' => rest.comment(),
            space if space.is_whitespace() => {}
            '=' => rest.option_value(),
            _ => rest.option()?,
        }
    }
    Ok(())
}

/// Text that is not parsed yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn next(&mut self) -> Option<char> {
        let mut letters = self.0.chars();
        let next = letters.next();
        self.0 = letters.as_str();
        next
    }

    /// Takes the text up to a character, or to the end; returns it with `true` if the character was there.
    fn through(&mut self, end: char) -> (&'a str, bool) {
        let (taken, found) = match self.0.split_once(end) {
            Some((taken, rest)) => {
                self.0 = rest;
                (taken, true)
            }
            None => (std::mem::take(&mut self.0), false),
        };
        (taken, found)
    }

    fn line(&mut self) -> &'a str {
        self.through('\n').0
    }

    /// Skips the rest of a comment, with its continuation lines.
    fn comment(&mut self) {
        loop {
            let line = self.line();
            if !line.strip_suffix(' ').unwrap_or(line).ends_with('\\') {
                break;
            }
        }
    }

    fn section_name(&mut self) -> Result<(), NotAUnitFile> {
        if !self.through(']').1 {
            return Err(NotAUnitFile::Section);
        }
        if !self.line().trim().is_empty() {
            return Err(NotAUnitFile::AfterSection);
        }
        Ok(())
    }

    /// Checks an option, after the first letter of its name.
    fn option(&mut self) -> Result<(), NotAUnitFile> {
        let (name, value) = self.0.split_once('=').ok_or(NotAUnitFile::Option)?;
        if name.contains(['\n', '\r']) {
            return Err(NotAUnitFile::Option);
        }
        self.0 = value;
        self.option_value();
        Ok(())
    }

    fn option_value(&mut self) {
        while self.line().ends_with('\\') {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_it(contents: &str, expected: Result<(), NotAUnitFile>) {
        assert_eq!(check(contents), expected, "{contents:?}");
    }

    #[test]
    fn accepts_valid_unit_files() {
        for good in [
            "",
            "\n",
            "anything before = the first section",
            "# [ a comment",
            "[Unit]",
            "[Unit]\n",
            " [Unit] \r\nA=b\r\n",
            "[Unit\nx]\n",
            "[]\n",
            "[Unit]\nA=\n",
            "[Unit]\nA=b",
            "[Unit]\n=b",
            "[Unit]\n  A = b\n",
            "[Unit]\n# a comment\\\nthat goes on\n; and another\nA=b\n",
            "[Unit]\nA=b\\\nthat goes on\n",
            "[Unit]\nA=b\\",
            "[Unit]\nA=b\\\n",
            "[Unit]\nA=b\\\n\nB=c\n",
            "[Unit]\n#\\",
            "[Unit]\n\u{2003}A=ä\n",
        ] {
            check_it(good, Ok(()));
        }
    }

    #[test]
    fn rejects_invalid_unit_files() {
        check_it("[Unit", Err(NotAUnitFile::Section));
        check_it("[Unit]\nA=b\n[", Err(NotAUnitFile::Section));
        check_it("[Unit] x\n", Err(NotAUnitFile::AfterSection));
        check_it("[Unit] # x\n", Err(NotAUnitFile::AfterSection));
        check_it("[Unit]\nA", Err(NotAUnitFile::Option));
        check_it("[Unit]\nA\nB=c\n", Err(NotAUnitFile::Option));
        // Not continued: the backslash is not the last on the line.
        check_it("[Unit]\nA=b\\ \nthat goes on\n", Err(NotAUnitFile::Option));
        check_it("[Unit]\nA=b\\\r\nthat goes on\r\n", Err(NotAUnitFile::Option));
    }

    #[test]
    fn line_length_is_limited() {
        let with = |before: usize, length: usize| format!("[Unit]\n{}A={}\n", "\n".repeat(before), "b".repeat(length));
        check_it(&with(0, 2045), Ok(()));
        check_it(&with(0, 2046), Err(NotAUnitFile::LineTooLong));
        check_it(&with(0, 100_000), Err(NotAUnitFile::LineTooLong));
        check_it(&with(3000, 2046), Err(NotAUnitFile::LineTooLong));
        check_it(&"x".repeat(2048), Err(NotAUnitFile::LineTooLong));
    }
}
