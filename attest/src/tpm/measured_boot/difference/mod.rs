//! Comparison of two boots, PCR by PCR, for people who want to know what has changed.

mod html;
mod split;
mod text;

use std::collections::BTreeSet;

use super::MeasuredBoot;
use super::event::BootEvent;

/// Maximum number of events of one PCR in either boot that are aligned; with more, events at the same position form a row. An alignment
/// takes as many steps as the product of both.
const ALIGNED_LIMIT: usize = 1024;

/// Comparison of two boots, by PCR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootDifference<'b> {
    /// Every PCR that either log explains, ascending.
    pub pcrs: Vec<PcrDifference<'b>>,
    /// Number of events in each boot that are over the limit, and not compared.
    pub left_out: (usize, usize),
}

/// Comparison of a PCR in two boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcrDifference<'b> {
    pub pcr: u8,
    /// For each of the two boots, `true` if the log explains the PCR.
    pub explained: (bool, bool),
    pub rows: Vec<DifferenceRow<'b>>,
}

/// Row of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceRow<'b> {
    /// The same digest in both boots.
    Same(&'b BootEvent, &'b BootEvent),
    /// Between the same events, another.
    Changed(&'b BootEvent, &'b BootEvent),
    /// Only in the first.
    First(&'b BootEvent),
    /// Only in the second.
    Second(&'b BootEvent),
}

impl<'b> BootDifference<'b> {
    /// Compares the events of two boots.
    #[must_use]
    pub fn between(first: &'b MeasuredBoot, second: &'b MeasuredBoot) -> Self {
        let pcrs: BTreeSet<u8> = first.explained_pcrs.union(&second.explained_pcrs).copied().collect();
        let of_pcr = |boot: &'b MeasuredBoot, pcr| boot.events.iter().filter(|event| event.pcr == pcr).collect::<Vec<_>>();
        let difference = |pcr| PcrDifference {
            pcr,
            explained: (first.explained_pcrs.contains(&pcr), second.explained_pcrs.contains(&pcr)),
            rows: aligned(&of_pcr(first, pcr), &of_pcr(second, pcr)),
        };
        Self {
            pcrs: pcrs.into_iter().map(difference).collect(),
            left_out: (first.left_out, second.left_out),
        }
    }

    /// Returns whether both boots have the same events in the same PCRs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left_out == (0, 0) && self.pcrs.iter().all(PcrDifference::is_empty)
    }
}

impl PcrDifference<'_> {
    /// Returns whether both boots have the same events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.explained.0 == self.explained.1 && self.rows.iter().all(|row| matches!(row, DifferenceRow::Same(..)))
    }
}

/// Returns the events of both in order, with as many equal digests in common rows as possible.
fn aligned<'b>(first: &[&'b BootEvent], second: &[&'b BootEvent]) -> Vec<DifferenceRow<'b>> {
    let same = |(one, other): &(&&BootEvent, &&BootEvent)| one.digest == other.digest;
    let before = first.iter().zip(second).take_while(same).count();
    let (same_first, first) = first.split_at(before);
    let (same_second, second) = second.split_at(before);
    let after = first.iter().rev().zip(second.iter().rev()).take_while(same).count();
    let (first, last_first) = first.split_at(first.len() - after);
    let (second, last_second) = second.split_at(second.len() - after);

    let pairs = |first: &[&'b BootEvent], second: &[&'b BootEvent]| {
        let pairs = first.iter().zip(second).map(|(one, other)| DifferenceRow::Same(one, other));
        pairs.collect::<Vec<_>>()
    };
    let mut rows = pairs(same_first, same_second);
    rows.extend(middle(first, second));
    rows.extend(pairs(last_first, last_second));
    rows
}

/// Aligns events by their longest common subsequence.
fn middle<'b>(first: &[&'b BootEvent], second: &[&'b BootEvent]) -> Vec<DifferenceRow<'b>> {
    let mut rows = Vec::new();
    if first.len() > ALIGNED_LIMIT || second.len() > ALIGNED_LIMIT {
        pair_rows(first, second, &mut rows);
        return rows;
    }
    // How long the rest's is, from each place in both.
    let width = second.len() + 1;
    let mut lengths = vec![0_u16; (first.len() + 1) * width];
    let at = |row: usize, column: usize| row * width + column;
    for (row, one) in first.iter().enumerate().rev() {
        for (column, other) in second.iter().enumerate().rev() {
            let length = |row, column| lengths.get(at(row, column)).copied().unwrap_or_default();
            let longest = if one.digest == other.digest {
                length(row + 1, column + 1) + 1
            } else {
                length(row + 1, column).max(length(row, column + 1))
            };
            if let Some(place) = lengths.get_mut(at(row, column)) {
                *place = longest;
            }
        }
    }
    let length = |row, column| lengths.get(at(row, column)).copied().unwrap_or_default();
    let (mut row, mut column) = (0, 0);
    let (mut only_first, mut only_second) = (Vec::new(), Vec::new());
    while let (Some(one), Some(other)) = (first.get(row), second.get(column)) {
        if one.digest == other.digest {
            pair_rows(&only_first, &only_second, &mut rows);
            (only_first, only_second) = (Vec::new(), Vec::new());
            rows.push(DifferenceRow::Same(one, other));
            (row, column) = (row + 1, column + 1);
        } else if length(row + 1, column) >= length(row, column + 1) {
            only_first.push(*one);
            row += 1;
        } else {
            only_second.push(*other);
            column += 1;
        }
    }
    only_first.extend(first.iter().skip(row));
    only_second.extend(second.iter().skip(column));
    pair_rows(&only_first, &only_second, &mut rows);
    rows
}

/// Adds rows for different events between two equal ones, pair by pair.
fn pair_rows<'b>(first: &[&'b BootEvent], second: &[&'b BootEvent], rows: &mut Vec<DifferenceRow<'b>>) {
    let both = first.len().min(second.len());
    rows.extend(first.iter().zip(second).map(|(one, other)| DifferenceRow::Changed(one, other)));
    rows.extend(first.iter().skip(both).map(|one| DifferenceRow::First(one)));
    rows.extend(second.iter().skip(both).map(|other| DifferenceRow::Second(other)));
}

impl PcrDifference<'_> {
    /// Returns the remark on the PCR as a whole, if there is one.
    fn remark(&self) -> Option<&'static str> {
        match self.explained {
            (true, true) => None,
            (true, false) => Some("the second log does not match the PCR"),
            (false, true) => Some("the first log does not match the PCR"),
            (false, false) => Some("neither log matches the PCR"),
        }
    }
}
