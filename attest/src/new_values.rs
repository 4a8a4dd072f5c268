//! Detection of machines that are refused only for values that none of the pool's sets has: an administrator could accept these.

use rustls_pki_types::UnixTime;

use crate::appraisal::{AppraisalPolicy, appraise};
use crate::claims::Claims;
use crate::kinds::{Rulebook, Verifier, each_machine};
use crate::reference_sets::{Generation, NewValue, ReferenceSet, Time, ValueOrigin, Values};

/// Maximum number of unknown values that a machine may show: an update of a boot loader and a kernel has some dozen. With more differences
/// it is another machine.
pub const NEW_VALUES_LIMIT: usize = 64;

/// Name and author of the provisional generation that no administrator has created.
const NAME: &str = "not accepted yet";

/// Returns the values for which these claims are refused, each once and in the order of their keys. A policy with these values would accept
/// the claims. Returns `None` if they are not refused, or are refused for other reasons too. Expired values are not among them: an
/// administrator has set their expiry.
#[must_use]
pub fn new_values(claims: &Claims, policy: &AppraisalPolicy, now: UnixTime) -> Option<Vec<NewValue>> {
    let (mut found, mut sets) = (Vec::new(), None);
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let (Some(proof), Some(rules)) = (&claims.proven.$member, Rulebook::<$room>::rules(policy)) {
                found.extend(<$room>::unlisted(proof, rules));
                sets = sets.or(<$room>::reference_sets(rules));
            }
        };
    }
    each_machine!(one);
    found.sort_by_cached_key(NewValue::key);
    found.dedup_by_key(|value| value.key());
    if found.is_empty() || found.len() > NEW_VALUES_LIMIT {
        return None;
    }
    let sets = sets?.and(ReferenceSet::new(vec![as_generation(&found)]).ok()?);
    let widened = policy.clone().with_reference_sets(&sets.into()).ok()?;
    appraise(claims.clone(), &widened, now).ok().map(|_| found)
}

fn as_generation(found: &[NewValue]) -> Generation {
    let mut values = Values::default();
    found.iter().for_each(|value| value.add_to(&mut values));
    Generation {
        name: NAME.to_owned(),
        added: Time { at: 0 },
        by: NAME.to_owned(),
        from: ValueOrigin::ByHand,
        expires: None,
        values,
    }
}
