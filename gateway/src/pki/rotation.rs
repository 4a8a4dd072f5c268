//! The rotation of the MCS CA: which stage it is in, by what is in the files, and whether the next step locks nodes out.
//!
//! 1. *settled*: one CA, and it signs the certificate.
//! 2. *introduced*: every new pointer also carries a second CA; the first one still signs.
//! 3. *switched*: the second CA signs. Pointers that carry only the first one no longer work.
//! 4. *settled* again: the first CA has gone from the pointers.

use std::fmt;

use attest_certificates::{Certificate, Fingerprint};

use crate::sightings::Sighting;

/// Default period in which sightings count, in days: machines are added again with the pointer of last month.
pub const WITHIN_DAYS: u64 = 30;

/// Stage of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStage {
    /// There is one CA.
    Settled,
    /// There are two, and the older one signs.
    Introduced,
    /// There are two, and the newer one signs.
    Switched,
    /// There are more than two: these commands have not made them.
    Foreign,
}

impl fmt::Display for RotationStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Settled => "settled",
            Self::Introduced => "introduced",
            Self::Switched => "switched",
            Self::Foreign => "foreign",
        })
    }
}

impl RotationStage {
    /// Returns the command for the next step.
    #[must_use]
    pub const fn next(self) -> Option<&'static str> {
        match self {
            Self::Settled => Some("ca introduce"),
            Self::Introduced => Some("ca switch"),
            Self::Switched => Some("ca retire"),
            Self::Foreign => None,
        }
    }
}

/// Returns the stage, by the CAs of the bundle, the newest last, and by the one of them that signs.
#[must_use]
pub fn stage(authorities: &[Certificate], signed_by: Fingerprint) -> RotationStage {
    stage_of(authorities.iter().map(|authority| authority.fingerprint), signed_by)
}

fn stage_of(authorities: impl Iterator<Item = Fingerprint>, signed_by: Fingerprint) -> RotationStage {
    let mut different: Vec<Fingerprint> = Vec::new();
    for authority in authorities {
        if !different.contains(&authority) {
            different.push(authority);
        }
    }
    match *different.as_slice() {
        [] | [_] => RotationStage::Settled,
        [_, newest] if newest == signed_by => RotationStage::Switched,
        [_, _] => RotationStage::Introduced,
        _ => RotationStage::Foreign,
    }
}

/// Sightings of pointers that the next step would harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Safety {
    /// Pointers that would no longer work, or that perhaps do not work already.
    pub in_the_way: Vec<Sighting>,
    /// Set if any pointer was seen within the time that counts.
    pub any_pointer_seen: bool,
}

impl Safety {
    /// Returns whether no known pointer is in the way of the next step.
    #[must_use]
    pub const fn is_safe(&self) -> bool {
        self.in_the_way.is_empty()
    }
}

