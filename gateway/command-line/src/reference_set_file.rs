//! Files of reference values, as commands read and write them.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use attest::reference_sets::{Generation, ReferenceSet, SET_LIMIT_BYTES, Time};
use attest_log::admin::By;
use attest_system::files;

/// Mode of new files, readable by all: digests of boot components are not secret.
const MODE: u32 = 0o644;

/// Reads an existing file of reference values.
pub fn read(path: &Path) -> anyhow::Result<ReferenceSet> {
    let named = || path.display().to_string();
    let text = String::from_utf8(bytes(path)?).with_context(named)?;
    ReferenceSet::parse(&text).with_context(named)
}

/// Returns the contents of a file of limited length.
pub fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || path.display().to_string();
    let length = fs::metadata(path).with_context(named)?.len();
    if length > u64::try_from(SET_LIMIT_BYTES)? {
        bail!("{}: {length} bytes, at most {SET_LIMIT_BYTES} are read", path.display());
    }
    fs::read(path).with_context(named)
}

/// Reads a file of reference values; returns an empty set if it does not exist.
pub fn read_or_new(path: &Path) -> anyhow::Result<ReferenceSet> {
    match path.try_exists() {
        Ok(false) => Ok(ReferenceSet::default()),
        _ => read(path),
    }
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, generations: Vec<Generation>) -> anyhow::Result<()> {
    let set = ReferenceSet::new(generations).with_context(|| path.display().to_string())?;
    let text = set.to_json().with_context(|| path.display().to_string())?;
    Ok(files::replace(path, MODE, &text)?)
}

/// Returns the generation of that name.
pub fn generation<'s>(generations: &'s mut [Generation], path: &Path, name: &str) -> anyhow::Result<&'s mut Generation> {
    let found = generations.iter_mut().find(|generation| generation.name == name);
    found.with_context(|| format!("{}: no generation is named {name:?}", path.display()))
}

/// Returns the user that runs this command, as files record it: the one that has used sudo, or the process's user. Call it before the
/// process becomes another user.
pub fn who() -> String {
    let By { uid, user, sudo_user, .. } = By::this_process();
    sudo_user.or(user).unwrap_or_else(|| format!("uid {uid}"))
}

pub fn now() -> Time {
    Time { at: crate::now() }
}

pub fn time(text: &str) -> Result<Time, String> {
    text.to_owned().try_into()
}
