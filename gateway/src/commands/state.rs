//! The command `attest-gateway state create`: prepares the state folder for its user.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use rustix::fs::{Gid, Mode, OFlags, Uid, XattrFlags, fchmod, fchown, fgetxattr, fsetxattr, fstat, open, openat};
use rustix::io::Errno;

/// Extended attribute with SELinux's context of a file.
const CONTEXT: &str = "security.selinux";
/// Longest context that is read: those of containers have some fifty characters, and a thousand categories five thousand.
const CONTEXT_LIMIT_BYTES: usize = 8192;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create the state folder for the gateway's user. Run as root.
    Create(Arguments),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: as root, before the gateway runs as its user\n  attest-gateway state create /var/lib/attest-gateway --owner 991\n\nThe init container of `attest-gateway manifests render` runs this command. It does not change a folder that belongs to that user\nalready."
)]
pub(crate) struct Arguments {
    /// Folder to create. Its parent folder must exist.
    folder: PathBuf,
    /// Numeric id of the gateway's user; the group gets the same number.
    #[arg(long, value_name = "UID")]
    owner: u32,
    /// SELinux type of the folder, on hosts with SELinux: container_file_t for a container.
    #[arg(long, value_name = "TYPE")]
    selinux_type: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = &arguments.folder;
    give(folder, arguments).with_context(|| folder.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Gives the folder to the user, by its handle, so that no other process can put another in its place. Its content is its user's own doing.
fn give(path: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Root without its capabilities may look whose it is, and not open what is another user's.
    let place = open(path, OFlags::PATH | flags, Mode::empty())?;
    let (now, owner) = (fstat(&place)?, arguments.owner);
    if now.st_uid == owner {
        return Ok(());
    }
    if now.st_uid != 0 {
        bail!(
            "the folder belongs to user {}, neither to root nor to user {owner}; choose another folder, or change its owner with chown",
            now.st_uid
        );
    }
    let folder = openat(&place, ".", OFlags::RDONLY | flags, Mode::empty())?;
    fchmod(&folder, Mode::RWXU)?;
    if let Some(wanted) = &arguments.selinux_type {
        label(&folder, wanted)?;
    }
    Ok(fchown(&folder, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?)
}

/// Gives it the type, if the file system has contexts.
fn label(folder: impl AsFd, wanted: &str) -> anyhow::Result<()> {
    let mut context = [0; CONTEXT_LIMIT_BYTES];
    let now = match fgetxattr(&folder, CONTEXT, &mut context) {
        Ok(length) => context.get(..length).unwrap_or_default(),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error).context(CONTEXT),
    };
    let now = std::str::from_utf8(now)?.trim_end_matches('\0');
    let Some(context) = with_type(now, wanted) else {
        bail!("SELinux context {now:?} is invalid");
    };
    fsetxattr(&folder, CONTEXT, context.as_bytes(), XattrFlags::REPLACE).with_context(|| format!("{CONTEXT}: {context}"))
}

/// Returns the context with another type, and with the lowest level, which every container may reach.
fn with_type(context: &str, wanted: &str) -> Option<String> {
    let [user, role, _type, _level @ ..] = &*context.split(':').collect::<Vec<_>>() else {
        return None;
    };
    Some(format!("{user}:{role}:{wanted}:s0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selinux_context_gets_container_type_without_categories() {
        let check = |context: &str, expected: Option<&str>| assert_eq!(with_type(context, "container_file_t").as_deref(), expected);
        let expected = Some("system_u:object_r:container_file_t:s0");
        check("system_u:object_r:var_lib_t:s0", expected);
        check("system_u:object_r:container_file_t:s0:c1,c2", expected);
        check("system_u:object_r:var_lib_t", expected);
        check("unlabeled", None);
        check("", None);
    }
}
