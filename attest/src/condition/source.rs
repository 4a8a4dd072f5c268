//! Checks on a condition's text that run before the parser, so that the parser has little to read and nothing to recurse into.

use super::ConditionError;

/// Longest condition, in bytes: several dozen digests, and no file.
pub const SOURCE_LIMIT_BYTES: usize = 4096;

/// Maximum number of opening brackets and choices (`?`), each of which is a level of the parser's recursion. Those in strings count too:
/// this check does not recognise strings, so it cannot disagree with the parser about them.
pub const OPENINGS_LIMIT: usize = 64;

/// Checks that the parser may be given a text.
///
/// Characters are ASCII, so no position in the text is inside of one. There is no `\`, so a string is exactly the characters written in it.
/// There is no `` ` ``, which names fields that no claim has.
pub(super) fn check(source: &str) -> Result<(), ConditionError> {
    if source.len() > SOURCE_LIMIT_BYTES {
        return Err(ConditionError::TooLong { found: source.len() });
    }
    let (mut line, mut column, mut openings) = (1, 0, 0);
    for character in source.chars() {
        column += 1;
        match character {
            '\n' => (line, column) = (line + 1, 0),
            '\\' | '`' => {
                return Err(ConditionError::Character {
                    found: character,
                    line,
                    column,
                });
            }
            '(' | '[' | '{' | '?' => openings += 1,
            ' '..='~' | '\t' => {}
            found => return Err(ConditionError::Character { found, line, column }),
        }
        if openings > OPENINGS_LIMIT {
            return Err(ConditionError::Openings { line, column });
        }
    }
    Ok(())
}
