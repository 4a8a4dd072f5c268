//! Names of gateways: configured, or the host's.

/// Longest name of a replica, in characters: as long as a host's name can be.
const REPLICA_LIMIT_CHARACTERS: usize = 64;

/// Returns whether this is a valid name of a gateway: one word of a line.
#[must_use]
pub fn is_replica_name(name: &str) -> bool {
    let takes = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= REPLICA_LIMIT_CHARACTERS && name.chars().all(takes)
}

/// Returns the name of a gateway: the configured one, or the host's.
#[must_use]
pub fn replica_name(configured: Option<&str>) -> String {
    configured.map_or_else(host, str::to_owned)
}

/// Returns the host's name, or "gateway" if a line cannot hold that.
pub(super) fn host() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap_or_default();
    if is_replica_name(name) { name } else { "gateway" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_is_a_valid_replica_name() {
        assert!(is_replica_name(&host()));
    }

    #[test]
    fn replica_name_is_one_printable_word() {
        for (name, good) in [
            ("gw-1.example.com", true),
            ("A_b", true),
            ("", false),
            ("a b", false),
            ("a\n", false),
            ("ä", false),
            (&"a".repeat(64), true),
            (&"a".repeat(65), false),
        ] {
            assert_eq!(is_replica_name(name), good, "{name:?}");
        }
    }
}
