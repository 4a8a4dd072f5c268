//! Columns of a list of machines: those of `kubectl get attestednodes`, which `gateway/dist/kubernetes` defines for the API.

/// A column of a list of machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Name of the column, as kubectl takes it; lists are headed by its capitals.
    pub name: &'static str,
    /// Path of the value in a [`super::status::AttestedNodeStatus`] as JSON.
    pub path: &'static str,
    /// Set if only a wide list has it.
    pub is_wide: bool,
}

const fn column(name: &'static str, path: &'static str, is_wide: bool) -> Column {
    Column { name, path, is_wide }
}

/// The columns, in their order.
pub const COLUMNS: [Column; 11] = [
    column("Node", "nodeName", false),
    column("Pool", "attestation.pool", false),
    column("By", "attestation.by", false),
    column("Attested", "attestation.at", false),
    column("Config", "config.set", false),
    column("State", "state", false),
    column("Code", "code", false),
    column("Waiting", "waiting", false),
    column("Identity", "identity", true),
    column("Record", "attestation.record", true),
    column("Config-SHA256", "config.sha256", true),
];
