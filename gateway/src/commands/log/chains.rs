//! Finds where lines that are written in sequence do not verify as one file: the lines before a chain begin again in each file.

use attest_command_line::records::ReadLine;

use crate::commands::output;

/// Places that are named; more are counted.
const NAMED_LIMIT: usize = 20;

/// The chains of lines as they are written.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    lines: u64,
    /// Number of the line that the present file begins with.
    file: u64,
    chain: Option<String>,
    /// The lines with which another file has to begin.
    cuts: Vec<u64>,
}

impl Chains {
    pub(crate) fn line(&mut self, read: &ReadLine<'_>) {
        let place = read.fields.as_ref().and_then(|fields| fields.chain.as_ref());
        self.next(read.begins_file, place.map(|place| (place.id.as_str(), place.begins.is_some())));
    }

    /// Takes the next line, with the id of its chain, if it has one, and whether the chain begins with it.
    fn next(&mut self, begins_file: bool, place: Option<(&str, bool)>) {
        self.lines += 1;
        if begins_file || self.lines == 1 {
            self.file = self.lines;
        }
        let (chain, begins) = place.map_or((None, false), |(chain, begins)| (Some(chain), begins));
        // What stands before a chain in its own file is fixed by it.
        let is_another = begins || self.chain.as_deref() != chain;
        if is_another && self.file > 1 && self.cuts.last() != Some(&self.file) {
            self.cuts.push(self.file);
        }
        self.chain = chain.map(str::to_owned);
    }

    /// Says where the lines have to be cut apart, if they have to be.
    pub(crate) fn print(&self) {
        if self.cuts.is_empty() {
            return;
        }
        let named: Vec<String> = self.cuts.iter().take(NAMED_LIMIT).map(u64::to_string).collect();
        let more = match self.cuts.len().saturating_sub(NAMED_LIMIT) {
            0 => String::new(),
            more => format!(" and before {more} more lines"),
        };
        output::print_note(format_args!(
            "attest-gateway: the output has lines of several chains. To verify it, cut it before line {}{more} (`csplit FILE {}`), and give all pieces to `attest-audit log audit`",
            named.join(", "),
            named.join(" ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_where_a_segment_starts_another_chain() {
        let cuts = |lines: &[(bool, Option<(&str, bool)>)]| {
            let mut chains = Chains::default();
            for (begins_file, place) in lines {
                chains.next(*begins_file, *place);
            }
            chains.cuts
        };
        let (a, b) = (Some(("a", false)), Some(("b", false)));
        let (new_a, new_b) = (Some(("a", true)), Some(("b", true)));
        assert!(cuts(&[(true, new_a), (false, a), (true, a), (true, a)]).is_empty());
        assert_eq!(cuts(&[(true, new_a), (true, new_b), (false, b), (true, b)]), [2]);
        assert_eq!(cuts(&[(true, new_a), (true, b), (true, a)]), [2, 3]);
        // It begins in the middle of a file, and what stands before it there is its own.
        assert!(cuts(&[(true, new_a), (false, new_b)]).is_empty());
        assert_eq!(cuts(&[(true, new_a), (true, a), (false, a), (false, new_b)]), [2]);
        // After lines of an older release: what stands before it is only what its file holds.
        assert!(cuts(&[(true, None), (false, None), (false, new_a)]).is_empty());
        assert_eq!(cuts(&[(true, None), (true, None), (false, new_a)]), [2]);
    }
}
