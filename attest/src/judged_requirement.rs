//! Appraisal for people: the requirements of the rules on PCRs and on the measured boot, one after the other.

use rustls_pki_types::UnixTime;

use crate::appraisal::AppraisalPolicy;
use crate::claims::Claims;
use crate::kinds::{Kind, Rulebook, Verifier, each_kind};
use crate::reject::Reject;

/// A requirement and its result for given claims.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedRequirement {
    /// The kind whose rules require it.
    pub kind: Kind,
    /// The requirement in words.
    pub requirement: String,
    /// `Ok` if the requirement holds, or the reason why not.
    pub holds: Result<(), Reject>,
}

impl AppraisalPolicy {
    /// Each requirement on PCRs and on what was booted, of the kinds that have proven something, in the order in which [`crate::appraise`] looks at them. A
    /// policy requires more than these: which kinds are shown, what clouds say, a condition.
    #[must_use]
    pub fn judged(&self, claims: &Claims, now: UnixTime) -> Vec<JudgedRequirement> {
        let mut all = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if let (Some(proof), Some(rules)) = (&claims.proven.$member, Rulebook::<$room>::rules(self)) {
                    let judged = <$room>::by_requirement(proof, rules, now).into_iter();
                    all.extend(judged.map(|(requirement, holds)| JudgedRequirement {
                        kind: Kind::$kind,
                        requirement,
                        holds: holds.map_err(Reject::from),
                    }));
                }
            };
        }
        each_kind!(one);
        all
    }
}
