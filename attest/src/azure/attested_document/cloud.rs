use std::fmt;

use serde::{Deserialize, Serialize};

/// A cloud of Azure: each has a metadata service with certificates of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AzureCloud {
    /// The public regions of Azure.
    Public,
    UsGovernment,
    /// Azure operated by 21Vianet in China.
    China,
}

impl AzureCloud {
    /// The domain of its metadata service, under which the signer's certificate has a name.
    #[must_use]
    pub const fn domain(self) -> &'static str {
        match self {
            Self::Public => "metadata.azure.com",
            Self::UsGovernment => "metadata.azure.us",
            Self::China => "metadata.azure.cn",
        }
    }

    /// The label that a name has before the domain: empty for the domain itself, `None` for a name that is not under it.
    pub(super) fn label(self, name: &str) -> Option<&str> {
        let start = name.len().checked_sub(self.domain().len())?;
        let (before, domain) = name.split_at_checked(start)?;
        if !domain.eq_ignore_ascii_case(self.domain()) {
            return None;
        }
        if before.is_empty() { Some("") } else { before.strip_suffix('.') }
    }
}

impl fmt::Display for AzureCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::UsGovernment => "us-government",
            Self::China => "china",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_the_name_below_the_cloud_domain() {
        let check = |name: &str, label: Option<&str>| assert_eq!(AzureCloud::Public.label(name), label, "{name}");
        check("metadata.azure.com", Some(""));
        check("EastUS.Metadata.Azure.com", Some("EastUS"));
        check("*.metadata.azure.com", Some("*"));
        check("a.b.metadata.azure.com", Some("a.b"));
        for other in [
            "",
            "azure.com",
            "evilmetadata.azure.com",
            "metadata.azure.com.evil.example",
            "metadata.azure.us",
            "ämetadata.azure.com",
        ] {
            check(other, None);
        }
    }
}