/// Judges whether the next step is safe, by the pointers that were seen within the last `within` seconds. `newest` is the CA that the
/// rotation leads to, by the first digits of its fingerprint.
///
/// - Before the switch, a pointer is in the way that does not say that it carries the newest CA: the switch would lock its nodes out.
/// - After it, every node that gets through trusts the newest CA, whatever the pointer says. In the way are pointers that lack it and were
///   not seen since. Their nodes fail in the handshake, where neither pool nor pointer is known yet. Only going back to the old CA would
///   let them in. Once that is retired, pointers no longer carry it, and going back would lock out others.
#[must_use]
pub fn safety(stage: RotationStage, newest: &str, sightings: &[Sighting], now: u64, within: u64) -> Safety {
    let recent = || sightings.iter().filter(|sighting| sighting.last >= now.saturating_sub(within));
    let lacks = |sighting: &Sighting| {
        let carries = sighting.authorities.iter().flatten().any(|authority| authority == newest);
        match stage {
            RotationStage::Settled => false,
            RotationStage::Introduced | RotationStage::Foreign => !carries,
            RotationStage::Switched => !carries && sighting.accepted != newest,
        }
    };
    let mut in_the_way: Vec<Sighting> = recent().filter(|sighting| lacks(sighting)).cloned().collect();
    in_the_way.sort_by(|one, other| (&one.pool, one.last).cmp(&(&other.pool, other.last)));
    Safety {
        in_the_way,
        any_pointer_seen: recent().next().is_some(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use rustls_pki_types::CertificateDer;

    use super::*;

    const NOW: u64 = 1_000_000;
    const WITHIN: u64 = 1000;

    fn ca(byte: u8) -> Fingerprint {
        Fingerprint::of(&CertificateDer::from(vec![byte]))
    }

    #[test]
    fn derives_the_rotation_stage_from_the_files() {
        let check = |authorities: &[u8], signed_by: u8, expected: RotationStage| {
            assert_eq!(
                stage_of(authorities.iter().map(|byte| ca(*byte)), ca(signed_by)),
                expected,
                "{authorities:?} {signed_by}"
            );
        };
        check(&[1], 1, RotationStage::Settled);
        check(&[1, 1], 1, RotationStage::Settled);
        check(&[1, 2], 1, RotationStage::Introduced);
        check(&[1, 2], 2, RotationStage::Switched);
        check(&[1, 2, 1], 2, RotationStage::Switched);
        check(&[1, 2, 3], 1, RotationStage::Foreign);
        check(&[1, 2, 3], 3, RotationStage::Foreign);
    }

    #[test]
    fn a_recent_pointer_sighting_blocks_the_next_step() {
        // What the pointer says, which CA was accepted last, and how long ago.
        let check = |stage: RotationStage, says: Option<&[&str]>, accepted: &str, ago: u64, in_the_way: bool| {
            let sighting = Sighting {
                pool: "worker".to_owned(),
                authorities: says.map(|says| says.iter().map(|ca| (*ca).to_owned()).collect()),
                accepted: accepted.to_owned(),
                first: 0,
                last: NOW - ago,
                peer: "192.0.2.7".to_owned(),
            };
            let found = safety(stage, "new", std::slice::from_ref(&sighting), NOW, WITHIN);
            assert_eq!(found.is_safe(), !in_the_way, "{stage} {sighting:?}");
            assert_eq!(found.any_pointer_seen, ago <= WITHIN, "{sighting:?}");
        };
        use RotationStage::{Foreign, Introduced, Settled, Switched};
        // Nothing is taken away by a further CA.
        check(Settled, None, "old", 0, false);
        check(Settled, Some(&["old"]), "old", 0, false);
        // Before the switch: who does not say that it carries the newest CA.
        check(Introduced, Some(&["old"]), "old", 0, true);
        check(Introduced, Some(&[]), "old", 0, true);
        check(Introduced, None, "old", 0, true);
        check(Introduced, None, "old", WITHIN, true);
        check(Introduced, None, "old", WITHIN + 1, false);
        check(Introduced, Some(&["old", "new"]), "old", 0, false);
        check(Introduced, Some(&["new"]), "old", 0, false);
        check(Foreign, None, "old", 0, true);
        check(Foreign, Some(&["new"]), "old", 0, false);
        // After it: who lacks the newest CA, and has not got through since.
        check(Switched, Some(&["old"]), "old", 0, true);
        check(Switched, None, "old", 0, true);
        check(Switched, None, "old", WITHIN + 1, false);
        check(Switched, None, "new", 0, false);
        check(Switched, Some(&["old"]), "new", 0, false);
        check(Switched, Some(&["old", "new"]), "old", 0, false);
        check(Switched, Some(&["old", "new"]), "new", 0, false);
    }

    #[test]
    fn without_sightings_the_next_steps_safety_is_unknown() {
        for stage in [RotationStage::Settled, RotationStage::Introduced, RotationStage::Switched] {
            let found = safety(stage, "new", &[], NOW, WITHIN);
            assert!(found.is_safe() && !found.any_pointer_seen);
        }
    }
}
