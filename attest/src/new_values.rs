//! Whether a machine is refused for nothing but values that no set of the pool's has: what an administrator could accept.

use rustls_pki_types::UnixTime;

use crate::appraisal::{AppraisalPolicy, appraise};
use crate::claims::Claims;
use crate::kinds::{Rulebook, Verifier, each_machine};
use crate::reference_sets::{Generation, NewValue, Origin, ReferenceSet, Time, Values};

/// Most values that a machine may show beyond those that are known: an update of a boot loader and a kernel has some dozen. What differs in more is another
/// machine.
pub const NEW_VALUES_LIMIT: usize = 64;

/// What stands in the place of a generation that nobody has made.
const NAME: &str = "not accepted yet";

/// The values for which these claims are refused, each once and in the order of their keys; `None` if they are not refused, or for anything else as well: by a
/// policy that had these values they would be accepted. One that has lapsed is not among them: somebody has said of it until when it is accepted.
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
        from: Origin::ByHand,
        expires: None,
        values,
    }
}
