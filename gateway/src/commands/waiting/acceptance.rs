//! Writes what an administrator accepts: values into a file of the pool, a machine into its inventory. Everything else is in the store.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attest::reference_sets::{Generation, NewValue, Time, ValueOrigin, Values};
use attest_command_line::reference_set_file::{now, read_or_new, who, write};
use attest_log::Acceptable;
use attest_pool::PoolFile;
use attest_system::files;

/// File for accepted values, unless another is named.
const SET: &str = "accepted.json";
/// Mode of a new inventory file.
const INVENTORY_MODE: u32 = 0o644;

/// An obstacle that is accepted, with the machine that has shown it first.
#[derive(Debug, Clone)]
pub(super) struct Accepted {
    pub(super) pool: String,
    pub(super) about: Acceptable,
    pub(super) machine: String,
    pub(super) record: String,
}

/// Options of the acceptance.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcceptanceOptions<'a> {
    pub(super) set: Option<&'a Path>,
    pub(super) name: Option<&'a str>,
    pub(super) until: Option<Time>,
}

/// Describes what an acceptance writes.
pub(super) fn written(about: &Acceptable, pool: &str, file: Option<&PoolFile>) -> String {
    match about {
        Acceptable::Values(values) => match file.and_then(|file| file.reference_values.as_ref()) {
            Some(folder) => format!(
                "a generation with {} values into {}; one that was predicted or imported would do as well",
                values.len(),
                folder.join(SET).display()
            ),
            None => "nothing yet: the pool has no section [reference_values]".to_owned(),
        },
        Acceptable::Ek(digest) => {
            format!(
                "EK {digest} into the allowlist, for pool {pool}. From then on it may join only the pools of its entry, whatever CA endorses it"
            )
        }
        Acceptable::Machine { identity, tpm } => match file.and_then(|file| file.inventory.as_ref()) {
            Some(path) => {
                let object = file
                    .and_then(|file| file.machines.as_ref())
                    .map_or("", |_| "; a Machine object that names it would do as well");
                format!("the line `{}` into {}{object}", line(identity, tpm.as_deref()), path.display())
            }
            None => "nothing yet: the pool has no inventory file".to_owned(),
        },
        Acceptable::Name { name, identity } => format!("the name {name} for {identity}, taken from any other machine"),
        Acceptable::History { tpm, .. } => format!("no history of {tpm}: its next state is compared with nothing"),
    }
}

fn line(identity: &str, tpm: Option<&str>) -> String {
    [Some(identity), tpm].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Writes the files of the pools that accept these. Returns where each one is accepted.
pub(super) fn write_files(
    all: &[Accepted],
    files: &BTreeMap<String, PoolFile>,
    options: AcceptanceOptions<'_>,
) -> anyhow::Result<Vec<String>> {
    let mut values: BTreeMap<&str, Vec<&Accepted>> = BTreeMap::new();
    for one in all.iter().filter(|one| !one.about.values().is_empty()) {
        values.entry(&one.pool).or_default().push(one);
    }
    let file = |pool: &str| {
        files
            .get(pool)
            .with_context(|| format!("pool {pool} cannot be read; to see why: `attest-gateway check`"))
    };
    let mut sets = BTreeMap::new();
    for (pool, of_pool) in values {
        let folder = file(pool)?.reference_values.as_ref().with_context(|| {
            format!("pool {pool} has no section [reference_values] in its pool.toml, so it would not read the file: add the section first")
        })?;
        sets.insert(pool, add_generation(folder, &of_pool, options)?);
    }
    let mut to = Vec::new();
    for Accepted { pool, about, .. } in all {
        to.push(match about {
            Acceptable::Values(_) => sets.get(pool.as_str()).cloned().unwrap_or_default(),
            Acceptable::Machine { identity, tpm } => {
                let path = file(pool)?.inventory.as_ref();
                let path = path.with_context(|| format!("pool {pool} has no inventory file: set inventory.instances in its pool.toml"))?;
                add_line(path, &line(identity, tpm.as_deref()))?;
                path.display().to_string()
            }
            Acceptable::Ek(_) => "the allowlist".to_owned(),
            Acceptable::Name { .. } => "the names".to_owned(),
            Acceptable::History { .. } => "the histories of TPMs".to_owned(),
        });
    }
    Ok(to)
}

/// Adds one generation with these values to a file of the pool; returns the file.
fn add_generation(folder: &Path, all: &[&Accepted], options: AcceptanceOptions<'_>) -> anyhow::Result<String> {
    let file = in_folder(folder, options.set.unwrap_or(Path::new(SET)))?;
    let _turn = turn(&file)?;
    let mut values: Vec<&NewValue> = all.iter().flat_map(|one| one.about.values()).collect();
    values.sort_by_cached_key(|value| value.key());
    values.dedup_by_key(|value| value.key());
    let mut accepted = Values::default();
    values.iter().for_each(|value| value.add_to(&mut accepted));
    let records: Vec<&str> = all.iter().map(|one| one.record.as_str()).collect();
    let Some(first) = all.first() else {
        bail!("there is nothing to accept")
    };
    let mut generations = read_or_new(&file)?.generations;
    generations.push(Generation {
        name: options.name.map_or_else(|| format!("record {}", records.join(" ")), str::to_owned),
        added: now(),
        by: who(),
        from: ValueOrigin::Recorded {
            node: first.machine.clone(),
            record: first.record.clone(),
        },
        expires: options.until,
        values: accepted,
    });
    write(&file, generations)?;
    Ok(file.display().to_string())
}

/// Waits until no other acceptance changes a file of this folder.
fn turn(file: &Path) -> anyhow::Result<fs::File> {
    let folder = files::folder(file);
    files::lock_folder(folder).with_context(|| folder.display().to_string())
}

/// Adds a line to an inventory, unless it is there.
fn add_line(path: &Path, line: &str) -> anyhow::Result<()> {
    let _turn = turn(path)?;
    let text = match path.try_exists() {
        Ok(false) => String::new(),
        _ => fs::read_to_string(path).with_context(|| path.display().to_string())?,
    };
    if text
        .lines()
        .any(|there| there.split('#').next().is_some_and(|there| there.trim() == line))
    {
        return Ok(());
    }
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let by: String = who().chars().filter(|character| !character.is_control()).collect();
    Ok(files::replace(
        path,
        INVENTORY_MODE,
        &format!("{text}{end}{line} # accepted {} by {by}\n", now()),
    )?)
}

/// Returns the path of the file, in the folder that the pool reads.
fn in_folder(folder: &Path, set: &Path) -> anyhow::Result<PathBuf> {
    let name = set.file_name().with_context(|| format!("{} is not a file", set.display()))?;
    let parent = set.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        let is_it = parent.canonicalize().ok() == folder.canonicalize().ok() && folder.exists();
        if !is_it {
            bail!(
                "--set {}: the pool reads its files from {}; name a file there",
                set.display(),
                folder.display()
            );
        }
    }
    if set.extension().is_none_or(|extension| extension != "json") {
        bail!("--set {}: the pool reads *.json only; name a file with that ending", set.display());
    }
    Ok(folder.join(name))
}
