//! The time limit of the API's answers.

use std::time::Duration;

use super::ClusterError;

/// Time limit for one answer: a page of a list, the beginning of a watch.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Returns an answer of the API, within the time that one may take.
///
/// # Errors
/// [`ClusterError`], about `what`.
pub(super) async fn answered<T>(what: &'static str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(ANSWER_LIMIT, answer).await {
        Ok(answer) => answer.map_err(|error| ClusterError::Api { what, error }),
        Err(_) => Err(ClusterError::Silent {
            what,
            seconds: ANSWER_LIMIT.as_secs(),
        }),
    }
}
