//! File to which a daemon writes its process id once it listens. It is a named pipe, so that a test can wait for the write.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::process::Process;

/// Pid file, not written yet.
pub struct PidFile {
    path: PathBuf,
    pipe: File,
}

impl PidFile {
    /// Creates the pipe, and removes an earlier one.
    pub fn new(path: &Path) -> Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(|| format!("removing {}", path.display())),
            _ => {}
        }
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).with_context(|| format!("making the pipe {}", path.display()))?;
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let pipe = OpenOptions::new().read(true).custom_flags(flags).open(path);
        Ok(Self {
            pipe: pipe.with_context(|| format!("opening {}", path.display()))?,
            path: path.to_path_buf(),
        })
    }

    /// Returns the path, for the daemon's command line.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the file is written. Returns `false` if the process ended first.
    pub fn wait(&self, process: &Process, limit: Duration) -> Result<bool> {
        let end = pidfd_open(process.id()?, PidfdFlags::empty()).context("watching the process")?;
        let mut events = [PollFd::new(&self.pipe, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        let limit = Timespec::try_from(limit).context("a time")?;
        if poll(&mut events, Some(&limit)).context("waiting for the process")? == 0 {
            bail!(
                "{} was not written within {} s{}",
                self.path.display(),
                limit.tv_sec,
                process.tail()
            );
        }
        Ok(events.first().is_some_and(|pipe| pipe.revents().contains(PollFlags::IN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Waits for the pid file that a shell script writes; the file's path is the script's first argument.
    fn check(script: &str, limit: Duration) -> Result<bool> {
        let folder = tempfile::tempdir().unwrap();
        let file = PidFile::new(&folder.path().join("pid")).unwrap();
        let arguments = ["-c", script, "sh", file.path().to_str().unwrap()];
        let process = Process::spawn(Path::new("sh"), arguments, &folder.path().join("log"), None).unwrap();
        file.wait(&process, limit)
    }

    #[test]
    fn waits_until_the_pid_is_written_or_impossible() {
        assert!(check("echo $$ >$1; exec sleep 1000", LIMIT).unwrap());
        assert!(!check("exit 1", LIMIT).unwrap());
        assert!(check("exec sleep 1000", Duration::from_millis(50)).is_err());
    }

    #[test]
    fn replaces_a_leftover_pid_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        fs::write(&path, "123").unwrap();
        PidFile::new(&path).unwrap();
        PidFile::new(&path).unwrap();
    }
}
