//! The occasions of a reload.

/// Why pools are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Files have changed.
    Change,
    /// The administrator says so.
    Signal,
    /// Other servers may have something new.
    Revalidation,
}
