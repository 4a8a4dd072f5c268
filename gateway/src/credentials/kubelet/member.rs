use attest_machines::names::NamePatterns;
use attest_machines::revocations::{self, RevocationError};
use attest_store::{Anew, Reading, Store};

use super::{MemberError, Verified};

/// The kubelet of a node that belongs to a pool and is not revoked. Only [`admit`] makes one.
#[derive(Debug, Clone)]
pub struct Member {
    verified: Verified,
    pool: String,
}

impl Member {
    /// What its certificate has proven.
    #[must_use]
    pub const fn verified(&self) -> &Verified {
        &self.verified
    }

    /// The pool that it belongs to.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }
}

/// Decides whether the node belongs to the pool; the store is asked each time whether it is revoked. Nothing is used up, in whose transaction that
/// could be asked: so all that was read has to stand there at one moment, whether it is taken or refused for that.
///
/// # Errors
/// [`MemberError`].
pub async fn admit(store: &dyn Store, verified: &Verified, pool: &str, names: &NamePatterns) -> Result<Member, MemberError> {
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let refused = match revocations::refuse(&mut reading, &[verified.name()], &[]).await {
            Err(error @ RevocationError::Store(_)) => return Err(error.into()),
            refused => refused,
        };
        match reading.confirm().await {
            Ok(()) => break refused?,
            Err(error) => anew.again(error)?,
        }
    }
    names.check(verified.name(), pool)?;
    Ok(Member {
        verified: verified.clone(),
        pool: pool.to_owned(),
    })
}
