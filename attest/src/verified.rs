//! What was verified: it can be read, and neither made nor changed.

use std::ops::Deref;

use serde::Serialize;

/// Proof that a `T` was verified. Its fields are there to read; whoever has one has it from a verifier of this crate, as it was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// For verifiers alone, and for what joins verified evidence with other such.
    pub(crate) const fn new(verified: T) -> Self {
        Self(verified)
    }

    /// For what joins verified evidence with other such.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
