//! Import of many machines into the allowlist: the difference between a file and the store, and the transactions that apply it.
//!
//! A store that takes any number of writes in one transaction gets one. Otherwise the rows are written in their order, as many in a
//! transaction as it takes. An import that is interrupted then leaves the first rows. The same import once more writes the others.

use std::collections::{BTreeMap, BTreeSet};

use attest_store::{EntryKind, EntryTransaction, Store, StoreError, Transact};

use super::enrolment::{self, EkRecord, EnrolmentError, enrol, entry_key, listed, put_entry};
use super::revocations;

/// Entries that a row reads and writes at most: the allowlist's, and the name's in both directions.
const ENTRIES_OF_A_ROW: usize = 3;
/// Entries that the record of the import needs, in the first transaction.
const ENTRIES_OF_THE_RECORD: usize = 2;

/// A machine that is to be on the allowlist. What a row does not say stays as it is, or is not restricted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRow {
    /// Number of the row's line in its file.
    pub line: u64,
    pub identity: String,
    pub name: Option<String>,
    /// The pools that the machine may join; empty for all.
    pub pools: Option<Vec<String>>,
    pub note: Option<String>,
}

/// A row that changes the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    pub line: u64,
    pub identity: String,
    /// The entry of the allowlist, if it has one.
    pub before: Option<EkRecord>,
    pub after: EkRecord,
}

/// A row that contradicts the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowConflict {
    pub line: u64,
    pub reason: String,
}

/// Difference between the rows and the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportPlan {
    /// Changes in the order of their rows.
    pub changes: Vec<RowChange>,
    /// Number of rows that the store has as they are.
    pub unchanged: usize,
    pub conflicts: Vec<RowConflict>,
    /// Number of rows of revoked machines. They stay revoked.
    pub revoked: usize,
}

impl ImportPlan {
    /// Returns the number of machines that the allowlist does not have.
    #[must_use]
    pub fn new_count(&self) -> usize {
        self.changes.iter().filter(|change| change.before.is_none()).count()
    }
}

/// Reason why an import ended before its last row.
#[derive(Debug, thiserror::Error)]
#[error("{source}; imported {done} of {all} rows, in the order of the file; to import the rest, run the same import again")]
pub struct MachineImportError {
    pub done: usize,
    pub all: usize,
    pub source: RowError,
}

