//! A member of an etcd cluster: its connection, and the user that the gateway authenticates as.
//!
//! A token states the revision of etcd's users at which it was issued. With `--auth-token jwt` etcd refuses it after a change of any user
//! or role; a simple token after a change of its own user. Such a refusal says that nothing was done. The gateway authenticates again, with
//! the password that its file then has, and retries.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use etcd_client::{Client, ConnectOptions, Error};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

/// Most authentications of one request: etcd's users may change again before it is repeated.
const AUTHENTICATIONS_LIMIT: usize = 3;
/// Time for which a password that etcd has refused is not sent again: etcd spends a tenth of a second of a processor on each.
const REFUSED_PASSWORD_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct EtcdMember {
    pub(super) endpoint: String,
    options: ConnectOptions,
    user: Option<EtcdUser>,
    client: OnceCell<Client>,
    token: Mutex<EtcdToken>,
}

/// Name and password of a user.
#[derive(Clone)]
pub(super) struct EtcdUser {
    pub(super) name: String,
    pub(super) password_file: PathBuf,
}

/// The token that the client shows.
#[derive(Default)]
struct EtcdToken {
    /// Sequence number of the present token.
    number: u64,
    /// A password that etcd has refused, and when.
    refused: Option<(String, Instant)>,
}

impl fmt::Debug for EtcdMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoint)
    }
}

impl EtcdUser {
    /// Reads the password from its file, without the line's end.
    pub(super) fn password(&self) -> io::Result<String> {
        let password = files::read_text(&self.password_file, SMALL_FILE_LIMIT_BYTES)?;
        Ok(password.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl EtcdMember {
    pub(super) fn new(endpoint: &str, options: ConnectOptions, user: Option<EtcdUser>) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            options,
            user,
            client: OnceCell::new(),
            token: Mutex::default(),
        }
    }

    /// Asks it; again after authenticating, if it does not take the token.
    pub(super) async fn ask<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let client = self.client().await?;
        let Some(user) = &self.user else { return ask(client).await };
        for _ in 0..AUTHENTICATIONS_LIMIT {
            let shown = self.token.lock().await.number;
            match ask(client.clone()).await {
                Err(error) if is_of_token(&error) => self.authenticate(user, client.clone(), shown).await?,
                answer => return answer,
            }
        }
        ask(client).await
    }

    async fn client(&self) -> Result<Client, Error> {
        let connect = || async {
            let mut options = self.options.clone();
            let mut token = self.token.lock().await;
            let password = self.user.as_ref().map(|user| token.password(user)).transpose()?;
            if let (Some(user), Some(password)) = (&self.user, &password) {
                options = options.with_user(&user.name, password);
            }
            let connected = Client::connect([self.endpoint.as_str()], Some(options)).await;
            token.answered(password, &connected);
            connected
        };
        self.client.get_or_try_init(connect).await.cloned()
    }

    /// Gets a new token in place of the one with this number, unless another request has done so.
    async fn authenticate(&self, user: &EtcdUser, mut client: Client, shown: u64) -> Result<(), Error> {
        let mut token = self.token.lock().await;
        if token.number != shown {
            return Ok(());
        }
        let password = token.password(user)?;
        // All clones of the client have the same token.
        let answer = client.update_user(Some((user.name.clone(), password.clone()))).await;
        token.answered(Some(password), &answer);
        answer?;
        token.number += 1;
        // A token has expired, or etcd's users have changed.
        tracing::debug!(endpoint = self.endpoint, user = user.name, "etcd: authenticated again");
        Ok(())
    }
}

impl EtcdToken {
    /// The password of the file, unless etcd has just refused it.
    fn password(&self, user: &EtcdUser) -> Result<String, Error> {
        let path: &Path = &user.password_file;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let password = user.password().map_err(named)?;
        match &self.refused {
            Some((refused, at)) if *refused == password && at.elapsed() < REFUSED_PASSWORD_PAUSE => Err(Error::InvalidArgs(format!(
                "authentication failed: etcd has refused the password of user {:?} in {}",
                user.name,
                path.display()
            ))),
            _ => Ok(password),
        }
    }

    fn answered<T>(&mut self, password: Option<String>, answer: &Result<T, Error>) {
        let refused = matches!(answer, Err(Error::GRpcStatus(status)) if status.message().contains("authentication failed"));
        self.refused = password.filter(|_| refused).map(|password| (password, Instant::now()));
    }
}

/// Returns whether etcd has done nothing because of the token: it precedes a change of users, has expired, or is invalid.
fn is_of_token(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let message = status.message();
    let says = ["revision of auth store is old", "invalid auth token", "user name is empty"];
    says.iter().any(|text| message.contains(text)) || format!("{:?}", status.code()) == "Unauthenticated"
}
