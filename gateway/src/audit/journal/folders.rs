//! Where the large parts of records are kept.

use std::sync::Arc;

use super::super::blobs::{Blobs, Writing};
use super::super::configs::ConfigCopy;
use super::JournalError;

/// What a record refers to: names and contents of blobs. Many records share one content.
pub type LargeParts = Vec<(String, Arc<[u8]>)>;

/// The folders of large parts.
#[derive(Debug, Clone)]
pub struct Folders {
    pub evidence: Blobs,
    /// Copies of configs, if they are kept.
    pub configs: Option<Blobs>,
}

impl From<Blobs> for Folders {
    fn from(evidence: Blobs) -> Self {
        let configs = None;
        Self { evidence, configs }
    }
}

impl Folders {
    /// For whoever writes records: until it is gone, nobody begins to look which of all this is named.
    pub(super) fn writing(&self) -> FoldersWriting<'_> {
        FoldersWriting {
            evidence: self.evidence.writing(),
            configs: self.configs.as_ref().map(Blobs::writing),
        }
    }
}

/// See [`Folders::writing`].
pub(super) struct FoldersWriting<'f> {
    evidence: Writing<'f>,
    configs: Option<Writing<'f>>,
}

impl FoldersWriting<'_> {
    /// Writes what a record refers to, durably, unless it is there already.
    pub(super) fn put(&mut self, blobs: &[(String, Arc<[u8]>)], config: Option<&ConfigCopy>) -> Result<(), JournalError> {
        for (name, content) in blobs {
            self.evidence.put(name, content)?;
        }
        if let Some(copy) = config {
            let folder = self.configs.as_mut().ok_or(JournalError::Failed)?;
            folder.put(&copy.sha256, &copy.content)?;
        }
        Ok(())
    }
}
