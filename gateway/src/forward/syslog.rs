//! Records as syslog messages. Syslog acknowledges nothing: what is given to the connection counts as taken.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixDatagram};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::batch::Sent;
use super::sink::{DELIVERY_LIMIT, OpenError, Refused, Sink};
use super::tls;
use crate::audit::LineHash;
use crate::causes::with_causes;
use crate::settings::Receiver;

/// The facility of log audits, 13, times 8.
const FACILITY: u8 = 13 * 8;
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;
/// What a message is of.
const APPLICATION: &str = "attest-gateway";
/// Longest MSGID, in characters.
const MESSAGE_ID_LIMIT: usize = 32;
/// What of a record a datagram has that is too large for all of it.
const SHORT: [&str; 15] = [
    "v",
    "time",
    "at",
    "id",
    "decision",
    "verdict",
    "peer",
    "pool",
    "shown",
    "identity",
    "name",
    "code",
    "grant",
    "earned_by",
    "chain",
];

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A receiver of messages, connected when there is something for it.
pub(super) struct Syslog {
    to: Target,
    host: String,
    stream: Option<Box<dyn Stream>>,
}

enum Target {
    Tcp {
        address: String,
    },
    Tls {
        address: String,
        name: ServerName<'static>,
        tls: TlsConnector,
    },
    Socket(PathBuf),
}

impl Syslog {
    /// `host` is what this gateway is called in messages.
    pub(super) fn open(name: &str, to: &Receiver, host: String) -> Result<Self, OpenError> {
        let to = match to {
            Receiver::SyslogSocket(path) => Target::Socket(path.clone()),
            Receiver::Syslog { host, port } => Target::Tcp {
                address: format!("{host}:{port}"),
            },
            Receiver::SyslogTls { host, port, ca } => tls_target(name, host, *port, tls::client_config(name, ca)?)?,
            Receiver::Http { .. } => {
                return Err(OpenError::Client {
                    name: name.to_owned(),
                    problem: "it is no receiver of syslog".to_owned(),
                });
            }
        };
        Ok(Self { to, host, stream: None })
    }

    /// The connection: the one that there is, unless the other end has closed it.
    async fn connected(&mut self) -> Result<&mut Box<dyn Stream>, Refused> {
        let closed = match &mut self.stream {
            Some(stream) => is_closed(stream),
            None => true,
        };
        if closed {
            self.stream = None;
        }
        match &mut self.stream {
            Some(stream) => Ok(stream),
            none => Ok(none.insert(connect(&self.to).await?)),
        }
    }

    async fn send_over_stream(&mut self, records: &[Sent]) -> Result<(), Refused> {
        let mut frames = Vec::new();
        for record in records {
            let message = message(record, &self.host);
            frames.extend_from_slice(format!("{} ", message.len()).as_bytes());
            frames.extend(message);
        }
        let stream = self.connected().await?;
        let failed = |error: std::io::Error| Refused::because(error.to_string());
        stream.write_all(&frames).await.map_err(failed)?;
        stream.flush().await.map_err(failed)?;
        // Whoever had gone before it came has said so by now, if it is near.
        if is_closed(stream) {
            return Err(Refused::because("it closes the connection"));
        }
        Ok(())
    }
}

fn tls_target(name: &str, host: &str, port: u16, mut config: ClientConfig) -> Result<Target, OpenError> {
    // No application's protocol but syslog has this port.
    config.alpn_protocols.clear();
    let server = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|error| OpenError::Client {
        name: name.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(Target::Tls {
        address: format!("{host}:{port}"),
        name: server,
        tls: TlsConnector::from(Arc::new(config)),
    })
}

/// Whether the other end has closed it, as far as is known without waiting.
fn is_closed(stream: &mut Box<dyn Stream>) -> bool {
    let mut said = [0; 256];
    // A receiver says nothing; what it says all the same is of no interest.
    matches!(stream.read(&mut said).now_or_never(), Some(Ok(0) | Err(_)))
}

async fn connect(to: &Target) -> Result<Box<dyn Stream>, Refused> {
    let failed = |error: std::io::Error| Refused::because(with_causes(&error));
    Ok(match to {
        Target::Tcp { address } => Box::new(TcpStream::connect(address).await.map_err(failed)?),
        Target::Tls { address, name, tls } => {
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            Box::new(tls.connect(name.clone(), stream).await.map_err(failed)?)
        }
        Target::Socket(_) => return Err(Refused::because("it takes datagrams")),
    })
}

#[async_trait]
impl Sink for Syslog {
    async fn give(&mut self, records: &[Sent]) -> Result<(), Refused> {
        let given = match &self.to {
            Target::Socket(path) => timeout(DELIVERY_LIMIT, send_datagrams(&path.clone(), records)).await,
            _ => timeout(DELIVERY_LIMIT, self.send_over_stream(records)).await,
        };
        let given = given.unwrap_or_else(|_| Err(Refused::because(format!("it takes nothing for {} s", DELIVERY_LIMIT.as_secs()))));
        if given.is_err() {
            self.stream = None;
        }
        given
    }
}

async fn send_datagrams(path: &PathBuf, records: &[Sent]) -> Result<(), Refused> {
    let failed = |error: std::io::Error| Refused::because(format!("{}: {error}", path.display()));
    let socket = UnixDatagram::unbound().map_err(failed)?;
    socket.connect(path).map_err(failed)?;
    for record in records {
        let sent = socket.send(&local_message(record, &record.line)).await;
        match sent {
            Err(error) if is_too_large(&error) => {
                socket.send(&local_message(record, &shortened(record))).await.map_err(failed)?;
            }
            sent => drop(sent.map_err(failed)?),
        }
    }
    Ok(())
}

fn is_too_large(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) || error.kind() == ErrorKind::FileTooLarge
}

