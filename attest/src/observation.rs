//! Handling of unmet requirements on a measured boot: each refuses; or, if the pool observes, it is recorded, and the next one is checked.
//!
//! Never only observed are: the machine's identity and owner, the answer to this challenge, and the check that the machine is booting at
//! this moment. An appraisal checks these without this module.

/// The requirements on a measured boot that are not met, where they do not refuse.
#[derive(Debug)]
pub(crate) struct Observation<E> {
    unmet: Option<Vec<E>>,
}

impl<E> Observation<E> {
    /// Creates one in which an unmet requirement refuses.
    pub(crate) const fn off() -> Self {
        Self { unmet: None }
    }

    /// Creates one that records unmet requirements, if the pool observes.
    pub(crate) fn new(observes: bool) -> Self {
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

    /// Returns the recorded refusals, in the order of the checks.
    pub(crate) fn unmet(self) -> Vec<E> {
        self.unmet.unwrap_or_default()
    }
}
