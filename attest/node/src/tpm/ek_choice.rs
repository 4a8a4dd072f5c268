//! The choice among the kinds of endorsement keys.

use std::str::FromStr;

/// The kind of EK to attest with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EkChoice {
    /// The first with a certificate; RSA-2048 if none has one.
    #[default]
    Auto,
    /// An RSA key, of any size.
    Rsa,
    /// An elliptic-curve key, of any curve.
    Ecc,
}

impl EkChoice {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rsa => "rsa",
            Self::Ecc => "ecc",
        }
    }

    pub(super) const fn allows(self, family: EkChoice) -> bool {
        matches!((self, family), (Self::Auto, _) | (Self::Rsa, Self::Rsa) | (Self::Ecc, Self::Ecc))
    }
}

impl FromStr for EkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Rsa, Self::Ecc]
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| format!("{text:?} is not one of auto, rsa, ecc"))
    }
}
