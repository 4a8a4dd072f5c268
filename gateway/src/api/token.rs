//! A provisioning token in evidence. It is looked up while the rest is verified, and used up last, when all of that holds.

use attest::protocol::Evidence;
use attest_store::{Store, StoreError, Transact};
use zeroize::Zeroizing;

use super::problem::Refusal;
use crate::credentials::tokens;

/// Returns the token's text, if there is one.
pub(super) fn text(evidence: &Evidence) -> Option<Zeroizing<String>> {
    let token = &evidence.token.as_ref()?.token;
    Some(Zeroizing::new(token.reveal().to_owned()))
}

/// Returns the token's name, if the evidence has a token that the store knows. Nothing is used up.
pub(super) async fn name(store: &dyn Store, evidence: &Evidence) -> Result<Option<String>, Refusal> {
    let Some(text) = text(evidence) else { return Ok(None) };
    let found = store.read(move |transaction| tokens::look_up(transaction, &text));
    let found: Option<_> = found.await.map_err(|error: StoreError| Refusal::because(&error))?;
    Ok(found.map(|(record, _)| record.name))
}
