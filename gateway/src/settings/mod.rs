//! Settings: what the file says, made whole with defaults and checked.

mod cloud;
mod file;
mod forward;
pub(crate) mod misplaced;
mod store;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::SpkiSha256;
use attest::protocol::EVIDENCE_BODY_LIMIT_BYTES;
pub use cloud::{AwsSettings, AzureSettings, CloudSettings, GcpSettings, OutgoingSettings};
pub use file::LogFormat;
use file::{File, SECTIONS};
pub use forward::{Address, ForwardSettings, Receiver};
use ipnet::IpNet;
use serde_json::Value;
pub use store::{EtcdSettings, StoreSettings};
use tracing_subscriber::EnvFilter;

use crate::network::network;

/// The sample that `init` writes; it holds every key at its default.
pub const SAMPLE: &str = include_str!("../../dist/gateway.toml");

/// How long a ticket that was not used can be good at most after its lifetime, in seconds. A week: a gateway that was away for longer is a site that is
/// provisioned anew; and the store remembers for as long what was used.
pub const TICKET_LATE_LIMIT_SECONDS: u64 = 7 * 86_400;
/// Least memory for bodies, in bytes: twice the largest body that there is, so that one of them never keeps all others waiting.
const BODY_BYTES_LEAST: usize = 2 * EVIDENCE_BODY_LIMIT_BYTES;

/// Smallest segment of the attestation log, in bytes: a few lines.
const SEGMENT_BYTES_LEAST: u64 = 4096;

/// Longest name of a replica, in characters: as long as a host's name can be.
const REPLICA_LIMIT_CHARACTERS: usize = 64;

/// Everything the gateway is told, checked and with its paths resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What the file says, key by key; what it leaves out is not there.
    pub said: BTreeMap<String, Value>,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Balancers: each connection from there says first, by the PROXY protocol, whose it is.
    pub balancers: Vec<IpNet>,
    /// Private state: store, seal, attestation log.
    pub state: PathBuf,
    /// What keeps the store.
    pub engine: StoreSettings,
    /// One folder for each pool.
    pub pools: PathBuf,
    /// Certificates that endorse EKs.
    pub ek_roots: PathBuf,
    /// The key that replicas share, by which the seal's keys are encrypted in the store. None: the seal's keys are this gateway's alone, in a
    /// file.
    pub store_key_file: Option<PathBuf>,
    /// The MCS certificate.
    pub tls: TlsSettings,
    /// Challenges: how long one can be answered.
    pub challenge_lifetime: Duration,
    pub ticket: TicketSettings,
    pub limits: Limits,
    /// How the console's lines look.
    pub log_format: LogFormat,
    /// What the console shows, as a tracing filter.
    pub log_filter: String,
    pub checkpoints: CheckpointSettings,
    pub segments: SegmentSettings,
    /// Who is sent the attestation log's records.
    pub forwards: Vec<ForwardSettings>,
    /// Where metrics are, if anywhere.
    pub metrics_listen: Option<SocketAddr>,
    /// What cloud evidence is verified against.
    pub clouds: CloudSettings,
}

/// The MCS certificate and its surroundings.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsSettings {
    /// The MCS CA's certificate, as it stands in pointers.
    pub ca: PathBuf,
    /// The serving certificate and whatever chain it has.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Keys that this gateway used before: evidence made for them is accepted still.
    pub previous_keys: Vec<SpkiSha256>,
    /// Who signs the client certificates of kubelets, if they are taken.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketSettings {
    /// How long one is good.
    pub lifetime: Duration,
    /// How long after that one is good that was not used before.
    pub late: Duration,
    /// How many fetches one is good for.
    pub uses: u32,
}

impl TicketSettings {
    /// How long after it was issued one can be good at most: first used as late as it may be, and then for a lifetime.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        let latest = self.lifetime.saturating_add(self.late);
        if self.late.is_zero() {
            latest
        } else {
            latest.saturating_add(self.lifetime)
        }
    }
}

/// When the gateway signs how far its attestation log has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSettings {
    /// What this gateway is called in them; the host's name otherwise.
    pub name: Option<String>,
    /// After so many records, whenever they came.
    pub records: u64,
    /// After so long, if there is a new record.
    pub every: Duration,
}