/// Reason why a transaction of an import failed.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    #[error("line {line}: {source}")]
    Name { line: u64, source: EnrolmentError },
    #[error("line {line}: another command has changed {identity} meanwhile")]
    Changed { line: u64, identity: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Compares rows with the store.
///
/// # Errors
/// [`StoreError`].
pub async fn plan(store: &dyn Store, rows: Vec<ImportRow>, now: u64) -> Result<ImportPlan, StoreError> {
    let known: BTreeMap<String, EkRecord> = enrolment::allowlist(store).await?.into_iter().collect();
    let names: BTreeMap<String, String> = enrolment::names(store).await?.into_iter().collect();
    let name_of: BTreeMap<&str, &str> = names.iter().map(|(name, identity)| (identity.as_str(), name.as_str())).collect();
    // A name that was freed is still given, as long as the allowlist has it.
    let given = known.iter().filter(|(_, record)| record.removed.is_none());
    let given = given.filter_map(|(identity, record)| Some((record.name.as_deref()?, identity.as_str())));
    let owners: BTreeMap<&str, &str> = given
        .chain(names.iter().map(|(name, owner)| (name.as_str(), owner.as_str())))
        .collect();
    let revoked: BTreeSet<String> = revocations::list(store).await?.into_keys().collect();
    let mut plan = ImportPlan::default();
    for row in rows {
        plan.revoked += usize::from(revoked.contains(&row.identity));
        let before = known.get(&row.identity).cloned();
        if let Some(reason) = conflict(&row, before.as_ref(), &owners, &name_of) {
            plan.conflicts.push(RowConflict { line: row.line, reason });
            continue;
        }
        let has_name = row
            .name
            .as_ref()
            .is_none_or(|name| name_of.get(row.identity.as_str()) == Some(&name.as_str()));
        let after = merged(&row, before.as_ref(), now);
        if before.as_ref() == Some(&after) && has_name {
            plan.unchanged += 1;
            continue;
        }
        plan.changes.push(RowChange {
            line: row.line,
            identity: row.identity,
            before,
            after,
        });
    }
    Ok(plan)
}

fn conflict(row: &ImportRow, before: Option<&EkRecord>, owners: &BTreeMap<&str, &str>, name_of: &BTreeMap<&str, &str>) -> Option<String> {
    let identity = row.identity.as_str();
    if before.is_some_and(|record| record.removed.is_some()) {
        let (_, id) = entry_key(identity);
        return Some(match identity == id {
            true => format!("{identity} was removed from the allowlist; to forget that: `attest-gateway ek remove {id} --leave-to-roots`"),
            false => format!("{identity} was removed from the allowlist; to add it again: `attest-gateway ek add {id}`"),
        });
    }
    let name = row.name.as_deref()?;
    if let Some(owner) = owners.get(name).filter(|owner| **owner != identity) {
        return Some(format!("the name {name} belongs to {owner}"));
    }
    let (_, id) = entry_key(identity);
    if let Some(given) = before.and_then(|record| record.name.as_deref()).filter(|given| *given != name) {
        let command = match identity == id {
            true => format!("attest-gateway ek remove {id} --leave-to-roots"),
            false => format!("attest-gateway ek add {id} --name {name} --replace"),
        };
        return Some(format!(
            "the allowlist gives {identity} the name {given}; to change that: `{command}`"
        ));
    }
    let known = name_of.get(identity).copied().filter(|known| *known != name)?;
    Some(format!(
        "{identity} has the name {known}; to free it: `attest-gateway node forget {known}`"
    ))
}

/// Returns the entry that a row makes of an existing one.
fn merged(row: &ImportRow, before: Option<&EkRecord>, now: u64) -> EkRecord {
    let ImportRow { name, pools, note, .. } = row.clone();
    EkRecord {
        name: name.or_else(|| before?.name.clone()),
        added: before.map_or(now, |record| record.added),
        pools: pools.or_else(|| Some(before?.pools.clone())).unwrap_or_default(),
        note: note.or_else(|| before?.note.clone()),
        removed: None,
    }
}

/// Returns the number of transactions that these changes take.
#[must_use]
pub fn transaction_count(store: &dyn Store, changes: usize) -> usize {
    changes.div_ceil(rows_at_once(store))
}

fn rows_at_once(store: &dyn Store) -> usize {
    let rows = |most: usize| most.saturating_sub(ENTRIES_OF_THE_RECORD) / ENTRIES_OF_A_ROW;
    store.atomic_writes_limit().map_or(usize::MAX, |most| rows(most).max(1))
}

/// Applies the changes, if the store is still as it was when they were planned. The first transaction goes through `recorded`, which records
/// the import with it.
///
/// # Errors
/// [`MachineImportError`].
pub async fn apply(store: &dyn Store, recorded: &dyn Store, changes: &[RowChange]) -> Result<(), MachineImportError> {
    let mut done = 0;
    for part in changes.chunks(rows_at_once(store)) {
        let through = if done == 0 { recorded } else { store };
        let rows = part.to_vec();
        let written = through.transact(move |transaction| write(transaction, &rows)).await;
        written.map_err(|source| MachineImportError {
            done,
            all: changes.len(),
            source,
        })?;
        done += part.len();
    }
    Ok(())
}

fn write(transaction: &mut EntryTransaction<'_>, rows: &[RowChange]) -> Result<(), RowError> {
    let keys = rows.iter().flat_map(|row| {
        let name = row.after.name.as_deref().map(|name| (EntryKind::Name, name));
        [entry_key(&row.identity), (EntryKind::NameOf, row.identity.as_str())]
            .into_iter()
            .chain(name)
    });
    transaction.fetch(keys)?;
    for row in rows {
        let found = listed(transaction, &row.identity)?;
        // It has been written already if the outcome of an earlier attempt was unknown.
        if found != row.before && found.as_ref() != Some(&row.after) {
            let (line, identity) = (row.line, row.identity.clone());
            return Err(RowError::Changed { line, identity });
        }
        if found.as_ref() != Some(&row.after) {
            put_entry(transaction, &row.identity, &row.after)?;
        }
        if let Some(name) = &row.after.name {
            enrol(transaction, name, &row.identity, false).map_err(|error| match error {
                EnrolmentError::Store(error) => RowError::Store(error),
                source => RowError::Name { line: row.line, source },
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
