//! Location of the ticket that this Ignition reads, and a check that it can be written, made before any attestation.
//!
//! Every Ignition reads `user.ign` in `/usr/lib/ignition`, so the ticket goes there. Since systemd 256, `/usr` is read-only in the initrd:
//! a mount of its own over a filesystem that can be written (`ProtectSystem=` of systemd-system.conf(5)). This program's unit gives it a
//! mount namespace of its own (`MountFlags=slave`), and only there that mount is made writable. So every Ignition finds the file, `/usr`
//! stays read-only for all others, and the ticket is gone with the initramfs.
//!
//! `IGNITION_SYSTEM_CONFIG_DIR` in `/run/ignition.env` is not an alternative: Ignition's generator rewrites that file at each `systemctl
//! daemon-reload`. The base configs, which each of Ignition's stages reads, lie in the folder that it would move.
//!
//! An existing `user.ign` is replaced in the folder where this Ignition reads it ([`crate::ignition`]). From 2.27 on, `/run/ignition` is
//! used if `/usr/lib/ignition` cannot be written at all; not otherwise, because its content outlives the initramfs.
//!
//! Flatcar's `user.ign` is a link to a disk. The link is replaced, and nothing is written through it.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use attest_wire::protocol::TICKET_UNDELIVERABLE;

use crate::deadline::Deadline;
use crate::failure::{Failure, printable};
use crate::gateway::{GatewayClient, Http};
use crate::ignition::Ignition;
use crate::pointer::write;

/// Time limit for notifying all gateways together: the unit has not much more time after the deadline.
const TELL_LIMIT: Duration = Duration::from_secs(15);

/// Location of the ticket, with the reason if it cannot be written.
#[derive(Debug)]
pub struct Delivery {
    path: PathBuf,
    obstacle: Option<DeliveryObstacle>,
}

/// Reason why a location cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DeliveryObstacle {
    /// It is on a read-only mount, which this program shares with other processes.
    Shared,
    /// The filesystem itself is read-only.
    Filesystem,
    Error(String),
}

/// The mount that a path is on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeliveryMount {
    point: PathBuf,
    /// `true` if its filesystem can be written.
    writable_below: bool,
}

/// Next step after an attempt to write.
#[derive(Debug, PartialEq, Eq)]
enum DeliveryStep {
    Write,
    /// Make this mount writable in this program's own mount namespace, and try again.
    Remount(PathBuf),
    GiveUp(DeliveryObstacle),
}

/// Decides the next step by the result of the attempt to write there.
fn step(tried: Result<(), &io::Error>, own_namespace: bool, mount: Option<DeliveryMount>) -> DeliveryStep {
    let error = match tried {
        Ok(()) => return DeliveryStep::Write,
        Err(error) => error,
    };
    match (error.kind(), mount) {
        (ErrorKind::ReadOnlyFilesystem, Some(mount)) if !mount.writable_below => DeliveryStep::GiveUp(DeliveryObstacle::Filesystem),
        (ErrorKind::ReadOnlyFilesystem, Some(_)) if !own_namespace => DeliveryStep::GiveUp(DeliveryObstacle::Shared),
        (ErrorKind::ReadOnlyFilesystem, Some(mount)) => DeliveryStep::Remount(mount.point),
        _ => DeliveryStep::GiveUp(DeliveryObstacle::Error(error.to_string())),
    }
}

impl Delivery {
    /// Checks whether `output`, or by default the file that this Ignition reads, can be written.
    #[must_use]
    pub fn find(ignition: &Ignition, output: Option<&Path>) -> Self {
        if let Some(output) = output {
            return Self::to(output);
        }
        let usual = Self::to(&ignition.user_config());
        if usual.obstacle.is_none() {
            return usual;
        }
        let other = ignition
            .highest()
            .filter(|highest| *highest != usual.path)
            .map(|highest| Self::to(&highest));
        other.filter(|other| other.obstacle.is_none()).unwrap_or(usual)
    }

