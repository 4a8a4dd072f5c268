//! A unified diff, as `patch` reads it.

/// Lines around a change.
const CONTEXT_LINES: usize = 3;
/// Most lines of which the common ones are looked for: the table has the product of both. A pool.toml has some hundred.
const LINES_LIMIT: usize = 2000;

/// One line, and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit<'t> {
    Same(&'t str),
    Gone(&'t str),
    New(&'t str),
}

/// What makes `new` of `old`, under these names; empty if they are the same. Without an old one there is nothing in it.
#[must_use]
pub fn unified(names: [&str; 2], old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let edits = edits(&lines(old), &lines(new));
    let mut text = format!("--- {}\n+++ {}\n", names[0], names[1]);
    for (first, last) in hunks(&edits) {
        text.push_str(&hunk(&edits, first, last));
    }
    text
}

/// With their line feeds: the last may have none.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// By the longest common subsequence.
fn edits<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<Edit<'t>> {
    if old.len() > LINES_LIMIT || new.len() > LINES_LIMIT {
        let gone = old.iter().map(|line| Edit::Gone(line));
        return gone.chain(new.iter().map(|line| Edit::New(line))).collect();
    }
    let width = new.len() + 1;
    let mut common = vec![0_usize; (old.len() + 1) * width];
    let at = |common: &[usize], i: usize, j: usize| common.get(i * width + j).copied().unwrap_or_default();
    for (i, old) in old.iter().enumerate().rev() {
        for (j, new) in new.iter().enumerate().rev() {
            let length = match old == new {
                true => at(&common, i + 1, j + 1) + 1,
                false => at(&common, i + 1, j).max(at(&common, i, j + 1)),
            };
            if let Some(place) = common.get_mut(i * width + j) {
                *place = length;
            }
        }
    }
    let (mut i, mut j, mut edits) = (0, 0, Vec::new());
    loop {
        let edit = match (old.get(i), new.get(j)) {
            (None, None) => return edits,
            (Some(old), Some(new)) if old == new => Edit::Same(old),
            (Some(old), new) if new.is_none() || at(&common, i + 1, j) >= at(&common, i, j + 1) => Edit::Gone(old),
            (_, Some(new)) => Edit::New(new),
            (Some(old), None) => Edit::Gone(old),
        };
        i += usize::from(!matches!(edit, Edit::New(_)));
        j += usize::from(!matches!(edit, Edit::Gone(_)));
        edits.push(edit);
    }
}

/// First and last edit of each hunk: changes that have no more than twice the context between them are in one.
fn hunks(edits: &[Edit<'_>]) -> Vec<(usize, usize)> {
    let changed = edits.iter().enumerate().filter(|(_, edit)| !matches!(edit, Edit::Same(_)));
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for (place, _) in changed {
        let (first, last) = (place.saturating_sub(CONTEXT_LINES), place + CONTEXT_LINES);
        match hunks.last_mut() {
            Some(hunk) if hunk.1 + 1 >= first => hunk.1 = last,
            _ => hunks.push((first, last)),
        }
    }
    hunks
}

fn hunk(edits: &[Edit<'_>], first: usize, last: usize) -> String {
    let of_old = |edits: &[Edit<'_>]| edits.iter().filter(|edit| !matches!(edit, Edit::New(_))).count();
    let of_new = |edits: &[Edit<'_>]| edits.iter().filter(|edit| !matches!(edit, Edit::Gone(_))).count();
    let before = edits.get(..first).unwrap_or_default();
    let within = edits.get(first..edits.len().min(last + 1)).unwrap_or_default();
    let range = |before: usize, within: usize| match within {
        // Of nothing, the line before it.
        0 => format!("{before},0"),
        1 => format!("{}", before + 1),
        more => format!("{},{more}", before + 1),
    };
    let old = range(of_old(before), of_old(within));
    let new = range(of_new(before), of_new(within));
    let mut text = format!("@@ -{old} +{new} @@\n");
    for edit in within {
        let (sign, line) = match edit {
            Edit::Same(line) => (' ', line),
            Edit::Gone(line) => ('-', line),
            Edit::New(line) => ('+', line),
        };
        text.push(sign);
        text.push_str(line);
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    /// What comes of a text by a diff, each of whose lines has to fit.
    fn applied(old: &str, diff: &str) -> String {
        let old = lines(old);
        let (mut new, mut place) = (String::new(), 0);
        let mut diff = diff.split_inclusive('\n').skip(2).peekable();
        while let Some(line) = diff.next() {
            if let Some(range) = line.strip_prefix("@@ -") {
                let (first, rest) = range.split_once(' ').unwrap();
                let (first, count) = first.split_once(',').unwrap_or((first, "1"));
                let first: usize = first.parse().unwrap();
                let until = if count == "0" { first } else { first - 1 };
                new.extend(old[place..until].iter().copied());
                place = until;
                assert!(rest.starts_with('+'), "{line}");
                continue;
            }
            let (sign, text) = line.split_at(1);
            let text = match diff.next_if(|next| next.starts_with('\\')) {
                Some(_) => text.strip_suffix('\n').unwrap(),
                None => text,
            };
            if sign != "+" {
                assert_eq!(old[place], text, "line {place}");
                place += 1;
            }
            if sign != "-" {
                new.push_str(text);
            }
        }
        new.extend(old[place..].iter().copied());
        new
    }

    fn check(old: &str, new: &str) {
        let diff = unified(["old", "new"], old, new);
        assert_eq!(applied(old, &diff), new, "{diff}");
    }

    #[test]
    fn it_makes_the_new_text_of_the_old_one() {
        let long: String = (0..40).map(|number| format!("line {number}\n")).collect();
        check("a\nb\nc\n", "a\nx\nc\n");
        check("a\nb\nc\n", "b\nc\nd\n");
        check("a\nb\nc", "a\nb\nc\n");
        check("a\nb\n", "a\nb");
        check("", "a\n");
        check("a\n", "");
        check(&long, &long.replace("line 3\n", "").replace("line 30\n", "x\ny\n"));
        check(&long, &long.replace("line 3\n", "z\n").replace("line 9\n", "x\ny\n"));
        check(&long, &format!("first\n{long}last\n"));
        let longer: String = (0..LINES_LIMIT + 10).map(|number| format!("line {number}\n")).collect();
        check(&longer, &longer.replace("line 7\n", "x\n"));
    }

    #[test]
    fn it_is_as_others_write_it() {
        let long: String = (1..=20).map(|number| format!("{number}\n")).collect();
        let diff = unified(["a", "b"], &long, &long.replace("4\n", "x\n"));
        assert!(
            diff.starts_with("--- a\n+++ b\n@@ -1,7 +1,7 @@\n 1\n 2\n 3\n-4\n+x\n 5\n 6\n 7\n@@ -11,7 +11,7 @@\n"),
            "{diff}"
        );
        assert_eq!(unified(["a", "b"], "x\n", "x\n"), "");
        assert_eq!(
            unified(["/dev/null", "b"], "", "x\ny\n"),
            "--- /dev/null\n+++ b\n@@ -0,0 +1,2 @@\n+x\n+y\n"
        );
    }
}
