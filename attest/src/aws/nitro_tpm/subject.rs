use serde::{Deserialize, Serialize};

use super::document::DocumentKind;

/// Type of the AWS document that is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NitroTpmSubject {
    /// The document's shape: there is one.
    pub shape: DocumentKind,
}
