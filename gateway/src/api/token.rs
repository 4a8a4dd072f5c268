//! A provisioning token beside evidence. It is looked at while the rest is verified, examined when all of that holds, and used up last.

use attest::protocol::Evidence;
use attest_store::Store;

use super::evidence_context::EvidenceAsked;
use super::problem::Refusal;
use crate::credentials::tokens;

/// Its name, if there is one, and it is one. Nothing is used up.
pub(super) async fn name(store: &dyn Store, evidence: &Evidence) -> Result<Option<String>, Refusal> {
    let Some(evidence) = &evidence.token else { return Ok(None) };
    let found = tokens::look_up(store, evidence.token.reveal()).await;
    Ok(found.map_err(|error| Refusal::because(&error))?.map(|(record, _)| record.name))
}

/// The token, if there is one: it would be taken, and nothing is used up yet.
///
/// # Errors
/// The codes that begin with `token-`.
pub(super) async fn examine(
    store: &dyn Store,
    asked: &EvidenceAsked<'_>,
    node: tokens::Node<'_>,
) -> Result<Option<tokens::Presented>, Refusal> {
    let Some(evidence) = &asked.evidence.token else { return Ok(None) };
    let (text, pool) = (evidence.token.reveal(), asked.pool.name());
    let token = tokens::open(store, text, pool, asked.peer, asked.now).await?;
    token.examine(store, node, asked.now).await?;
    Ok(Some(token))
}
