//! The pre-approved config: the part of the full one that unattested nodes may get.
//!
//! It is chosen by name. Anything that is not named stays out, so that a new secret in the full config is never given away.

use attest_ignition::{Config, NotAConfig, SpecVersion};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Pattern characters of other programs. If they were literal, an entry would match less than its author thinks.
const GLOB_CHARACTERS: &[char] = &['*', '?', '[', ']', '{', '}'];

/// Selection of the pre-approved config.
///
/// - A file, directory or link is named by its path, or by its folder: `/etc/a/*` is what is in `/etc/a`, `/etc/a/**` is what is in it
///   and in its folders. Neither is `/etc/a` itself. There are no other patterns, and none for the root folder.
/// - A unit is named in full, and comes with its drop-ins.
/// - A user is named in full, and comes with all that the full config says of it: keys, groups, a password's hash.
///
/// It can also have the MachineConfigs that are needed before approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "IncludeFile")]
pub struct Include {
    files: Vec<PathRule>,
    units: Vec<String>,
    users: Vec<String>,
    /// Set if the MachineConfigs that are needed before approval are included.
    needed: bool,
}

/// An entry that cannot name anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// Not a valid path for a config.
    #[error("include.files: {0:?} is not an absolute path without \"..\", \"//\" and a \"/\" at its end")]
    Path(String),
    /// A pattern that would be misunderstood.
    #[error("include.files: {0:?}: the only patterns are a folder with /* (what is in it) or /** (its folders too) after it")]
    Pattern(String),
    /// A unit or a user by pattern, or without a name.
    #[error("include.{list}: {entry:?} is not a name; patterns are not supported here")]
    Name { list: &'static str, entry: String },
}

