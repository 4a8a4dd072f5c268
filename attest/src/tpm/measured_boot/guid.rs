//! GUIDs of UEFI (UEFI 2.10, appendix A).

use serde::{Serialize, Serializer};

/// A GUID as UEFI writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 16]);

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a3, a2, a1, a0, b1, b0, c1, c0, rest @ ..] = self.0;
        for byte in [a0, a1, a2, a3] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{b0:02x}{b1:02x}-{c0:02x}{c1:02x}-")?;
        for (place, byte) in rest.iter().enumerate() {
            write!(f, "{}{byte:02x}", if place == 2 { "-" } else { "" })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