    fn to(path: &Path) -> Self {
        write::tidy(path);
        let tried = write::probe(path);
        let obstacle = match step(tried.as_ref().copied(), has_own_mounts(), mount_of(path)) {
            DeliveryStep::Write => None,
            DeliveryStep::GiveUp(obstacle) => Some(obstacle),
            DeliveryStep::Remount(point) => remount(&point)
                .and_then(|()| write::probe(path).map_err(|error| error.to_string()))
                .err()
                .map(DeliveryObstacle::Error),
        };
        Self {
            path: path.to_owned(),
            obstacle,
        }
    }

    /// Returns the path of the pointer with the ticket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a ticket can be put there, as far as this can be known beforehand.
    ///
    /// # Errors
    /// A failure with the code [`TICKET_UNDELIVERABLE`].
    pub fn possible(&self) -> Result<(), Failure> {
        match &self.obstacle {
            None => Ok(()),
            Some(obstacle) => Err(self.undeliverable(obstacle)),
        }
    }

    /// Puts the pointer there, whole or not at all.
    ///
    /// # Errors
    /// A failure with the code [`TICKET_UNDELIVERABLE`].
    pub fn deliver(&self, pointer: &[u8]) -> Result<(), Failure> {
        write::replace(&self.path, pointer).map_err(|error| self.undeliverable(&DeliveryObstacle::Error(error.to_string())))
    }

    fn undeliverable(&self, obstacle: &DeliveryObstacle) -> Failure {
        let next_step = match obstacle {
            DeliveryObstacle::Shared => {
                "start attest-node with its unit, which has MountFlags=slave: `systemctl restart attest-node.service`"
            }
            DeliveryObstacle::Filesystem | DeliveryObstacle::Error(_) => {
                "make this folder writable in the initramfs (see docs/how-to/images.md of the gateway), or name another file that Ignition \
                 reads with --out"
            }
        };
        let reason = format!(
            "cannot pass the ticket to Ignition: {} cannot be written: {obstacle}",
            self.path.display()
        );
        Failure::new(TICKET_UNDELIVERABLE, reason, next_step)
    }
}

impl fmt::Display for DeliveryObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("it is mounted read-only, and this program shares its mount namespace with other programs"),
            Self::Filesystem => f.write_str("its filesystem is read-only"),
            Self::Error(error) => f.write_str(error),
        }
    }
}

/// The gateways that are to know if their ticket cannot be delivered.
pub struct Gateways {
    http: Http,
    sources: Vec<(String, String)>,
}

impl Gateways {
    /// Creates the list from pairs of base URL and pool.
    #[must_use]
    pub fn new(http: Http, sources: Vec<(String, String)>) -> Self {
        Self { http, sources }
    }

    /// Tells each of them. A header in the pointer would be the way, if the pointer could be written.
    pub fn notify(&self) {
        let deadline = Deadline::after(TELL_LIMIT);
        for (index, (base, pool)) in self.sources.iter().enumerate() {
            // Who cannot be told is told by nobody; the console says the rest.
            let share = deadline.share(self.sources.len() - index);
            let _ = GatewayClient::new(&self.http, base, share).not_attested(pool, TICKET_UNDELIVERABLE);
        }
    }
}

/// Makes a mount writable in this program's namespace; not its filesystem, which others have mounted, too.
fn remount(point: &Path) -> Result<(), String> {
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,bind,rw"]).arg(point).stdin(Stdio::null());
    match mount.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(printable(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("mount cannot be started: {error}")),
    }
}

/// Returns whether this program has its own mount namespace, and not that of the first process.
pub(crate) fn has_own_mounts() -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
    match (namespace("self"), namespace("1")) {
        (Ok(own), Ok(first)) => own != first,
        _ => false,
    }
}

fn mount_of(path: &Path) -> Option<DeliveryMount> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_mount(&table, path)
}

/// The mount of a path, by proc_pid_mountinfo(5): the longest mount point above it, and of several there the last.
fn find_mount(table: &str, path: &Path) -> Option<DeliveryMount> {
    let mounts = table.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let options = filesystem.split(' ').nth(2)?;
        Some(DeliveryMount {
            point,
            writable_below: options.split(',').any(|option| option == "rw"),
        })
    });
    mounts
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
}

