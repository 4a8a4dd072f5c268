//! Survey of the closed segments, the oldest first, and of those that are beyond the rule.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::super::reading::try_rotated;
use super::super::removal::RetentionCause;
use super::super::segment_name::{SegmentName, written_at};
use super::super::segments::{beginning, named};
use super::{RetentionError, RetentionRule};

/// A closed segment of this gateway's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnSegment {
    pub(super) path: PathBuf,
    /// Part of its name after that of the log, without the ending of compressed files.
    pub(super) name: String,
    /// Size on the disk, in bytes.
    pub(super) bytes: u64,
    /// Second from which its age counts: the time when the file after it was begun, or any file before it, whatever the clock said in
    /// between. Its own lines may be younger, if the clock was ahead.
    pub(super) ended: u64,
    /// Set if it exists both compressed and uncompressed.
    pub(super) twice: bool,
}

/// All closed segments of a log.
#[derive(Debug, Default)]
pub(super) struct Survey {
    segments: Vec<OwnSegment>,
    /// Size of all of them and the log that is written, in bytes.
    bytes: u64,
    /// Errors of files with the name of a segment that cannot be read as one: their contents are unknown, so they stay.
    pub(super) odd: Vec<RetentionError>,
}

/// A segment that is beyond the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) segment: OwnSegment,
    /// Set if there is too much of the log, however young this segment is.
    by_size: bool,
}

impl Due {
    /// Returns the rule that it exceeds, if its youngest line was written at this second.
    pub(super) fn is_past(&self, rule: RetentionRule, latest: u64, now: u64) -> Option<RetentionCause> {
        let is_old = is_past_age(rule, latest.max(self.segment.ended), now);
        let by_size = self.by_size.then_some(RetentionCause::Size);
        is_old.then_some(RetentionCause::Age).or(by_size)
    }
}

fn is_past_age(rule: RetentionRule, latest: u64, now: u64) -> bool {
    rule.age
        .is_some_and(|age| now.checked_sub(latest).is_some_and(|old| old > age.as_secs()))
}

impl Survey {
    pub(super) fn read(log: &Path) -> Result<Self, RetentionError> {
        // What is closed from now on is young.
        let named = named(log).map_err(RetentionError::at(log))?;
        let parts = try_rotated(log).map_err(RetentionError::at(log))?;
        let (parts, unreadable) = (parts.files, parts.unreadable);
        let first = beginning(log).map_err(RetentionError::at(log))?;
        let now = first.and_then(|first| written_at(&first)).unwrap_or(0);
        let began: Vec<u64> = parts.iter().map(|part| part.began()).chain([now]).collect();
        let mut bytes = length(log)?;
        let (mut order, mut found) = (Vec::new(), BTreeMap::<String, OwnSegment>::new());
        for (index, part) in parts.iter().enumerate() {
            let Some(name) = own_name(log, part.path()) else { continue };
            let length = length(part.path())?;
            bytes = bytes.saturating_add(length);
            let ended = began.iter().take(index + 2).max().copied().unwrap_or(0);
            if let Some(there) = found.get_mut(&name) {
                (there.ended, there.bytes) = (ended, there.bytes.saturating_add(length));
                continue;
            }
            order.push(name.clone());
            let path = part.path().to_owned();
            // Whatever either holds so far.
            let twice = other_name(&path).is_file();
            let segment = OwnSegment {
                path,
                name: name.clone(),
                bytes: length,
                ended,
                twice,
            };
            found.insert(name, segment);
        }
        let mut odd = Vec::new();
        for path in named.into_iter().map(|segment| segment.path) {
            let is_read = own_name(log, &path).is_some_and(|name| found.contains_key(&name));
            let problem = match fs::metadata(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => error.to_string(),
                Ok(metadata) if !metadata.is_file() => "it is no file".to_owned(),
                Ok(_) if is_read => continue,
                Ok(_) => match unreadable.iter().find(|error| error.path == path) {
                    Some(error) => error.source.to_string(),
                    None => "it does not begin with a record".to_owned(),
                },
            };
            odd.push(RetentionError::Odd { path, problem });
        }
        let segments = order.iter().filter_map(|name| found.remove(name)).collect();
        Ok(Self { segments, bytes, odd })
    }