fn priority(record: &Sent) -> u8 {
    // Other lines refuse nobody, whatever their verdict says.
    let is_about_a_node = ["challenge", "evidence", "config"].contains(&record.about.decision.as_str());
    let worth_a_look =
        record.about.verdict == "refused" && is_about_a_node || !record.about.alerts.is_empty() || !record.about.would_refuse.is_empty();
    FACILITY + if worth_a_look { WARNING } else { INFORMATIONAL }
}

/// By RFC 5424; the message is the record's line.
fn message(record: &Sent, host: &str) -> Vec<u8> {
    let is_word = |text: &str, limit: usize| !text.is_empty() && text.len() <= limit && text.bytes().all(|byte| byte.is_ascii_graphic());
    let word = |text: &str, limit: usize| if is_word(text, limit) { text.to_owned() } else { "-".to_owned() };
    let is_time = |byte: u8| byte.is_ascii_digit() || b"-:TZ".contains(&byte);
    let time = Some(&record.about.time).filter(|time| time.len() == 20 && time.bytes().all(is_time));
    let (priority, time) = (priority(record), time.map_or("-", String::as_str));
    let (host, id) = (word(host, 255), word(&record.about.decision, MESSAGE_ID_LIMIT));
    let mut message = format!("<{priority}>1 {time} {host} {APPLICATION} - {id} - ").into_bytes();
    message.extend_from_slice(&record.line);
    message
}

/// As programs write to the socket of their own machine: journald and rsyslog take the rest from there.
fn local_message(record: &Sent, text: &[u8]) -> Vec<u8> {
    let mut message = format!("<{}>{APPLICATION}: ", priority(record)).into_bytes();
    message.extend_from_slice(text);
    message
}

/// What is sent of a record that is too large: who, what and which line, and the hash of the line that has the rest.
fn shortened(record: &Sent) -> Vec<u8> {
    let whole: Map<String, Value> = serde_json::from_slice(&record.line).unwrap_or_default();
    let mut short: Map<String, Value> = whole.into_iter().filter(|(name, _)| SHORT.contains(&name.as_str())).collect();
    short.insert(
        "shortened".to_owned(),
        json!({"bytes": record.line.len(), "sha256": LineHash::of(&record.line)}),
    );
    Value::Object(short).to_string().into_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::batch::About;
    use super::super::kept::Place;
    use super::*;
    use crate::audit::reading::Position;

    fn record(line: &str) -> Sent {
        let about: About = serde_json::from_str(line).unwrap();
        Sent {
            line: line.as_bytes().to_vec(),
            chain: None,
            place: Place {
                chain: None,
                number: None,
                at: about.at,
                position: Position {
                    offset: 0,
                    sha256: LineHash::NONE,
                },
            },
            about,
        }
    }

    fn text(record: &Sent, host: &str) -> String {
        String::from_utf8(message(record, host)).unwrap()
    }

    #[test]
    fn a_message_has_the_head_of_rfc_5424_and_the_record_as_it_is() {
        let line = r#"{"time":"2026-11-21T11:00:46Z","at":1,"decision":"config","verdict":"served"}"#;
        let head = "2026-11-21T11:00:46Z gw-1 attest-gateway - config -";
        assert_eq!(text(&record(line), "gw-1"), format!("<110>1 {head} {line}"));
        let refused = line.replace("served", "refused");
        assert_eq!(text(&record(&refused), "gw-1"), format!("<108>1 {head} {refused}"));
        assert_eq!(local_message(&record(line), b"x"), b"<110>attest-gateway: x");
        for (decision, expected) in [
            ("challenge", "<108>"),
            ("evidence", "<108>"),
            // All of these have the verdict of one who was refused.
            ("admin", "<110>"),
            ("checkpoint", "<110>"),
            ("counted", "<110>"),
            ("store_accepted", "<110>"),
        ] {
            let of_decision = refused.replace("\"config\"", &format!("\"{decision}\""));
            assert!(text(&record(&of_decision), "gw-1").starts_with(expected), "{decision}");
        }
    }

    #[test]
    fn nothing_of_a_record_gets_into_the_head() {
        for (time, decision) in [
            ("x", "a b"),
            ("2026-11-21T11:00:46\n", ""),
            ("2026-11-21 11:00:46Z", "\u{e4}"),
            ("", "\u{1b}[2J"),
        ] {
            let line = json!({"time": time, "decision": decision}).to_string();
            assert_eq!(
                text(&record(&line), ""),
                format!("<110>1 - - attest-gateway - - - {line}"),
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_too_large_says_who_and_which_line() {
        let line = format!(
            r#"{{"time":"t","at":1,"id":"i","decision":"evidence","verdict":"trusted","name":"worker-7","reason":"long","claims":{{"a":"{}"}},"chain":{{"id":"c","number":7}}}}"#,
            "x".repeat(1_000_000)
        );
        let short: Value = serde_json::from_slice(&shortened(&record(&line))).unwrap();
        assert_eq!((&short["name"], &short["chain"]["number"]), (&json!("worker-7"), &json!(7)));
        assert_eq!(short["shortened"]["bytes"], line.len());
        assert_eq!(short["shortened"]["sha256"], LineHash::of(line.as_bytes()).to_string());
        assert!(short.get("claims").is_none() && short.get("reason").is_none());
    }
}
