//! What of a condition's text is checked before the parser reads it: so that this has little to read, and nothing to recurse into.

use super::ConditionError;

/// Longest condition, in bytes: several dozen digests, and no file.
pub const SOURCE_LIMIT_BYTES: usize = 4096;

/// Most brackets that are opened, and choices (`?`), each of which is a level of the parser's recursion. Those in strings count too: this reads no
/// strings, so there is none that it could read otherwise than the parser.
pub const OPENINGS_LIMIT: usize = 64;

/// Whether the parser is given a text.
///
/// Characters are ASCII, so that no place in the text is inside of one. There is no `\`: a string is what stands in it; and no `` ` ``, which names
/// fields that no claim has.
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
