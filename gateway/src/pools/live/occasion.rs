//! The occasions of a reload.

/// The reason for reading pools again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadCause {
    /// Files of the pool have changed.
    Change,
    /// The administrator has sent SIGHUP.
    Signal,
    /// Other servers may have a new config.
    Revalidation,
}