/// When a file of the attestation log is closed, and another begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSettings {
    /// At so many bytes.
    pub bytes: u64,
    /// So long after its first line.
    pub age: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Requests in work at once.
    pub requests: usize,
    /// Memory for the bodies of requests, in bytes: those under way and those in work.
    pub body_bytes: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head.
    pub header: Duration,
    /// For a whole request, body and answer's making included.
    pub request: Duration,
    /// For requests under way when the gateway is told to stop.
    pub drain: Duration,
}

/// Whether a gateway can be called so: one word of a line.
#[must_use]
pub fn is_replica_name(name: &str) -> bool {
    let takes = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= REPLICA_LIMIT_CHARACTERS && name.chars().all(takes)
}

/// What a file says, by `section.key`.
fn said(text: &str) -> BTreeMap<String, Value> {
    let sections = toml::from_str::<BTreeMap<String, Value>>(text).unwrap_or_default();
    let keys = sections.into_iter().flat_map(|(name, value)| match value {
        Value::Object(keys) => keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect(),
        value => vec![(name, value)],
    });
    keys.collect()
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("{path}: {source}; `attest-gateway init` makes a gateway's folder, --config names its gateway.toml")]
    Io { path: PathBuf, source: std::io::Error },
    /// The file is no TOML, or has unknown keys, or values of the wrong type.
    #[error("{path}: {}{hint}", source.to_string().trim_end())]
    Toml {
        path: PathBuf,
        /// Where and what, with the line.
        source: Box<toml::de::Error>,
        /// Where a misplaced key belongs.
        hint: String,
    },
    /// A value out of its range.
    #[error("{path}: {key} is {found}; {allowed}")]
    Range {
        path: PathBuf,
        key: &'static str,
        found: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Settings {
    /// Reads and checks the file; its folder is what relative paths are relative to.
    ///
    /// # Errors
    /// [`SettingsError`], which names file, line and key.
    pub fn load(file: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(file).map_err(|source| SettingsError::Io {
            path: file.to_owned(),
            source,
        })?;
        Self::parse(&text, file)
    }

    /// The embedded defaults, for a gateway whose folder is `folder`.
    ///
    /// # Errors
    /// None: the defaults are valid.
    pub fn defaults(folder: &Path) -> Result<Self, SettingsError> {
        Self::parse("", &folder.join("gateway.toml"))
    }

    fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let file: File = toml::from_str(text).map_err(|source| SettingsError::Toml {
            path: path.to_owned(),
            hint: misplaced::hint::<File>(&source, SECTIONS),
            source: Box::new(source),
        })?;
        let said = said(text);
        let range = |key, found: String, allowed| {
            Err(SettingsError::Range {
                path: path.to_owned(),
                key,
                found,
                allowed,
            })
        };
        let seconds = |key, value: u32, most: u32| {
            if value == 0 || value > most {
                return Err(SettingsError::Range {
                    path: path.to_owned(),
                    key,
                    found: value.to_string(),
                    allowed: "seconds, at least 1 and at most a few minutes (a day for the ticket, an hour for checkpoints)",
                });
            }
            Ok(Duration::from_secs(value.into()))
        };
        let File {
            listen,
            proxy_protocol_from,
            state,
            pools,
            ek_roots,
            store,
            tls,
            challenge,
            ticket,
            limits,
            log,
            attestation_log,
            metrics,
            outgoing,
            gcp,
            aws,
            azure,
        } = file;
        let balancers = match balancers(&proxy_protocol_from) {
            Ok(balancers) => balancers,
            Err(found) => {
                return range(
                    "proxy_protocol_from",
                    found,
                    "addresses and networks of balancers, such as \"192.0.2.10\" or \"2001:db8::/64\", and never everybody's: whoever comes from there says whose connection it is",
                );
            }
        };
        if u64::from(ticket.late_seconds) > TICKET_LATE_LIMIT_SECONDS {
            return range("ticket.late_seconds", ticket.late_seconds.to_string(), "0 to 604800, a week");
        }
        if ticket.uses == 0 || ticket.uses > 100 {
            return range("ticket.uses", ticket.uses.to_string(), "1 to 100");
        }
        if limits.connections == 0 || limits.requests == 0 {
            return range("limits", "0".to_owned(), "connections and requests are at least 1");
        }
        if limits.body_bytes < BODY_BYTES_LEAST {
            return range("limits.body_bytes", limits.body_bytes.to_string(), "at least 4194304");
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        if let Err(error) = EnvFilter::try_new(&log.filter) {
            return range(
                "log.filter",
                format!("{:?} ({error})", log.filter),
                "a tracing filter, such as \"info\" or \"warn,attestation=info\"",
            );
        }
        if let Some(name) = attestation_log.name.as_ref().filter(|name| !is_replica_name(name)) {
            let allowed = "1 to 64 of A-Z, a-z, 0-9, '.', '-', '_'";
            return range("attestation_log.name", format!("{name:?}"), allowed);
        }
        if attestation_log.checkpoint_records == 0 {
            return range("attestation_log.checkpoint_records", "0".to_owned(), "at least 1");
        }
        if attestation_log.segment_bytes < SEGMENT_BYTES_LEAST {
            let found = attestation_log.segment_bytes.to_string();
            return range("attestation_log.segment_bytes", found, "at least 4096");
        }
        if attestation_log.segment_seconds == 0 {
            return range("attestation_log.segment_seconds", "0".to_owned(), "at least 1");
        }
        let forwards = match forward::checked(attestation_log.forward, folder) {
            Ok(forwards) => forwards,
            Err((key, found, allowed)) => return range(key, found, allowed),
        };
        let request = seconds("limits.request_seconds", limits.request_seconds, 300)?;
        let clouds = match cloud::checked((outgoing, gcp, aws, azure), folder, request) {
            Ok(clouds) => clouds,
            Err((key, found, allowed)) => return range(key, found, allowed),
        };
        let store_key_file = store.key_file.as_ref().map(|path| folder.join(path));
        let engine = match store::checked(store, folder) {
            Ok(engine) => engine,
            Err((key, found, allowed)) => return range(key, found, allowed),
        };
        Ok(Self {
            said,
            listen,
            balancers,
            state: folder.join(state),
            engine,
            pools: folder.join(pools),
            ek_roots: folder.join(ek_roots),
            store_key_file,
            tls: TlsSettings {
                ca: folder.join(tls.ca),
                certificate: folder.join(tls.certificate),
                key: folder.join(tls.key),
                previous_keys: tls.previous_keys,
                client_ca: tls.client_ca.map(|path| folder.join(path)),
            },
            challenge_lifetime: seconds("challenge.lifetime_seconds", challenge.lifetime_seconds, 900)?,
            ticket: TicketSettings {
                lifetime: seconds("ticket.lifetime_seconds", ticket.lifetime_seconds, 86_400)?,
                late: Duration::from_secs(ticket.late_seconds.into()),
                uses: ticket.uses,
            },
            limits: Limits {
                connections: limits.connections,
                requests: limits.requests,
                body_bytes: limits.body_bytes,
                handshake: seconds("limits.handshake_seconds", limits.handshake_seconds, 120)?,
                header: seconds("limits.header_seconds", limits.header_seconds, 120)?,
                request,
                drain: seconds("limits.drain_seconds", limits.drain_seconds, 300)?,
            },
            log_format: log.format,
            log_filter: log.filter,
            checkpoints: CheckpointSettings {
                name: attestation_log.name,
                records: attestation_log.checkpoint_records,
                every: seconds("attestation_log.checkpoint_seconds", attestation_log.checkpoint_seconds, 3600)?,
            },
            segments: SegmentSettings {
                bytes: attestation_log.segment_bytes,
                age: Duration::from_secs(attestation_log.segment_seconds.into()),
            },
            forwards,
            metrics_listen: metrics.listen,
            clouds,
        })
    }

    #[must_use]
    pub fn attestation_log(&self) -> PathBuf {
        self.state.join("attestation.jsonl")
    }

    /// The key that signs the attestation log's checkpoints.
    #[must_use]
    pub fn log_key(&self) -> PathBuf {
        self.state.join("log.key")
    }

    /// How far each receiver of the attestation log's records has come.
    #[must_use]
    pub fn forwarded(&self) -> PathBuf {
        self.state.join("forward")
    }

    /// The attestation log's large parts.
    #[must_use]
    pub fn evidence(&self) -> PathBuf {
        self.state.join("evidence")
    }

    /// The embedded store. What is known of a store lies beside it, whatever engine keeps that.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.state.join("gateway.db")
    }

    /// How long a key of the seal opens after a newer one has taken its place: as long as what it sealed last is good, and longer than
    /// a running gateway takes to notice.
    #[must_use]
    pub fn seal_keep(&self) -> Duration {
        const NOTICED: Duration = Duration::from_secs(3600);
        self.challenge_lifetime.max(self.ticket.longest()).saturating_add(NOTICED)
    }

    #[must_use]
    pub fn seal_key(&self) -> PathBuf {
        self.state.join("seal.key")
    }
}

