//! Files that are read from a disk.

use anyhow::Context;
use attest::tpm::prediction::BankDigests;
use attest::tpm::prediction::bytes::Bytes;
use attest::tpm::prediction::pe::{IMAGE_LIMIT_BYTES, PeImage};

use super::volume::{Volume, VolumeFile};

/// A file on the disk.
pub(crate) struct DiskFile<'d> {
    pub path: String,
    file: VolumeFile<'d>,
    /// SHA-256 of the file.
    pub digest: BankDigests,
}

/// A kernel, with the initrds and device trees that its entry names.
pub(crate) struct FoundKernel<'d> {
    pub kernel: DiskFile<'d>,
    pub initrds: Vec<DiskFile<'d>>,
    pub device_trees: Vec<DiskFile<'d>>,
    /// Command line that systemd-boot makes of the entry, if it has options.
    pub by_systemd_boot: Option<String>,
}

impl<'d> DiskFile<'d> {
    /// Returns the file at this path, if it exists.
    pub(crate) fn at(volume: &'d Volume, path: String) -> anyhow::Result<Option<Self>> {
        let Some(file) = volume.open(&path, IMAGE_LIMIT_BYTES)? else {
            return Ok(None);
        };
        let digest = file.bytes().sha256()?;
        Ok(Some(Self { path, file, digest }))
    }

    pub(crate) fn bytes(&self) -> Bytes<'_> {
        self.file.bytes()
    }
}

pub(crate) fn image<'f>(found: &'f DiskFile<'_>) -> anyhow::Result<PeImage<'f>> {
    PeImage::parse(found.bytes()).with_context(|| found.path.clone())
}

pub(crate) fn wanted<'d>(volume: &'d Volume, path: &str) -> anyhow::Result<DiskFile<'d>> {
    let found = DiskFile::at(volume, path.trim_start_matches('/').to_owned()).with_context(|| path.to_owned())?;
    found.with_context(|| format!("{path} is not on this file system"))
}
