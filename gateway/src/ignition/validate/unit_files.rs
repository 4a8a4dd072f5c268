//! Unit files, exactly as far as Ignition's parser (go-systemd's) refuses them.

/// What the parser calls a line that is too long.
const LINE_MAX_BYTES: usize = 2048;
/// How much it reads ahead: the length of a line is looked at only as far as it was read.
const READ_AHEAD_BYTES: usize = 4096;

/// A unit file that Ignition cannot parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAUnitFile {
    /// `[Unit` to the end.
    #[error("the end of a section's name is expected")]
    Section,
    /// `[Unit] x`.
    #[error("nothing is expected after a section's name")]
    AfterSection,
    /// A line without `=`.
    #[error("an option, as Name=value, is expected on each line")]
    Option,
    /// Longer than systemd reads.
    #[error("lines of less than 2048 bytes are expected")]
    LineTooLong,
}

pub(super) fn check(contents: &str) -> Result<(), NotAUnitFile> {
    let mut reader = Reader {
        text: contents,
        position: 0,
        read: 0,
        line_end: 0,
    };
    let mut step = Some(Step::BeforeSections);
    while let Some(current) = step {
        reader.check_line()?;
        step = reader.step(current)?;
    }
    Ok(())
}

/// What comes next. The parser looks at the length of the line before each.
#[derive(Clone, Copy)]
enum Step {
    /// Anything, until the first section.
    BeforeSections,
    /// The rest of a comment, and the lines it continues on; then back.
    Comment {
        in_section: bool,
    },
    SectionName,
    AfterSectionName,
    InSection,
    OptionName,
    OptionValue,
}

/// The text with the parser's buffer around it: `read` is how far the buffer is filled.
struct Reader<'a> {
    text: &'a str,
    position: usize,
    read: usize,
    /// The first line end at or after the position, as far as it was looked for.
    line_end: usize,
}

impl<'a> Reader<'a> {
    fn step(&mut self, step: Step) -> Result<Option<Step>, NotAUnitFile> {
        Ok(Some(match step {
            Step::BeforeSections => match self.next() {
                None => return Ok(None),
                Some('[') => Step::SectionName,
                Some('#' | ';') => Step::Comment { in_section: false },
                Some(_) => step,
            },
            Step::Comment { in_section } => {
                let continues = |line: &str| line.strip_suffix(' ').unwrap_or(line).ends_with('\\');
                while continues(self.rest_of_line()) {}
                if in_section { Step::InSection } else { Step::BeforeSections }
            }
            Step::SectionName => {
                if !self.through(']').ends_with(']') {
                    return Err(NotAUnitFile::Section);
                }
                Step::AfterSectionName
            }
            Step::AfterSectionName => {
                if !self.rest_of_line().trim().is_empty() {
                    return Err(NotAUnitFile::AfterSection);
                }
                Step::InSection
            }
            Step::InSection => match self.peek() {
                None => return Ok(None),
                Some(first) => {
                    let next = match first {
                        '[' => Step::SectionName,
                        '#' | ';' => Step::Comment { in_section: true },
                        space if space.is_whitespace() => Step::InSection,
                        _ => return Ok(Some(Step::OptionName)),
                    };
                    self.next();
                    next
                }
            },
            Step::OptionName => loop {
                match self.next() {
                    None | Some('\n' | '\r') => return Err(NotAUnitFile::Option),
                    Some('=') => break Step::OptionValue,
                    Some(_) => {}
                }
            },
            Step::OptionValue => {
                let line = self.rest_of_line();
                if line.ends_with('\\') { Step::OptionValue } else { Step::InSection }
            }
        }))
    }

    fn check_line(&mut self) -> Result<(), NotAUnitFile> {
        if self.read.saturating_sub(self.position) < LINE_MAX_BYTES {
            return Ok(());
        }
        if self.line_end < self.position {
            let rest = self.rest();
            self.line_end = self.position.saturating_add(rest.find(['\r', '\n']).unwrap_or(rest.len()));
        }
        if self.line_end.saturating_sub(self.position) >= LINE_MAX_BYTES {
            return Err(NotAUnitFile::LineTooLong);
        }
        Ok(())
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.position..).unwrap_or_default()
    }

    fn fill(&mut self) {
        self.read = self.position.saturating_add(READ_AHEAD_BYTES).min(self.text.len());
    }

    fn peek(&mut self) -> Option<char> {
        let next = self.rest().chars().next()?;
        if self.position.saturating_add(next.len_utf8()) > self.read {
            self.fill();
        }
        Some(next)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.position = self.position.saturating_add(next.len_utf8());
        Some(next)
    }

    /// Up to and with a character, or to the end.
    fn through(&mut self, end: char) -> &'a str {
        let rest = self.rest();
        let length = rest.find(end).map_or(rest.len(), |at| at.saturating_add(end.len_utf8()));
        let after = self.position.saturating_add(length);
        // The buffer is filled until the character is in it; what was looked through in vain is dropped once the buffer is full.
        while self.read < after {
            if self.read.saturating_sub(self.position) >= READ_AHEAD_BYTES {
                self.position = self.read;
            }
            self.fill();
        }
        self.position = after;
        rest.get(..length).unwrap_or_default()
    }

    fn rest_of_line(&mut self) -> &'a str {
        let line = self.through('\n');
        line.strip_suffix('\n').unwrap_or(line)
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
    fn what_the_parser_takes() {
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
    fn what_it_refuses() {
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
    fn lines_are_measured_as_far_as_they_were_read() {
        let with = |before: usize, length: usize| format!("[Unit]\n{}A={}\n", "\n".repeat(before), "b".repeat(length));
        check_it(&with(0, 2045), Ok(()));
        check_it(&with(0, 2046), Err(NotAUnitFile::LineTooLong));
        check_it(&with(0, 100_000), Err(NotAUnitFile::LineTooLong));
        // It begins so late in what was read that the parser does not see its length.
        check_it(&with(3000, 2048), Ok(()));
    }
}
