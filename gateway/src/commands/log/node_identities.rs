//! Finds the identities of a node, besides its name.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::anyhow;
use attest::challenge::is_node_name;
use attest_command_line::records::{Filter, LogSource};
use attest_gateway::settings::Settings;
use attest_machines::revocations::{Machine, machine};
use attest_store::{AnyStore, StoreError};

use crate::commands::output::{self, ReaderState};
use crate::commands::owner;

/// Identities of one node that are looked for: more than it has had.
const IDENTITIES_LIMIT: usize = 1000;

/// Returns the same source, with [`with_identities`] in its filter.
pub(crate) fn source_with_identities(settings: &Settings, source: LogSource) -> anyhow::Result<LogSource> {
    let filter = with_identities(settings, source.filter, &source.log)?;
    Ok(LogSource { filter, ..source })
}

/// Makes a filter find the records of a node also by its identities. They come from the store, or from these files, if they are not the
/// gateway's own or the store does not exist here.
pub(crate) fn with_identities(settings: &Settings, mut filter: Filter, log: &[PathBuf]) -> anyhow::Result<Filter> {
    let Some(node) = filter.node().filter(|node| is_node_name(node)).map(str::to_owned) else {
        return Ok(filter);
    };
    if log.is_empty() {
        match identities_in_store(settings, &node) {
            Ok(Some(identities)) => {
                filter.know_by(identities);
                return Ok(filter);
            }
            Ok(None) => {}
            Err(error) => output::print_note(format_args!(
                "attest-gateway: cannot read the identities of {node} from the store; taking them from the log: {error:#}"
            )),
        }
    }
    // Where there is no log, whoever reads it says so.
    if let Ok(opened) = LogSource::all_of(log).open(&settings.attestation_log(), None) {
        let mut identities = BTreeSet::new();
        opened.each(|read| {
            identities.extend(read.fields.iter().flat_map(|fields| fields.identities_of(&node, read.line)));
            let is_enough = identities.len() >= IDENTITIES_LIMIT;
            Ok(if is_enough { ReaderState::Gone } else { ReaderState::There })
        })?;
        filter.know_by(identities);
    }
    Ok(filter)
}

/// Returns the identities by which the store knows a node, without its name; `None` if the store does not exist here. The store is read in
/// a thread of its own, which acts as the state's owner. Other files that the command reads and writes may belong to another user.
fn identities_in_store(settings: &Settings, node: &str) -> anyhow::Result<Option<Vec<String>>> {
    let read = || {
        if !owner::act_quietly(settings)? {
            return Ok(None);
        }
        match AnyStore::exists(&settings.store) {
            // A log that was copied from its gateway.
            Ok(false) | Err(StoreError::Lost { .. }) => return Ok(None),
            looked => looked?,
        };
        let store = AnyStore::open(&settings.store)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Machine { all, .. } = runtime.block_on(machine(&store, node))?;
        Ok(Some(all.into_iter().filter(|known| known != node).collect()))
    };
    let read = std::thread::scope(|scope| scope.spawn(read).join());
    read.map_err(|_| anyhow!("the thread that reads the store failed"))?
}
