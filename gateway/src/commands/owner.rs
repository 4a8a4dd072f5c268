//! Root's commands act as the user whom the gateway's state belongs to: whatever they make there, the gateway must be able to open.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attest_gateway::settings::Settings;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::output;

/// Owner of a file or folder.
struct Owner {
    uid: u32,
    gid: u32,
    of: PathBuf,
}

/// Switches to the state's owner, if root runs this. It must be done before there is a second thread.
///
/// # Errors
/// If the state does not exist, so that its owner is unknown; or if root may not become another user.
pub(super) fn act(settings: &Settings) -> anyhow::Result<()> {
    if !act_if_exists(settings)? {
        bail!(
            "{state} does not exist, and root cannot know which user it should belong to. Start the gateway once (`systemctl start attest-gateway`), or create the folder for its user: `attest-gateway state create {state} --owner $(id -u attest-gateway)`. Then run the command again",
            state = settings.state.display()
        );
    }
    Ok(())
}

/// Gives a file that root has made to the state's owner, if there is a state.
///
/// # Errors
/// The file system's.
pub(super) fn give(settings: &Settings, file: &Path) -> anyhow::Result<()> {
    if geteuid().is_root()
        && let Some(owner) = owner(settings)?
    {
        chown(file, Some(owner.uid), Some(owner.gid)).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Reads the settings as the gateway's user, who must be able to. Switches to that user, if the state exists.
///
/// # Errors
/// Those of [`act`], and those of the settings.
pub(super) fn settings(config: &Path) -> anyhow::Result<Settings> {
    act_if_exists(&Settings::load(config)?)?;
    Ok(Settings::load(config)?)
}

/// Like [`act`], but returns `false` if the state does not exist yet.
fn act_if_exists(settings: &Settings) -> anyhow::Result<bool> {
    if !geteuid().is_root() {
        return Ok(true);
    }
    let Some(owner) = owner(settings)? else { return Ok(false) };
    if owner.uid != 0 {
        owner.become_it()?;
        output::print_note(format_args!("running as user {}, the owner of {}", owner.uid, owner.of.display()));
    }
    Ok(true)
}

/// Like [`act`], but prints nothing, and returns `false` to any user if the state does not exist yet.
///
/// # Errors
/// If root may not become another user.
pub(super) fn act_quietly(settings: &Settings) -> anyhow::Result<bool> {
    let Some(owner) = owner(settings)? else { return Ok(false) };
    if geteuid().is_root() && owner.uid != 0 {
        owner.become_it()?;
    }
    Ok(true)
}

/// Returns the store's owner; before there is a store, the folder's.
fn owner(settings: &Settings) -> anyhow::Result<Option<Owner>> {
    for path in [settings.store.file.clone(), settings.state.clone()] {
        match fs::metadata(&path) {
            Ok(metadata) => {
                return Ok(Some(Owner {
                    uid: metadata.uid(),
                    gid: metadata.gid(),
                    of: path,
                }));
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    Ok(None)
}

impl Owner {
    /// Changes all credentials of this thread, and so of those that it starts.
    fn become_it(&self) -> anyhow::Result<()> {
        self.take_over().with_context(|| {
            format!(
                "{} belongs to user {uid}, and this process may not switch to that user; run the command as user {uid}",
                self.of.display(),
                uid = self.uid
            )
        })
    }

    /// Sets the groups first: only root can change them.
    fn take_over(&self) -> anyhow::Result<()> {
        let user = UserGroups::lookup(self.uid, Path::new("/etc"));
        let gid = user.as_ref().map_or(self.gid, |user| user.gid);
        let groups = user.map_or_else(Vec::new, |user| user.groups);
        let groups: Vec<Gid> = std::iter::once(gid).chain(groups).map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// The groups of a user, by which it may be able to read keys.
#[derive(Debug, PartialEq, Eq)]
struct UserGroups {
    gid: u32,
    groups: Vec<u32>,
}

impl UserGroups {
    /// Reads passwd(5) and group(5). Returns `None` if they do not know the user.
    fn lookup(uid: u32, etc: &Path) -> Option<Self> {
        let passwd = fs::read_to_string(etc.join("passwd")).ok()?;
        let (name, gid) = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, id, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
            (id.parse() == Ok(uid)).then_some((name, gid.parse().ok()?))
        })?;
        let group = fs::read_to_string(etc.join("group")).unwrap_or_default();
        let groups = group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (id, members) = (fields.nth(2)?, fields.next()?);
            members.split(',').any(|member| member == name).then(|| id.parse().ok())?
        });
        Some(Self {
            gid,
            groups: groups.collect(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn reads_a_users_groups_from_passwd_and_group() {
        let etc = tempfile::tempdir().unwrap();
        assert_eq!(UserGroups::lookup(0, etc.path()), None);
        fs::write(
            etc.path().join("passwd"),
            "root:x:0:0:root:/root:/bin/bash\nodd\ngw:x:998:997::/:/bin/false\n",
        )
        .unwrap();
        let user = |groups: &[u32]| {
            Some(UserGroups {
                gid: 997,
                groups: groups.to_vec(),
            })
        };
        assert_eq!(UserGroups::lookup(998, etc.path()), user(&[]));
        fs::write(
            etc.path().join("group"),
            "root:x:0:\nssl:x:10:a,gw\ngwx:x:11:gwx\nodd\nkeys:x:12:gw\n",
        )
        .unwrap();
        assert_eq!(UserGroups::lookup(998, etc.path()), user(&[10, 12]));
        assert_eq!(UserGroups::lookup(999, etc.path()), None);
    }
}
