//! Comparison of two boots as text, in two columns.

use std::fmt;

use super::split::Split;
use super::{BootDifference, DifferenceRow};
use crate::tpm::measured_boot::event::BootEvent;

/// Width of a column, in characters: two of them fit a terminal of 160.
const COLUMN_CHARS: usize = 72;

/// Number of equal events that are shown around a different one.
const CONTEXT_ROWS: usize = 1;

impl fmt::Display for BootDifference<'_> {
    /// PCRs that differ, with what is around each difference; of the others, that they do not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pcr in &self.pcrs {
            let same = pcr.rows.iter().filter(|row| matches!(row, DifferenceRow::Same(..))).count();
            if pcr.is_empty() {
                writeln!(f, "PCR {}: the same, {same} events", pcr.pcr)?;
                continue;
            }
            let remark = pcr.remark().map(|remark| format!(" ({remark})")).unwrap_or_default();
            writeln!(f, "PCR {}: {} of {} differ{remark}", pcr.pcr, pcr.rows.len() - same, pcr.rows.len())?;
            let differs = |place: usize| pcr.rows.get(place).is_some_and(|row| !matches!(row, DifferenceRow::Same(..)));
            let mut skipped = 0;
            for (place, row) in pcr.rows.iter().enumerate() {
                let shown = (place.saturating_sub(CONTEXT_ROWS)..=place + CONTEXT_ROWS).any(differs);
                if !shown {
                    skipped += 1;
                    continue;
                }
                gap(f, &mut skipped)?;
                line(f, row)?;
            }
            gap(f, &mut skipped)?;
        }
        match self.left_out {
            (0, 0) => Ok(()),
            (first, second) => writeln!(f, "not read, over the limit: {first} events of the first, {second} of the second"),
        }
    }
}

fn gap(f: &mut fmt::Formatter<'_>, skipped: &mut usize) -> fmt::Result {
    match std::mem::take(skipped) {
        0 => Ok(()),
        skipped => writeln!(f, "  … {skipped} the same"),
    }
}

/// Writes both columns; a text that is too long continues on the next line.
fn line(f: &mut fmt::Formatter<'_>, row: &DifferenceRow<'_>) -> fmt::Result {
    let of = |event: &BootEvent, text: &str| wrapped(&format!("{:>3} {text}", event.number));
    let nothing = Vec::new;
    let (mark, first, second) = match row {
        DifferenceRow::Same(one, _) => (' ', of(one, &one.summary()), nothing()),
        DifferenceRow::First(one) => ('<', of(one, &one.whole_summary()), nothing()),
        DifferenceRow::Second(other) => ('>', nothing(), of(other, &other.whole_summary())),
        DifferenceRow::Changed(one, other) => {
            let (first, second) = Split::new(&one.whole_summary(), &other.whole_summary()).shortened();
            ('≠', of(one, &first), of(other, &second))
        }
    };
    for place in 0..first.len().max(second.len()) {
        let cell = |cells: &[String]| cells.get(place).cloned().unwrap_or_default();
        let mark = if place == 0 { mark } else { ' ' };
        let line = format!("  {:<COLUMN_CHARS$} {mark} {}", cell(&first), cell(&second));
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn wrapped(text: &str) -> Vec<String> {
    let text: Vec<char> = text.chars().collect();
    text.chunks(COLUMN_CHARS).map(|part| part.iter().collect()).collect()
}