    /// Returns the segments beyond the rule at this second, the oldest first; some of them are only confirmed by their lines.
    pub(super) fn past(&self, rule: RetentionRule, now: u64) -> Vec<Due> {
        let (mut past, mut left) = (Vec::new(), self.bytes);
        for segment in &self.segments {
            let by_size = rule.bytes.is_some_and(|bytes| left > bytes);
            if !by_size && !is_past_age(rule, segment.ended, now) {
                break;
            }
            left = left.saturating_sub(segment.bytes);
            past.push(Due {
                segment: segment.clone(),
                by_size,
            });
        }
        past
    }
}

fn own_name(log: &Path, path: &Path) -> Option<String> {
    let rest = path.file_name()?.to_str()?.strip_prefix(log.file_name()?.to_str()?)?;
    SegmentName::parse(rest)?;
    let name = rest.strip_prefix('.')?;
    Some(name.strip_suffix(".gz").unwrap_or(name).to_owned())
}

/// Returns the uncompressed name of a compressed segment, and the compressed name of another.
fn other_name(path: &Path) -> PathBuf {
    if path.extension().is_some_and(|extension| extension == "gz") {
        path.with_extension("")
    } else {
        path.with_added_extension("gz")
    }
}

fn length(path: &Path) -> Result<u64, RetentionError> {
    Ok(fs::symlink_metadata(path).map_err(RetentionError::at(path))?.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns segments of 10 bytes that ended at these seconds, and a log of 5.
    fn survey(ended: &[u64]) -> Survey {
        let segment = |ended: &u64| OwnSegment {
            path: PathBuf::new(),
            name: ended.to_string(),
            bytes: 10,
            ended: *ended,
            twice: false,
        };
        Survey {
            segments: ended.iter().map(segment).collect(),
            bytes: 5 + 10 * u64::try_from(ended.len()).unwrap(),
            odd: Vec::new(),
        }
    }

    const fn rule(age: Option<u64>, bytes: Option<u64>) -> RetentionRule {
        let age = match age {
            Some(age) => Some(Duration::from_secs(age)),
            None => None,
        };
        RetentionRule { age, bytes }
    }

    /// Returns how many segments are beyond the rule at second 1000.
    fn past(ended: &[u64], rule: RetentionRule) -> usize {
        survey(ended).past(rule, 1000).len()
    }

    #[test]
    fn segments_past_age_or_size_are_due() {
        let ended = [100, 200, 900];
        assert_eq!(past(&ended, rule(None, None)), 0);
        for (age, count) in [(901, 0), (900, 0), (899, 1), (799, 2), (99, 3), (0, 3)] {
            assert_eq!(past(&ended, rule(Some(age), None)), count, "{age}");
        }
        for (bytes, count) in [(36, 0), (35, 0), (34, 1), (25, 1), (24, 2), (15, 2), (14, 3), (5, 3), (0, 3)] {
            assert_eq!(past(&ended, rule(None, Some(bytes))), count, "{bytes}");
        }
        assert_eq!(past(&ended, rule(Some(899), Some(20))), 2);
        assert_eq!(past(&[2000, 2000], rule(Some(0), None)), 0, "of the future");
        assert_eq!(past(&[2000, 100], rule(Some(0), None)), 0, "behind one that stays");
    }

    #[test]
    fn younger_lines_defer_removal_by_age_only() {
        let due = |rule: RetentionRule| survey(&[100]).past(rule, 1000).remove(0);
        let age = rule(Some(500), None);
        for (latest, expected) in [
            (0, Some(RetentionCause::Age)),
            (499, Some(RetentionCause::Age)),
            (500, None),
            (5000, None),
        ] {
            assert_eq!(due(age).is_past(age, latest, 1000), expected, "{latest}");
        }
        let both = rule(Some(500), Some(1));
        assert_eq!(due(both).is_past(both, 5000, 1000), Some(RetentionCause::Size));
        assert_eq!(due(both).is_past(both, 0, 1000), Some(RetentionCause::Age));
        // By its lines it is old, and it was written until just now.
        let young = survey(&[900]).past(both, 1000).remove(0);
        assert_eq!(young.is_past(both, 0, 1000), Some(RetentionCause::Size));
    }
}
