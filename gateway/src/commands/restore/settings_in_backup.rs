//! Settings in a backup, which are written where there is no `gateway.toml`.
//!
//! Root may write them into a folder of the gateway's user. So each file is made by the handle of its folder, and no link is followed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use attest_command_line::visible;
use attest_gateway::settings::Settings;
use attest_system::files;
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, open, openat};
use rustix::io::Errno;

use crate::commands::backup::SETTINGS;
use crate::commands::backup_file::{Backup, MEMBER_LIMIT_BYTES};
use crate::commands::owner;

/// Mode of folders of settings, as `init` makes them.
const FOLDER_MODE: u32 = 0o750;
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The settings of a backup, all of which can be written.
pub(super) struct SettingsInBackup {
    pub(super) settings: Settings,
    folder: PathBuf,
    /// Name of `gateway.toml`, by which a folder of settings is complete.
    own: PathBuf,
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl SettingsInBackup {
    /// Returns the settings of a backup for the folder of a missing `gateway.toml`.
    pub(super) fn find(config: &Path, backup: &Backup) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        for member in &backup.members {
            let Ok(path) = member.file.strip_prefix(SETTINGS) else { continue };
            let named = || visible(&path.to_string_lossy());
            let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(
                is_below && path.file_name().is_some(),
                "{}: not a path below the folder of settings",
                named()
            );
            let content = (member.mode & 0o777, member.content()?);
            ensure!(files.insert(path.to_owned(), content).is_none(), "{}: twice in the backup", named());
        }
        for path in files.keys() {
            let parent = path.ancestors().skip(1).find(|parent| files.contains_key(*parent));
            ensure!(parent.is_none(), "{}: below a file of the backup", visible(&path.to_string_lossy()));
        }
        let own = config.file_name().map_or_else(|| config.to_owned(), PathBuf::from);
        let Some((_, text)) = files.get(&own) else {
            bail!(
                "{} does not exist, and the backup has no such settings: create them, or use a backup of --with-settings",
                config.display()
            );
        };
        let settings = Settings::parse(std::str::from_utf8(text)?, config)?;
        ensure!(
            !rustix::process::geteuid().is_root() || settings.state.exists(),
            "{state} does not exist, and root cannot know which user it should belong to: `attest-gateway state create {state} --owner $(id -u attest-gateway)`. Then run the command again",
            state = settings.state.display()
        );
        Ok(Self {
            settings,
            folder: files::folder(config).to_owned(),
            own,
            files,
        })
    }

    /// Writes all files but `gateway.toml`: those that the store may need.
    pub(super) fn write_most(&self) -> anyhow::Result<()> {
        match fs::create_dir(&self.folder) {
            Ok(()) => {
                let folder = open(&self.folder, FOLDER, Mode::empty())?;
                owner::give(&self.settings, &folder)?;
                fchmod(&folder, Mode::from_raw_mode(FOLDER_MODE))?;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| self.folder.display().to_string()),
        }
        let most = self.files.keys().filter(|path| **path != self.own);
        { most }.try_for_each(|path| self.write(path))
    }

    /// Writes `gateway.toml`. It comes last: without it no gateway serves, so an interrupted restore leaves none with an empty store.
    pub(super) fn write_own(&self) -> anyhow::Result<()> {
        self.write(&self.own)
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let to = self.folder.join(path);
        self.write_file(path).with_context(|| to.display().to_string())
    }

    fn write_file(&self, path: &Path) -> anyhow::Result<()> {
        let (Some((mode, content)), Some(name)) = (self.files.get(path), path.file_name()) else {
            return Ok(());
        };
        let mut folder = open(&self.folder, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())?;
        for part in path.parent().into_iter().flat_map(Path::components) {
            folder = self.subfolder(&folder, Path::new(&part))?;
        }
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&folder, name, new, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let mut file = File::from(file);
                file.write_all(content)?;
                owner::give(&self.settings, &file)?;
                fchmod(&file, Mode::from_raw_mode(*mode))?;
                file.sync_all()?;
                Ok(File::from(folder).sync_all()?)
            }
            Err(Errno::EXIST) => {
                let old = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let mut found = Vec::new();
                let file = File::from(openat(&folder, name, old, Mode::empty())?);
                ensure!(
                    file.metadata()?.is_file(),
                    "already exists and is not a regular file; left unchanged"
                );
                file.take(MEMBER_LIMIT_BYTES).read_to_end(&mut found)?;
                ensure!(found == *content, "already exists with other contents; left unchanged");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a folder in another one, and makes it if it is missing.
    fn subfolder(&self, folder: &OwnedFd, name: &Path) -> anyhow::Result<OwnedFd> {
        let made = match mkdirat(folder, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let opened = openat(folder, name, FOLDER, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => anyhow::anyhow!("{} is a link or not a folder", name.display()),
            other => other.into(),
        })?;
        if made {
            owner::give(&self.settings, &opened)?;
            fchmod(&opened, Mode::from_raw_mode(FOLDER_MODE))?;
        }
        Ok(opened)
    }
}
