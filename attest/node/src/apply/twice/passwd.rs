//! Users and groups: `EnsureUser` and `EnsureGroup` of Ignition's `internal/exec/util/passwd.go`. Both change what exists, by usermod(8) and
//! groupmod(8), but that up to 2.24 a group was always made, by groupadd(8).

use serde_json::Value;

use super::{Refusals, is_false, list, number, text};
use crate::apply::system::{System, SystemAccount};

/// The first release that changes a group that exists.
const CHANGES_GROUPS: (u32, u32) = (2, 25);

pub(crate) fn check(config: &Value, system: &System, ignition: (u32, u32), found: &mut Refusals) {
    let (users, groups) = (system.users(), system.groups());
    for (index, user) in list(config, "/passwd/users") {
        let name = text(user, "name").unwrap_or_default();
        if let Some(why) = users
            .iter()
            .find(|known| known.name == name)
            .and_then(|known| account_mismatch(user, known, &users, system))
        {
            found.refuse(&format!("passwd.users[{index}]"), name, why);
        }
    }
    for (index, group) in list(config, "/passwd/groups") {
        let name = text(group, "name").unwrap_or_default();
        let Some(known) = groups.iter().find(|known| known.name == name) else {
            continue;
        };
        let why = match is_false(group, "shouldExist") {
            true => users.iter().find(|user| user.group == known.id).map(|user| {
                format!(
                    "it is the primary group of {}, and cannot be removed: Ignition would stop the boot",
                    user.name
                )
            }),
            false if ignition < CHANGES_GROUPS => {
                let (major, minor) = ignition;
                Some(format!(
                    "it exists, and Ignition {major}.{minor} can only create it: Ignition would stop the boot"
                ))
            }
            false => taken(group, "gid", known, &groups),
        };
        if let Some(why) = why {
            found.refuse(&format!("passwd.groups[{index}]"), name, why);
        }
    }
}

/// Returns why an existing user cannot be changed to match the config.
fn account_mismatch(user: &Value, known: &SystemAccount, users: &[SystemAccount], system: &System) -> Option<String> {
    if is_false(user, "shouldExist") {
        return Some("it exists: Ignition would remove it with its home directory".to_owned());
    }
    let home = text(user, "homeDir").filter(|home| home.trim_end_matches('/') != known.home.trim_end_matches('/'));
    if home.is_some_and(|home| system.path(home).symlink_metadata().is_ok()) {
        return Some(format!(
            "its home directory is {}, and the new one exists already: usermod refuses, and Ignition would stop the boot",
            known.home
        ));
    }
    taken(user, "uid", known, users)
}

/// A number that is another one's.
fn taken(wanted: &Value, name: &str, known: &SystemAccount, all: &[SystemAccount]) -> Option<String> {
    let id = number(wanted, name)?.to_string();
    let other = all.iter().find(|other| other.id == id && other.name != known.name)?;
    (known.id != id).then(|| format!("{name} {id} belongs to {}: Ignition would stop the boot", other.name))
}
