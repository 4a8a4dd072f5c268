//! The report on an engine's state.

/// The state of an engine, in sentences for the administrator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    pub good: Vec<String>,
    /// Worth knowing: it works, for now.
    pub warnings: Vec<String>,
}
