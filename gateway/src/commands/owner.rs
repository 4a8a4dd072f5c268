//! Root's commands act as the user whom the gateway's state belongs to: whatever they make there, the gateway must be able to open.
//!
//! The gateway's user can replace files in its folders by links, and the state folder too if it owns the settings. Root's commands follow no
//! link of that user to find the owner, and act as root only if root owns state folder, store and settings' folder.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, bail};
use attest_gateway::settings::Settings;
use attest_system::files;
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

/// Gives an open file that root has made to the state's owner, if there is a state.
///
/// # Errors
/// The file system's.
pub(super) fn give(settings: &Settings, file: impl AsFd) -> anyhow::Result<()> {
    if geteuid().is_root()
        && let Some(owner) = owner(settings)?
    {
        fchown(file, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(())
}

/// Runs work in a thread that acts as the state's owner. The calling thread stays root's.
///
/// # Errors
/// Those of [`act`] and of the work.
pub(super) fn acting<T: Send>(settings: &Settings, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let worker = || {
        act(settings)?;
        work()
    };
    match std::thread::scope(|scope| scope.spawn(worker).join()) {
        Ok(done) => done,
        Err(_) => bail!("the thread that acted as the owner of {} failed", settings.state.display()),
    }
}

/// Switches to the owner of a folder, if root runs this and the folder is another user's.
///
/// # Errors
/// If root may not become that user.
pub(super) fn act_as_owner_of(folder: &Path) -> anyhow::Result<()> {
    if geteuid().is_root()
        && let Some(owner) = Owner::of(folder, false)?.filter(Owner::is_not_root)
    {
        owner.act()?;
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
    let Some(owner) = owner(settings)? else {
        act_as_owner_of(files::folder(&settings.file))?;
        return Ok(false);
    };
    if owner.is_not_root() {
        owner.act()?;
    }
    Ok(true)
}

/// Like [`act`], but prints nothing, and returns `false` to any user if the state does not exist yet.
///
/// # Errors
/// If root may not become another user.
pub(super) fn act_quietly(settings: &Settings) -> anyhow::Result<bool> {
    let Some(owner) = owner(settings)? else { return Ok(false) };
    if geteuid().is_root() && owner.is_not_root() {
        owner.become_it()?;
    }
    Ok(true)
}

/// Returns the user that root's commands act as, if there is a state folder: the first owner that is not root, of the folder, of the store's
/// file in a folder of root's, and of the settings' folder.
fn owner(settings: &Settings) -> anyhow::Result<Option<Owner>> {
    let Some(state) = Owner::of(&settings.state, true)? else {
        return Ok(None);
    };
    if state.is_not_root() {
        return Ok(Some(state));
    }
    for path in [&settings.store.file, files::folder(&settings.file)] {
        if let Some(owner) = Owner::of(path, false)?.filter(Owner::is_not_root) {
            return Ok(Some(owner));
        }
    }
    Ok(Some(state))
}

impl Owner {
    /// Returns the owner of a file or folder; of a link its own owner, unless `follow` is set and that is root.
    fn of(path: &Path, follow: bool) -> anyhow::Result<Option<Self>> {
        let owner = |metadata: io::Result<fs::Metadata>| match metadata {
            Ok(metadata) => Ok(Some(Self {
                uid: metadata.uid(),
                gid: metadata.gid(),
                of: path.to_owned(),
            })),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        };
        match owner(fs::symlink_metadata(path))? {
            Some(link) if follow && !link.is_not_root() => owner(fs::metadata(path)),
            owner => Ok(owner),
        }
    }

    const fn is_not_root(&self) -> bool {
        self.uid != 0
    }

    /// Becomes this user, and says so once.
    fn act(&self) -> anyhow::Result<()> {
        static SAID: Once = Once::new();
        self.become_it()?;
        SAID.call_once(|| output::print_note(format_args!("running as user {}, the owner of {}", self.uid, self.of.display())));
        Ok(())
    }

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
