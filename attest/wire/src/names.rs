//! Rules for the names of pools and nodes.

/// Longest pool name in bytes; MachineConfigPool names are DNS labels.
pub const POOL_LIMIT_BYTES: usize = 63;
/// Longest node name in bytes: a DNS name.
pub const NAME_LIMIT_BYTES: usize = 253;

/// Returns whether a text can be a pool's name: it goes into paths, logs and store keys, so only characters that Kubernetes allows in
/// names.
#[must_use]
pub fn is_pool_name(text: &str) -> bool {
    text.len() <= POOL_LIMIT_BYTES && is_dns(text)
}

/// Returns whether a text can be a node's name.
#[must_use]
pub fn is_node_name(text: &str) -> bool {
    text.len() <= NAME_LIMIT_BYTES && is_dns(text)
}

fn is_dns(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
}
