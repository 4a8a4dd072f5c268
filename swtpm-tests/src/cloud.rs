//! Clouds that a VM can imitate.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestCloud {
    Gcp,
    Aws,
    Azure,
}

impl TestCloud {
    pub const ALL: [Self; 3] = [Self::Gcp, Self::Aws, Self::Azure];

    /// Returns the cloud's name for Ignition (`ignition.platform.id`).
    #[must_use]
    pub fn platform_id(self) -> &'static str {
        match self {
            Self::Gcp => "gcp",
            Self::Aws => "aws",
            Self::Azure => "azure",
        }
    }

    /// Returns the cloud's SMBIOS tables as values of QEMU's option `-smbios`. A node recognizes the cloud by them.
    #[must_use]
    pub fn smbios(self) -> &'static [&'static str] {
        match self {
            Self::Gcp => &[
                "type=0,vendor=Google,version=Google",
                "type=1,manufacturer=Google,product=Google Compute Engine",
                "type=2,manufacturer=Google,product=Google Compute Engine",
            ],
            Self::Aws => &[
                "type=0,vendor=Amazon EC2,version=1.0",
                "type=1,manufacturer=Amazon EC2,product=m6i.large",
                "type=2,manufacturer=Amazon EC2,asset=i-1234567890abcdef0",
                "type=3,manufacturer=Amazon EC2,asset=Amazon EC2",
            ],
            // Hyper-V says the first words on each machine; the asset tag is Azure's alone.
            Self::Azure => &[
                "type=1,manufacturer=Microsoft Corporation,product=Virtual Machine",
                "type=3,manufacturer=Microsoft Corporation,asset=7783-7084-3265-9085-8269-3286-77",
            ],
        }
    }
}
