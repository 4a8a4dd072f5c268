//! Output of an audit, within limits. The writer of a log decides how many lines there are to report, and how long they are.

/// Rows of a table: more than a person reads, and some tens of megabytes.
pub(crate) const ROWS_LIMIT: usize = 200_000;
/// Lines about what is wrong: a log of which more is to be said is not read line by line.
pub(crate) const NOTES_LIMIT: usize = 10_000;
/// Bytes of their texts.
const TEXT_LIMIT_BYTES: usize = 64 * 1024 * 1024;
/// Characters of one text: a line may have sixteen million.
const CELL_LIMIT_CHARACTERS: usize = 4096;

/// Rows of `N` texts. The first are held; what comes after the limits is counted.
#[derive(Debug)]
pub(crate) struct Bounded<const N: usize> {
    limit: usize,
    rows: Vec<[String; N]>,
    bytes: usize,
    more: u64,
}

impl<const N: usize> Bounded<N> {
    /// Returns an empty table that holds at most `limit` rows.
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            limit,
            rows: Vec::new(),
            bytes: 0,
            more: 0,
        }
    }

    pub(crate) fn push(&mut self, row: [String; N]) {
        let row = row.map(shortened);
        let bytes = row.iter().map(String::len).sum::<usize>();
        if self.more > 0 || self.rows.len() >= self.limit || self.bytes.saturating_add(bytes) > TEXT_LIMIT_BYTES {
            self.more += 1;
            return;
        }
        self.bytes += bytes;
        self.rows.push(row);
    }

    pub(crate) fn rows(&self) -> &[[String; N]] {
        &self.rows
    }

    /// Returns the number of rows that came after these.
    pub(crate) const fn more(&self) -> u64 {
        self.more
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(CELL_LIMIT_CHARACTERS) {
        Some((end, _)) => format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_first_rows_and_counts_the_rest() {
        let mut rows = Bounded::new(NOTES_LIMIT);
        for number in 0..NOTES_LIMIT + 3 {
            rows.push([number.to_string()]);
        }
        assert_eq!((rows.rows().len(), rows.more()), (NOTES_LIMIT, 3));
        let mut long = Bounded::new(ROWS_LIMIT);
        let text = "x".repeat(CELL_LIMIT_CHARACTERS);
        let most = TEXT_LIMIT_BYTES / CELL_LIMIT_CHARACTERS;
        for _ in 0..most + 2 {
            long.push([text.clone()]);
        }
        assert_eq!((long.rows().len(), long.more()), (most, 2));
    }

    #[test]
    fn holds_the_beginning_of_a_long_text() {
        let mut rows = Bounded::new(ROWS_LIMIT);
        rows.push(["ä".repeat(CELL_LIMIT_CHARACTERS), "ä".repeat(CELL_LIMIT_CHARACTERS + 1)]);
        let lengths = rows
            .rows()
            .iter()
            .flatten()
            .map(|text| text.chars().filter(|one| *one == 'ä').count());
        assert_eq!(lengths.collect::<Vec<_>>(), [CELL_LIMIT_CHARACTERS; 2]);
        assert!(rows.rows()[0][1].ends_with("… (8194 bytes)"));
    }
}
