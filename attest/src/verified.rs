//! Wrapper for verified values: they can be read, but neither made nor changed.

use std::ops::Deref;

use serde::Serialize;

/// Proof that a `T` was verified. Its fields can be read; only a verifier of this crate creates it, and its value is as it was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// Wraps a value; only for verifiers, and for code that joins verified evidence.
    pub(crate) const fn new(verified: T) -> Self {
        Self(verified)
    }

    /// Unwraps the value; only for code that joins verified evidence.
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
