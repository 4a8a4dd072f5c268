//! What becomes of what does not hold of a measured boot: it refuses; or, where the pool observes, it is kept, and the next is looked at.
//!
//! Which machine it is, whose, whether it answers this challenge, and whether it boots now is never observed: an appraisal asks for that without this.

/// The requirements on a measured boot that are not met, where they do not refuse.
#[derive(Debug)]
pub(crate) struct Observation<E> {
    unmet: Option<Vec<E>>,
}

impl<E> Observation<E> {
    /// What does not hold refuses.
    pub(crate) const fn off() -> Self {
        Self { unmet: None }
    }

    /// What does not hold is kept, if the pool observes.
    pub(crate) fn of(observes: bool) -> Self {
        Self {
            unmet: observes.then(Vec::new),
        }
    }

    /// Takes what was found of one requirement on the measured boot.
    pub(crate) fn heed(&mut self, found: Result<(), E>) -> Result<(), E> {
        match (&mut self.unmet, found) {
            (Some(unmet), Err(error)) => {
                unmet.push(error);
                Ok(())
            }
            (_, found) => found,
        }
    }

    /// What would have refused, in the order in which it was looked at.
    pub(crate) fn unmet(self) -> Vec<E> {
        self.unmet.unwrap_or_default()
    }
}