/// Decodes octal escapes, as the table has for blanks and the like.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (escape, letter)| text.replace(escape, letter))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::ignition::{ConfigOrigin, IgnitionInput, USER_CONFIG};

    const USR: &str = "/usr";

    fn mount(writable_below: bool) -> Option<DeliveryMount> {
        Some(DeliveryMount {
            point: USR.into(),
            writable_below,
        })
    }

    /// Checks the next step after an attempt that ended in `tried`: in a mount namespace of its own, and in a shared one.
    fn check(tried: Result<(), ErrorKind>, mount: Option<DeliveryMount>, own: &DeliveryStep, shared: &DeliveryStep) {
        let error = tried.map_err(io::Error::from);
        assert_eq!(&step(error.as_ref().copied(), true, mount.clone()), own, "{tried:?} {mount:?}, own");
        assert_eq!(
            &step(error.as_ref().copied(), false, mount.clone()),
            shared,
            "{tried:?} {mount:?}, shared"
        );
    }

    #[test]
    fn read_only_mount_is_remounted_only_if_unshared() {
        let abandon = |kind: ErrorKind| DeliveryStep::GiveUp(DeliveryObstacle::Error(io::Error::from(kind).to_string()));
        let read_only = Err(ErrorKind::ReadOnlyFilesystem);
        for found in [None, mount(true), mount(false)] {
            check(Ok(()), found.clone(), &DeliveryStep::Write, &DeliveryStep::Write);
            for kind in [ErrorKind::PermissionDenied, ErrorKind::StorageFull, ErrorKind::NotADirectory] {
                check(Err(kind), found.clone(), &abandon(kind), &abandon(kind));
            }
        }
        check(
            read_only,
            mount(true),
            &DeliveryStep::Remount(USR.into()),
            &DeliveryStep::GiveUp(DeliveryObstacle::Shared),
        );
        let filesystem = DeliveryStep::GiveUp(DeliveryObstacle::Filesystem);
        check(read_only, mount(false), &filesystem, &filesystem);
        let unknown = abandon(ErrorKind::ReadOnlyFilesystem);
        check(read_only, None, &unknown, &unknown);
    }

    const OLD: fn() -> String = || "Ignition Debian 2.14.0".to_owned();
    const NEW: fn() -> String = || "Ignition 2.27.0".to_owned();

    /// Checks which `user.ign` is read, and where the ticket goes, with a `user.ign` in these folders and others that cannot be written.
    fn check_place(version: fn() -> String, there: &[&str], not_writable: &[&str], read: &str, written: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        // Nothing can be made below /proc; not even by root, who runs the tests in some places.
        let folder = |folder: &str| match not_writable.contains(&folder) {
            true => Path::new("/proc/no-such-folder").join(folder),
            false => root.path().join(folder),
        };
        let place = |name: &str| folder(name).join(USER_CONFIG);
        for name in there.iter().filter(|name| !not_writable.contains(name)) {
            fs::create_dir(folder(name)).unwrap();
            fs::write(place(name), "{}").unwrap();
        }
        let names = [("RUNTIME_CONFIG_DIR", "run"), ("LOCAL_CONFIG_DIR", "etc"), ("CONFIG_DIR", "usr")];
        let lines = names.map(|(variable, name)| format!("IGNITION_SYSTEM_{variable}={}\n", folder(name).display()));
        let told = IgnitionInput {
            environment: lines.concat(),
            ..IgnitionInput::default()
        };
        let ignition = Ignition::saying(told, version);
        assert_eq!(ignition.user_config(), place(read), "{there:?} {not_writable:?}");
        let delivery = Delivery::find(&ignition, None);
        assert_eq!(delivery.possible().is_ok(), written.is_some(), "{there:?} {not_writable:?}");
        assert_eq!(delivery.path(), place(written.unwrap_or(read)), "{there:?} {not_writable:?}");
        // Whoever names a file gets that one.
        let named = root.path().join("named.ign");
        assert_eq!(Delivery::find(&ignition, Some(&named)).path(), named);
    }

    #[test]
    fn ticket_path_is_the_first_that_ignition_reads() {
        for there in [&[][..], &["usr"], &["run"], &["etc"], &["run", "etc", "usr"]] {
            check_place(OLD, there, &[], "usr", Some("usr"));
        }
        check_place(OLD, &["run", "etc"], &["usr"], "usr", None);
        check_place(NEW, &[], &[], "usr", Some("usr"));
        check_place(NEW, &["usr"], &[], "usr", Some("usr"));
        check_place(NEW, &["etc"], &[], "etc", Some("etc"));
        check_place(NEW, &["etc", "usr"], &["usr"], "etc", Some("etc"));
        check_place(NEW, &["run", "etc", "usr"], &[], "run", Some("run"));
        // Only then in the folder that outlives the initramfs.
        check_place(NEW, &[], &["usr"], "usr", Some("run"));
        check_place(NEW, &[], &["usr", "etc"], "usr", Some("run"));
        check_place(NEW, &[], &["usr", "run"], "usr", None);
    }

    #[test]
    fn user_ign_symlink_is_followed_and_replaced() {
        let (root, oem) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (link, config) = (root.path().join(USER_CONFIG), oem.path().join("config.ign"));
        std::os::unix::fs::symlink(&config, &link).unwrap();
        let told = IgnitionInput {
            environment: format!("IGNITION_SYSTEM_CONFIG_DIR={}", root.path().display()),
            ..IgnitionInput::default()
        };
        let ignition = || Ignition::saying(told.clone(), OLD);
        // As long as nothing is at its end, there is no user.ign.
        assert_eq!(ignition().origin(), &ConfigOrigin::Platform);
        fs::write(&config, "as installed").unwrap();
        assert_eq!(ignition().origin(), &ConfigOrigin::UserConfig(link.clone()));
        let delivery = Delivery::find(&ignition(), None);
        delivery.possible().unwrap();
        delivery.deliver(b"a ticket").unwrap();
        assert_eq!(fs::read(&config).unwrap(), b"as installed");
        assert_eq!(
            (fs::read(&link).unwrap().as_slice(), link.is_symlink()),
            (b"a ticket".as_slice(), false)
        );
        assert_eq!(fs::read_dir(oem.path()).unwrap().count(), 1);
    }

    #[test]
    fn path_belongs_to_the_longest_last_mount() {
        let table = "1 1 0:2 / / rw - rootfs rootfs rw,size=1\n\
                     2 1 0:2 /usr /usr ro,relatime shared:3 - rootfs rootfs rw,size=1\n\
                     3 1 0:9 / /usr/lib64 rw - squashfs /dev/loop0 ro,errors=continue\n\
                     4 1 0:10 / /a\\040b rw - tmpfs tmpfs rw\n\
                     5 1 0:11 / /etc/ignition rw - tmpfs tmpfs rw\n\
                     6 1 0:12 / /etc/ignition ro - erofs none ro\n\
                     nonsense\n";
        let check = |path: &str, point: &str, writable_below: bool| {
            let expect = DeliveryMount {
                point: point.into(),
                writable_below,
            };
            assert_eq!(find_mount(table, Path::new(path)), Some(expect), "{path}");
        };
        check("/usr/lib/ignition/user.ign", "/usr", true);
        check("/usr/lib64/x", "/usr/lib64", false);
        check("/run/ignition/user.ign", "/", true);
        check("/a b/x", "/a b", true);
        check("/etc/ignition/user.ign", "/etc/ignition", false);
        assert_eq!(find_mount("", Path::new("/x")), None);
    }

    #[test]
    fn delivery_writes_and_detects_unwritable_paths_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usr/lib/ignition/user.ign");
        let delivery = Delivery::to(&path);
        delivery.possible().unwrap();
        assert!(!path.exists());
        delivery.deliver(b"pointer").unwrap();
        assert_eq!(
            (delivery.path(), fs::read(&path).unwrap().as_slice()),
            (path.as_path(), b"pointer".as_slice())
        );
        // Nobody can write there, and there is nothing to remount.
        let delivery = Delivery::to(Path::new("/proc/no-such-folder/user.ign"));
        let failure = delivery.possible().unwrap_err();
        assert_eq!(
            (failure.code.as_str(), delivery.deliver(b"x").unwrap_err().code.as_str()),
            (TICKET_UNDELIVERABLE, TICKET_UNDELIVERABLE)
        );
        // The check has passed, and the writing fails.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.ign");
        let delivery = Delivery::to(&path);
        delivery.possible().unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(delivery.deliver(b"x").unwrap_err().code, TICKET_UNDELIVERABLE);
    }
}