/// The networks that are named; the text that names none, or everybody.
fn balancers(texts: &[String]) -> Result<Vec<IpNet>, String> {
    let balancers = texts.iter().map(|text| match network(text) {
        Ok(network) if network.prefix_len() > 0 => Ok(network),
        _ => Err(format!("{text:?}")),
    });
    balancers.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::parse(text, Path::new("/etc/attestation-gateway/gateway.toml"))
    }

    #[test]
    fn a_key_of_the_seal_opens_what_it_sealed_for_as_long_as_that_is_good() {
        let keep = |text: &str| parse(text).unwrap().seal_keep().as_secs() - 3600;
        // Of a ticket its lifetime, how late it may be, and its lifetime from then on.
        assert_eq!(keep(""), 600 + 86_400 + 600);
        assert_eq!(keep("[ticket]\nlate_seconds = 0"), 600);
        assert_eq!(keep("[ticket]\nlate_seconds = 0\nlifetime_seconds = 1"), 120, "a challenge");
    }

    #[test]
    fn the_sample_says_the_defaults() {
        assert_eq!(parse(SAMPLE).unwrap(), parse("").unwrap());
        let uncommented: String = SAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_ne!(uncommented, SAMPLE, "the sample shows every key behind `#: `");
        let mut settings = parse(&uncommented).unwrap();
        // They are as if nobody had said them, but that somebody has.
        assert!(!std::mem::take(&mut settings.said).is_empty());
        assert_eq!(settings, parse("").unwrap());
    }

    #[test]
    fn the_sample_shows_a_receiver_as_it_is_configured() {
        let lines = SAMPLE
            .lines()
            .skip_while(|line| *line != "# [[attestation_log.forward]]")
            .take_while(|line| !line.is_empty());
        let lines = lines.filter(|line| line.starts_with("# [[") || line.contains(" = "));
        let text: String = lines.map(|line| line.replacen("# ", "", 1) + "\n").collect();
        let [forward] = parse(&text).unwrap().forwards.try_into().unwrap();
        let Receiver::Http {
            ca: Some(_),
            token_file: Some(token_file),
            ..
        } = forward.to
        else {
            panic!("{text}");
        };
        assert_eq!(token_file, Path::new("/etc/attestation-gateway/siem.token"));
    }

    #[test]
    fn a_name_is_one_word_of_a_line() {
        for (name, good) in [
            ("gw-1.example.com", true),
            ("A_b", true),
            ("", false),
            ("a b", false),
            ("a\n", false),
            ("ä", false),
            (&"a".repeat(64), true),
            (&"a".repeat(65), false),
        ] {
            assert_eq!(is_replica_name(name), good, "{name:?}");
        }
    }

    #[test]
    fn checkpoints_are_made_now_and_then_by_a_gateway_with_a_name() {
        let read = |text: &str| parse(&format!("[attestation_log]\n{text}")).map(|settings| settings.checkpoints);
        assert_eq!(read("name = \"gw-1\"").unwrap().name.unwrap(), "gw-1");
        for refused in [
            "name = \"\"",
            "name = \"a b\"",
            "checkpoint_records = 0",
            "checkpoint_seconds = 0",
            "checkpoint_seconds = 3601",
            "segment_bytes = 4095",
            "segment_seconds = 0",
        ] {
            read(refused).unwrap_err();
        }
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let settings = parse("state = \"s\"\npools = \"/srv/pools\"").unwrap();
        assert_eq!(settings.state, Path::new("/etc/attestation-gateway/s"));
        assert_eq!(settings.pools, Path::new("/srv/pools"));
        let shared = parse("[store]\nkey_file = \"store.key\"").unwrap();
        assert_eq!(shared.store_key_file.unwrap(), Path::new("/etc/attestation-gateway/store.key"));
        let clouds = parse("[gcp]\njwks = \"keys.json\"\n[aws]\nnitro_roots = \"/srv/nitro\"")
            .unwrap()
            .clouds;
        assert_eq!(clouds.gcp.jwks.unwrap(), Path::new("/etc/attestation-gateway/keys.json"));
        assert_eq!(clouds.azure.roots, Path::new("/etc/attestation-gateway/azure-roots"));
        assert_eq!(clouds.aws.nitro_roots, Path::new("/srv/nitro"));
    }

    #[test]
    fn who_waits_for_a_cloud_has_time_left_to_answer() {
        assert_eq!(parse("").unwrap().clouds.wait, Duration::from_secs(5));
        let clouds = parse("[limits]\nrequest_seconds = 1").unwrap().clouds;
        assert_eq!(clouds.wait, Duration::from_millis(500));
    }

    #[test]
    fn balancers_are_named_by_their_addresses() {
        let balancers = |text: &str| parse(&format!("proxy_protocol_from = [{text}]")).map(|settings| settings.balancers);
        let named = balancers(r#""192.0.2.10", "10.1.2.3/8", "::ffff:192.0.2.16/124""#).unwrap();
        assert_eq!(
            named.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["192.0.2.10/32", "10.0.0.0/8", "192.0.2.16/28"]
        );
        assert!(balancers("").unwrap().is_empty());
        for everybody in ["0.0.0.0/0", "::/0", "10.0.0.0/0", "::ffff:0.0.0.0/96", "balancer", ""] {
            let error = balancers(&format!("{everybody:?}")).unwrap_err().to_string();
            assert!(error.contains("proxy_protocol_from") && error.contains(everybody), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        let unknown = error("\nlisten = \"127.0.0.1:1\"\nlimit = 3\n");
        assert!(unknown.contains("line 3") && unknown.contains("limit"), "{unknown}");
        assert!(error("listen = \"nowhere\"").contains("line 1"));
        assert!(error("[ticket]\nuses = 0").contains("ticket.uses is 0"));
        assert!(error("[ticket]\nlate_seconds = 604801").contains("ticket.late_seconds is 604801"));
        assert!(error("[ticket]\nuse = 1").contains("use"));
        assert!(error("key_file = \"x\"").contains("key_file belongs under [store]"));
        assert!(error("[limits]\nclient_ca = \"a\"").contains("client_ca belongs under [tls]"));
        assert!(error("uses = 1").contains("uses belongs under [ticket]"));
        assert!(error("[tls]\nlisten = \"[::]:1\"").contains("listen belongs under the top, before any heading or [metrics]"));
        assert!(error("[ticket]\nlifetime = 1").lines().last().unwrap().contains("expected"));
        misplaced::assert_complete::<File>(SECTIONS);
        assert!(error("[challenge]\nlifetime_seconds = 0").contains("challenge.lifetime_seconds"));
        assert!(error("[challenge]\nlifetime_seconds = 90000").contains("challenge.lifetime_seconds"));
        assert!(error("[limits]\nconnections = -1").contains("line 2"));
        assert!(error("[limits]\nbody_bytes = 4194303").contains("at least 4194304"));
        assert!(error("[tls]\nprevious_keys = [\"abc\"]").contains("64"));
        assert!(error("[log]\nformat = \"xml\"").contains("text"));
        assert!(error("[log]\nfilter = \"a=b=c\"").contains("log.filter is \"a=b=c\""));
        assert!(error("[outgoing]\nproxy = \"x\"").contains("proxy"));
        assert!(error("[outgoing.connect]\n\"10.0.0.5\" = \"10.0.0.5:443\"").contains("names of hosts"));
        assert!(error("[outgoing.connect]\n\"a.b\" = \"10.0.0.5\"").contains("line 2"));
        assert!(error("[outgoing.connect]\n\"a.b\" = \"10.0.0.5:0\"").contains("port"));
        assert!(error("[outgoing.connect]\n\"a.b\" = \"1.1.1.1:1\"\n\"A.b\" = \"1.1.1.1:1\"").contains("each host once"));
        assert!(error("[gcp]\nname = \"a/b\"").contains("gcp.name"));
        assert!(error("[gcp]\nname = \"\"").contains("gcp.name"));
        assert!(error("[aws]\nroots = \"x\"").contains("roots"));
        assert!(error("[azure]\nclouds = [\"private\"]").contains("private"));
        assert!(error("[azure]\nclouds = [\"public\", \"public\"]").contains("each cloud once"));
    }

    #[test]
    fn what_is_wrong_with_the_store_is_named() {
        let error = |text: &str| parse(&format!("[store]\n{text}")).unwrap_err().to_string();
        assert!(error("engine = \"sqlite\"").contains("embedded"));
        assert!(error("endpoints = [\"http://[::1]:2379\"]").contains("store.endpoints is set; for etcd only"));
        assert!(error("certificate = \"c\"").contains("store.certificate is set"));
        let etcd = |endpoints: &str, text: &str| {
            let text = format!("engine = \"etcd\"\nkey_file = \"store.key\"\nendpoints = {endpoints}\n{text}");
            error(&text)
        };
        assert!(error("engine = \"etcd\"\nendpoints = [\"http://[::1]:2379\"]").contains("store.key_file is not set"));
        for endpoints in [
            "[]",
            "[\"etcd-1:2379\"]",
            "[\"https://etcd-1\"]",
            "[\"https://etcd-1:2379/v3\"]",
            "[\"https://root@etcd-1:2379\"]",
            "[\"ftp://etcd-1:2379\"]",
            "[\"https://etcd-1:2379\", \"http://etcd-2:2379\"]",
        ] {
            assert!(etcd(endpoints, "ca = \"ca.crt\"").contains("store.endpoints is"), "{endpoints}");
        }
        let tls = "[\"https://etcd-1:2379\"]";
        assert!(etcd(tls, "").contains("store.ca is not set"));
        assert!(etcd(tls, "ca = \"a\"\ncertificate = \"c\"").contains("store.key is not set"));
        assert!(etcd(tls, "ca = \"a\"\nkey = \"k\"").contains("store.certificate is not set"));
        assert!(etcd(tls, "ca = \"a\"\nuser = \"u\"").contains("store.password_file is not set"));
        assert!(etcd(tls, "ca = \"a\"\npassword_file = \"p\"").contains("store.user is not set"));
        assert!(etcd(tls, "ca = \"a\"\nprefix = \"a//b\"").contains("store.prefix is"));
        assert!(etcd(tls, "ca = \"a\"\nprefix = \"\"").contains("store.prefix is"));
        assert!(etcd(tls, "ca = \"a\"\ntimeout_seconds = 0").contains("store.timeout_seconds is 0"));
        assert!(etcd("[\"http://10.0.0.1:2379\"]", "ca = \"a\"").contains("for https only"));
    }

    #[test]
    fn a_store_on_etcd_has_its_paths_beside_the_file() {
        let text = "[store]\nengine = \"etcd\"\nkey_file = \"x\"\nendpoints = [\"https://[::1]:2379\"]\nca = \"ca\"\ncertificate = \"c\"\nkey = \"/k\"\nuser = \"u\"\npassword_file = \"p\"";
        let StoreSettings::Etcd(etcd) = parse(text).unwrap().engine else {
            panic!("another engine")
        };
        let beside = |name: &str| Path::new("/etc/attestation-gateway").join(name);
        assert_eq!(etcd.ca, Some(beside("ca")));
        assert_eq!(etcd.identity, Some((beside("c"), "/k".into())));
        assert_eq!(etcd.user, Some(("u".to_owned(), beside("p"))));
        assert_eq!((etcd.timeout, etcd.prefix.as_str()), (Duration::from_secs(5), "attest-gateway"));
    }
}
