//! Originator of an act on this machine.

use std::env;
use std::fs;
use std::path::Path;

use rustix::process::getuid;
use serde::{Deserialize, Serialize};

use super::super::replica_name::host;

/// Value of `/proc/self/loginuid` for a process without a login.
const NOBODY: u32 = u32::MAX;
/// Longest name of a user that is kept, in characters.
const NAME_LIMIT_CHARACTERS: usize = 64;

/// Process that did something, and its users. Values from the kernel are facts; those from the environment are claims of the user who
/// started the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct By {
    /// User that the process was started for.
    pub uid: u32,
    /// Name of that user, from passwd(5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// User who logged in, even if the process has another user by now: from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
    /// User who called sudo, from the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo_uid: Option<u32>,
    /// Name of that user, from the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo_user: Option<String>,
    pub host: String,
    /// Identifier of the process.
    pub pid: u32,
    /// Name of the gateway, if it acted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Name of the `attest-controller` that acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Object of the cluster's API that asked for the act, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ByObject>,
}

/// An object of the cluster's API that was edited. The API does not tell by which user; only its own audit log has that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByObject {
    pub name: String,
    /// Version of the object that was acted on.
    pub resource_version: String,
    /// Program that wrote its spec last, by the name that it gave itself: `kubectl-edit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
}

impl ByObject {
    /// Creates one of this name; of the manager's name only printable characters are kept.
    #[must_use]
    pub fn new(name: &str, resource_version: &str, manager: Option<&str>) -> Self {
        Self {
            name: name.to_owned(),
            resource_version: bounded(resource_version),
            manager: manager.map(bounded).filter(|manager| !manager.is_empty()),
        }
    }
}

impl By {
    /// Returns the users who started this process: to be called before it becomes another user.
    #[must_use]
    pub fn this_process() -> Self {
        let uid = getuid().as_raw();
        let variable = |name| env::var(name).ok();
        Self {
            uid,
            user: named(uid, Path::new("/etc/passwd")),
            login_uid: fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| logged_in(&text)),
            sudo_uid: variable("SUDO_UID").and_then(|uid| uid.parse().ok()),
            sudo_user: variable("SUDO_USER").map(|name| bounded(&name)).filter(|name| !name.is_empty()),
            host: host(),
            pid: std::process::id(),
            gateway: None,
            controller: None,
            object: None,
        }
    }

    /// Returns this process as a gateway of this name, or of the host's, that acts by itself.
    #[must_use]
    pub fn gateway(name: Option<&str>) -> Self {
        let process = Self::this_process();
        Self {
            gateway: Some(name.map_or_else(|| process.host.clone(), str::to_owned)),
            ..process
        }
    }

    /// Returns this process as an `attest-controller` of this name, or of the host's.
    #[must_use]
    pub fn controller(name: Option<&str>) -> Self {
        let process = Self::this_process();
        Self {
            controller: Some(name.map_or_else(|| process.host.clone(), str::to_owned)),
            ..process
        }
    }
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = [("gateway", &self.gateway), ("controller", &self.controller)];
        if let Some((kind, Some(name))) = program.into_iter().find(|(_, name)| name.is_some()) {
            write!(f, "the {kind} {name}")?;
            return match &self.object {
                Some(object) => write!(f, ", as the object {} says", object.name),
                None => Ok(()),
            };
        }
        match &self.user {
            Some(user) => write!(f, "{user} (uid {})", self.uid)?,
            None => write!(f, "uid {}", self.uid)?,
        }
        if let Some(sudo) = &self.sudo_user {
            write!(f, ", by sudo of {sudo}")?;
        }
        write!(f, " on {}", self.host)
    }
}

/// Returns the user who logged in, if there was a login.
fn logged_in(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|uid| *uid != NOBODY)
}

/// Returns a user's name from a file in the form of passwd(5).
fn named(uid: u32, passwd: &Path) -> Option<String> {
    let text = fs::read_to_string(passwd).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(uid)).then(|| bounded(name))
    })
}

fn bounded(name: &str) -> String {
    let characters = name.chars().filter(|character| !character.is_control());
    characters.take(NAME_LIMIT_CHARACTERS).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn user_name_comes_from_passwd() {
        let folder = tempfile::tempdir().unwrap();
        let passwd = folder.path().join("passwd");
        assert_eq!(named(0, &passwd), None);
        fs::write(
            &passwd,
            "odd\nroot:x:0:0:root:/root:/bin/bash\nb\u{1b}[2Job:x:1000:1000::/:/bin/false\n",
        )
        .unwrap();
        assert_eq!(named(0, &passwd).unwrap(), "root");
        assert_eq!(named(1000, &passwd).unwrap(), "b[2Job");
        assert_eq!(named(7, &passwd), None);
    }

    #[test]
    fn service_has_no_login_uid() {
        assert_eq!(logged_in("1000\n"), Some(1000));
        assert_eq!(logged_in("4294967295"), None);
        assert_eq!(logged_in("root"), None);
    }
}
