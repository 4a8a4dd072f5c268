//! A unified diff, as `patch` reads it.

use similar::TextDiff;

/// Returns the diff from `old` to `new`, under these names; empty if they are the same. For a new file, `old` is empty.
#[must_use]
pub fn unified([before, after]: [&str; 2], old: &str, new: &str) -> String {
    TextDiff::from_lines(old, new).unified_diff().header(before, after).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Applies a diff to a text; each line has to fit.
    fn applied(old: &str, diff: &str) -> String {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
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
    fn diff_applied_to_the_old_text_yields_new() {
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
        let longer: String = (0..2010).map(|number| format!("line {number}\n")).collect();
        check(&longer, &longer.replace("line 7\n", "x\n"));
    }

    #[test]
    fn diff_matches_the_unified_format() {
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