/// Reason why the pre-approved config cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum IncludeError {
    /// A node would boot from it unconfigured.
    #[error("include is empty: name files, units, users or other entries")]
    Nothing,
    /// A typing error, or the full config changed: either way nodes would get less than they should.
    #[error("include.{list}: the full config has no entry {entry:?}")]
    Unmatched { list: &'static str, entry: String },
    /// The selected parts are not a valid config.
    #[error("the included parts are not a valid config: {0}")]
    NotAConfig(#[from] NotAConfig),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathRule {
    Exactly(String),
    /// Everything in this folder, such as `/etc/a/`.
    In(String),
    /// Everything in this folder, at any depth.
    Below(String),
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct IncludeFile {
    files: Vec<String>,
    units: Vec<String>,
    users: Vec<String>,
    needed_before_node_approved: bool,
}

impl TryFrom<IncludeFile> for Include {
    type Error = BadEntry;

    fn try_from(file: IncludeFile) -> Result<Self, BadEntry> {
        let names = Self::new(file.files, file.units, file.users)?;
        Ok(Self {
            needed: file.needed_before_node_approved,
            ..names
        })
    }
}

impl PathRule {
    fn parse(entry: String) -> Result<Self, BadEntry> {
        let below = entry.strip_suffix("/**");
        let within = entry.strip_suffix("/*");
        let name = below.or(within).unwrap_or(&entry);
        if name.contains(GLOB_CHARACTERS) || (name.is_empty() && !entry.is_empty()) {
            return Err(BadEntry::Pattern(entry));
        }
        if !name.strip_prefix('/').is_some_and(is_clean) {
            return Err(BadEntry::Path(entry));
        }
        Ok(match (below, within) {
            (Some(folder), _) => Self::Below(format!("{folder}/")),
            (None, Some(folder)) => Self::In(format!("{folder}/")),
            (None, None) => Self::Exactly(entry),
        })
    }

    fn matches(&self, path: &str) -> bool {
        // A config may say "/etc/a/../shadow". That is not below "/etc/a".
        let rest = |folder: &str| path.strip_prefix(folder).filter(|rest| is_clean(rest));
        match self {
            Self::Exactly(exact) => path == exact,
            Self::In(folder) => rest(folder).is_some_and(|rest| !rest.contains('/')),
            Self::Below(folder) => rest(folder).is_some(),
        }
    }

    /// Returns the entry as written in the file.
    fn text(&self) -> String {
        match self {
            Self::Exactly(path) => path.clone(),
            Self::In(folder) => format!("{folder}*"),
            Self::Below(folder) => format!("{folder}**"),
        }
    }
}

/// Returns whether a path, without its leading `/`, has no empty, `.` or `..` component.
fn is_clean(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains(char::is_control)
}

impl Include {
    /// Builds the selection from the lists in `pool.toml`.
    ///
    /// # Errors
    /// [`BadEntry`], for the first that names nothing.
    pub fn new(files: Vec<String>, units: Vec<String>, users: Vec<String>) -> Result<Self, BadEntry> {
        let names = |list, names: Vec<String>| match names
            .iter()
            .find(|name| name.is_empty() || name.contains('/') || name.contains(GLOB_CHARACTERS))
        {
            Some(entry) => Err(BadEntry::Name {
                list,
                entry: entry.clone(),
            }),
            None => Ok(names),
        };
        Ok(Self {
            files: files.into_iter().map(PathRule::parse).collect::<Result<_, _>>()?,
            units: names("units", units)?,
            users: names("users", users)?,
            needed: false,
        })
    }

    /// Returns whether the MachineConfigs that are needed before approval are included.
    #[must_use]
    pub const fn needed(&self) -> bool {
        self.needed
    }

    /// Returns whether its lists are empty.
    #[must_use]
    pub const fn names_nothing(&self) -> bool {
        self.files.is_empty() && self.units.is_empty() && self.users.is_empty()
    }

    /// Returns whether it selects nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names_nothing() && !self.needed
    }

    /// Returns the pre-approved part of the full config. It has no kernel arguments, disks, filesystems, LUKS volumes, groups, or
    /// references to other configs.
    ///
    /// Proxy, timeouts and CAs are copied unchanged if a chosen file must be fetched: if its source is not a `data:` URL.
    ///
    /// # Errors
    /// [`IncludeError`]: nothing is left out that is named.
    pub fn choose(&self, full: &Config) -> Result<Config, IncludeError> {
        if self.names_nothing() {
            return Err(IncludeError::Nothing);
        }
        let mut storage = Map::new();
        let mut unmatched: Vec<&PathRule> = self.files.iter().collect();
        for list in ["files", "directories", "links"] {
            let entries = full.list(["storage", list]);
            let chosen = entries
                .iter()
                .filter(|entry| text_of(entry, "path").is_some_and(|path| self.files.iter().any(|rule| rule.matches(path))));
            storage.insert(list.to_owned(), chosen.cloned().collect());
            unmatched.retain(|rule| {
                !entries
                    .iter()
                    .filter_map(|entry| text_of(entry, "path"))
                    .any(|path| rule.matches(path))
            });
        }
        if let Some(rule) = unmatched.first() {
            return Err(IncludeError::Unmatched {
                list: "files",
                entry: rule.text(),
            });
        }
        let units = named("units", &self.units, full.list(["systemd", "units"]))?;
        let users = named("users", &self.users, full.list(["passwd", "users"]))?;

        let mut ignition = Map::new();
        if storage
            .get("files")
            .and_then(Value::as_array)
            .is_some_and(|files| files.iter().any(is_fetched))
        {
            for key in ["proxy", "timeouts", "security"] {
                if let Some(value) = full.value().get("ignition").and_then(|ignition| ignition.get(key)) {
                    ignition.insert(key.to_owned(), value.clone());
                }
            }
        }
        ignition.insert("version".to_owned(), SpecVersion::NEWEST.as_str().into());
        Ok(Config::from_value(json!({
            "ignition": ignition,
            "storage": storage,
            "systemd": { "units": units },
            "passwd": { "users": users },
        }))?)
    }
}

fn named(list: &'static str, names: &[String], entries: &[Value]) -> Result<Vec<Value>, IncludeError> {
    let is = |entry: &&Value, name: &String| text_of(entry, "name") == Some(name);
    if let Some(entry) = names.iter().find(|name| !entries.iter().any(|entry| is(&entry, name))) {
        return Err(IncludeError::Unmatched {
            list,
            entry: entry.clone(),
        });
    }
    Ok(entries
        .iter()
        .filter(|entry| names.iter().any(|name| is(entry, name)))
        .cloned()
        .collect())
}

fn text_of<'a>(entry: &'a Value, field: &str) -> Option<&'a str> {
    entry.get(field).and_then(Value::as_str)
}

/// Returns whether Ignition must fetch something for this file.
fn is_fetched(file: &Value) -> bool {
    let appended = file.get("append").and_then(Value::as_array).into_iter().flatten();
    file.get("contents")
        .into_iter()
        .chain(appended)
        .filter_map(|resource| text_of(resource, "source"))
        .any(|source| !source.is_empty() && !source.starts_with("data:"))
}

#[cfg(test)]
mod tests;
