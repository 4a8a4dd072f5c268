//! Simulated Ignition: it asks for the config until the answer is not a 5xx, with the measured pauses and timeouts of Ignition
//! (`docs/reference/ignition.md`).

use std::net::Ipv4Addr;

use tokio::time::timeout;

use super::http::{Connection, Head, Lost, Server};
use super::tally::{Noted, Step};
use crate::support::{POOL, SPEC, accept, bearer};
use crate::waits::ignition::{CONNECT_LIMIT, HEAD_LIMIT, Pauses, TLS_LIMIT};

/// Fetches the config, which must equal this one. Returns the result if it is another, or none.
pub async fn fetch(
    server: &Server,
    source: Ipv4Addr,
    credential: &str,
    claimant: Option<&str>,
    expected: &[u8],
    noted: &mut Noted,
) -> Result<(), String> {
    let (accept, bearer) = (accept(SPEC), bearer(credential));
    let mut headers = vec![
        ("user-agent", "Ignition/2.14.0"),
        ("accept", accept.as_str()),
        ("accept-encoding", "identity"),
        ("authorization", bearer.as_str()),
    ];
    headers.extend(claimant.map(|claimant| ("attestation-claimant", claimant)));
    let request = server.request(&format!("GET /config/{POOL}"), &headers, &[]);
    let (mut kept, mut pauses) = (None, Pauses::default());
    loop {
        match ask(server, source, &request, &mut kept).await {
            Ok((mut connection, mut head)) if head.status == 200 => {
                noted.received += u64::try_from(head.length).unwrap();
                let (mut read, mut same) = (0, true);
                let body = connection.body(&mut head, |chunk| {
                    same &= expected.get(read..read + chunk.len()) == Some(chunk);
                    read += chunk.len();
                });
                // What is cut off is no config, and Ignition does not ask again.
                body.await.map_err(str::to_owned)?;
                return if same && read == expected.len() {
                    Ok(())
                } else {
                    Err("another config".to_owned())
                };
            }
            Ok((mut connection, mut head)) => {
                noted.failed(Step::Config, &head.status.to_string());
                if head.status < 500 {
                    return Err(format!("refused with {}", head.status));
                }
                // Go reads what is left of a small body only if its caller does, and Ignition does not: then the connection ends.
                if head.length == 0 && !head.closes && connection.body(&mut head, |_| ()).await.is_ok() {
                    kept = Some(connection);
                }
            }
            Err(lost) => noted.failed(Step::Config, lost),
        }
        tokio::time::sleep(pauses.next()).await;
    }
}

async fn ask(server: &Server, source: Ipv4Addr, request: &[u8], kept: &mut Option<Connection>) -> Result<(Connection, Head), Lost> {
    let mut connection = match kept.take().and_then(Connection::if_open) {
        Some(connection) => connection,
        None => server.connect(source, CONNECT_LIMIT, TLS_LIMIT).await?,
    };
    connection.send(request).await?;
    let head = timeout(HEAD_LIMIT, connection.head()).await.map_err(|_| "timeout")??;
    Ok((connection, head))
}
