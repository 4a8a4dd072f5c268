use std::fmt;

use serde::{Deserialize, Serialize};

/// A virtual machine of Azure: the UUID by which its metadata service, its attested document and its SMBIOS name it. It stays the same as long
/// as the machine exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmId(String);

/// Error for a text that is not a UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a vmId: a UUID, such as b1310a36-d400-46f6-82cb-6217df846586")]
pub struct NotAVmId;

impl TryFrom<String> for VmId {
    type Error = NotAVmId;

    fn try_from(text: String) -> Result<Self, NotAVmId> {
        let lengths = text.split('-').map(str::len);
        let hexadecimal = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if hexadecimal && lengths.eq([8, 4, 4, 4, 12]) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(NotAVmId)
    }
}

impl From<VmId> for String {
    fn from(id: VmId) -> Self {
        id.0
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl VmId {
    /// Returns whether a text is a vmId spelled as in identities: in lower case.
    #[must_use]
    pub fn is_spelled_as_in_identities(text: &str) -> bool {
        Self::try_from(text.to_string()).is_ok_and(|id| id.as_str() == text)
    }

    /// Returns the UUID in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn vm_id(text: &str) -> Result<VmId, NotAVmId> {
        VmId::try_from(text.to_owned())
    }

    #[test]
    fn a_vm_id_is_a_uuid_in_any_case() {
        let id = vm_id("BDD43904-dbf8-4337-8b91-3ADBA92C5EBD").unwrap();
        assert_eq!(id.as_str(), "bdd43904-dbf8-4337-8b91-3adba92c5ebd");
        for wrong in [
            "",
            "bdd43904dbf843378b913adba92c5ebd",
            "bdd43904-dbf8-4337-8b91-3adba92c5eb",
            "bdd43904-dbf8-4337-8b91-3adba92c5ebdd",
            "bdd43904-dbf8-4337-8b91-3adba92c5ebd-",
            "bdd43904-dbf8-4337-8b913-adba92c5ebd",
            "bdd43904-dbf8-4337-8b91-3adba92c5ebg",
            "{bdd43904-dbf8-4337-8b91-3adba92c5ebd}",
            "353c6d9a70bc",
        ] {
            assert_eq!(vm_id(wrong), Err(NotAVmId), "{wrong}");
        }
    }
}
