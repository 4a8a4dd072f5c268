//! Where the attestation log's records go beside the log.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use url::{Host, Url};

use super::{Fault, is_replica_name};

/// A receiver of all records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardSettings {
    /// What it is called: in metrics, on the console, and where it is kept how far it has come.
    pub name: String,
    pub to: Receiver,
}

/// Where records are sent, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receiver {
    /// By POST, as JSON lines; what is answered by 2xx is taken.
    Http {
        url: Address,
        /// The CAs of its certificate.
        ca: Option<PathBuf>,
        /// A file with what goes into `Authorization: Bearer`.
        token_file: Option<PathBuf>,
    },
    /// As RFC 5424 over TCP, each with its length (RFC 6587).
    Syslog { host: String, port: u16 },
    /// The same over TLS (RFC 5425).
    SyslogTls { host: String, port: u16, ca: PathBuf },
    /// As datagrams, each as programs of this machine write to it.
    SyslogSocket(PathBuf),
}

impl Receiver {
    /// Whether whoever is between can read what is sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Http { url, .. } => url.0.scheme() == "http" && !is_here(&url.0),
            Self::Syslog { host, .. } => Url::parse(&format!("http://{host}")).map_or(true, |url| !is_here(&url)),
            Self::SyslogTls { .. } | Self::SyslogSocket(_) => false,
        }
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url, .. } => url.fmt(f),
            Self::Syslog { host, port } => write!(f, "syslog at {host}:{port}"),
            Self::SyslogTls { host, port, .. } => write!(f, "syslog at {host}:{port} (TLS)"),
            Self::SyslogSocket(path) => write!(f, "syslog at {}", path.display()),
        }
    }
}

/// A URL, shown without its query: what stands there may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(pub Url);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bare = self.0.clone();
        bare.set_query(None);
        bare.fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardSection {
    name: String,
    to: String,
    ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

const NAME: &str = "attestation_log.forward.name";
const TO: &str = "attestation_log.forward.to";
const CA: &str = "attestation_log.forward.ca";
const TOKEN_FILE: &str = "attestation_log.forward.token_file";
const ALLOWED: &str = "\"https://HOST/PATH\", \"syslog+tls://HOST:PORT\", \"syslog+tcp://HOST:PORT\", \"syslog+unix:/dev/log\", or \"http://HOST/PATH\"; a password belongs into token_file";

pub(super) fn checked(sections: Vec<ForwardSection>, folder: &Path) -> Result<Vec<ForwardSettings>, Fault> {
    let mut names = BTreeSet::new();
    let mut forwards = Vec::new();
    for section in sections {
        if !is_replica_name(&section.name) || section.name.starts_with('.') {
            let allowed = "1 to 64 of A-Z, a-z, 0-9, '.', '-', '_', and no '.' first";
            return Err((NAME, format!("{:?}", section.name), allowed));
        }
        if !names.insert(section.name.clone()) {
            return Err((NAME, format!("{:?}", section.name), "each receiver has a name of its own"));
        }
        forwards.push(ForwardSettings {
            to: receiver(&section, folder)?,
            name: section.name,
        });
    }
    Ok(forwards)
}

fn receiver(section: &ForwardSection, folder: &Path) -> Result<Receiver, Fault> {
    let name = || format!("that of {:?}", section.name);
    let url = Url::parse(&section.to).map_err(|_| (TO, name(), ALLOWED))?;
    let nobody = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if !nobody {
        return Err((TO, name(), ALLOWED));
    }
    let ca = section.ca.as_ref().map(|path| folder.join(path));
    let encrypted = matches!(url.scheme(), "https" | "syslog+tls");
    if encrypted && ca.is_none() {
        return Err((
            CA,
            "not set".to_owned(),
            "with TLS, the CAs of the receiver's certificate are needed, PEM; the system's are in a file such as /etc/ssl/certs/ca-certificates.crt",
        ));
    }
    if !encrypted && ca.is_some() {
        return Err((CA, "set".to_owned(), "for https and syslog+tls only"));
    }
    let token_file = section.token_file.as_ref().map(|path| folder.join(path));
    if token_file.is_some() && url.scheme() != "https" && !(url.scheme() == "http" && is_here(&url)) {
        return Err((
            TOKEN_FILE,
            "set".to_owned(),
            "for https only, or for http to this machine: nobody else may read it",
        ));
    }
    let host_and_port = || {
        let bare = matches!(url.path(), "" | "/") && url.query().is_none();
        let host = url.host_str().filter(|host| bare && !host.is_empty());
        match (host, url.port()) {
            (Some(host), Some(port)) if port > 0 => Ok((host.to_owned(), port)),
            _ => Err((TO, name(), ALLOWED)),
        }
    };
    match (url.scheme(), ca) {
        ("http" | "https", ca) => Ok(Receiver::Http {
            url: Address(url),
            ca,
            token_file,
        }),
        ("syslog+tcp", _) => host_and_port().map(|(host, port)| Receiver::Syslog { host, port }),
        ("syslog+tls", Some(ca)) => host_and_port().map(|(host, port)| Receiver::SyslogTls { host, port, ca }),
        ("syslog+unix", _) if url.host().is_none() && url.path().starts_with('/') && url.query().is_none() => {
            Ok(Receiver::SyslogSocket(PathBuf::from(url.path())))
        }
        _ => Err((TO, name(), ALLOWED)),
    }
}

/// Whether it leads to this machine.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<ForwardSettings>, String> {
        #[derive(Deserialize)]
        struct File {
            forward: Vec<ForwardSection>,
        }
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        checked(file.forward, Path::new("/gw")).map_err(|(key, found, allowed)| format!("{key} is {found}; {allowed}"))
    }

    fn to(to: &str, more: &str) -> Result<Receiver, String> {
        let text = format!("[[forward]]\nname = \"siem\"\nto = \"{to}\"\n{more}");
        parse(&text).map(|mut forwards| forwards.pop().unwrap().to)
    }

    #[test]
    fn a_receiver_is_reached_as_its_scheme_says() {
        let ca = "ca = \"a.pem\"";
        let Ok(Receiver::Http {
            url,
            ca: Some(path),
            token_file,
        }) = to("https://a.example/in?key=SECRET", &format!("{ca}\ntoken_file = \"t\""))
        else {
            panic!("no HTTP");
        };
        assert_eq!((path, token_file), ("/gw/a.pem".into(), Some("/gw/t".into())));
        // What is asked is asked whole, and shown without what may be secret.
        assert_eq!(url.0.query(), Some("key=SECRET"));
        assert_eq!(
            (url.to_string(), format!("{url:?}")),
            ("https://a.example/in".to_owned(), "https://a.example/in".to_owned())
        );
        let syslog = |host: &str, port| Receiver::Syslog {
            host: host.to_owned(),
            port,
        };
        assert_eq!(to("syslog+tcp://[::1]:601", ""), Ok(syslog("[::1]", 601)));
        assert!(matches!(
            to("syslog+tls://logs.example:6514", ca),
            Ok(Receiver::SyslogTls { port: 6514, .. })
        ));
        assert_eq!(to("syslog+unix:/dev/log", ""), Ok(Receiver::SyslogSocket("/dev/log".into())));
        assert!(to("http://127.0.0.1:80/", "token_file = \"t\"").is_ok());
    }

    #[test]
    fn who_can_read_what_is_sent_is_known() {
        let open = |text: &str| to(text, "").unwrap().is_open();
        assert!(open("http://logs.example/") && open("syslog+tcp://192.0.2.1:601"));
        assert!(!open("http://localhost/") && !open("syslog+tcp://[::1]:601") && !open("syslog+unix:/dev/log"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let ca = "ca = \"a.pem\"";
        let check = |url: &str, more: &str, expected: &str| {
            let error = to(url, more).unwrap_err();
            assert!(error.contains(expected) && !error.contains("SECRET"), "{url}: {error}");
        };
        for url in [
            "",
            "a",
            "https://u:SECRET@a/",
            "https://:SECRET@a/",
            "https://a/#SECRET",
            "syslog+tls://a",
            "syslog+tls://a:1/b",
            "syslog+tls://a:0",
        ] {
            check(url, ca, "attestation_log.forward.to");
        }
        for url in [
            "ftp://a/",
            "syslog+tcp://a",
            "syslog+tcp://:1",
            "syslog+unix:dev/log",
            "syslog+unix://host/dev/log",
            "syslog+udp://a:1",
        ] {
            check(url, "", "attestation_log.forward.to");
        }
        check("https://a/", "", "forward.ca is not set");
        check("syslog+tls://a:1", "", "forward.ca is not set");
        check("http://a/", ca, "forward.ca is set");
        check("syslog+tcp://a:1", ca, "forward.ca is set");
        check("http://a/", "token_file = \"t\"", "forward.token_file is set");
        check("syslog+tcp://127.0.0.1:1", "token_file = \"t\"", "forward.token_file is set");
        check("https://a/", "token = \"SECRE\"", "unknown field");
        let name = |name: &str| parse(&format!("[[forward]]\nname = \"{name}\"\nto = \"http://a/\"")).unwrap_err();
        for wrong in ["", "a/b", "..", ".a", "a b"] {
            assert!(name(wrong).contains("attestation_log.forward.name"), "{wrong}");
        }
        let one = "[[forward]]\nname = \"a\"\nto = \"http://a/\"\n";
        assert!(parse(&one.repeat(2)).unwrap_err().contains("a name of its own"));
        assert_eq!(parse("forward = []"), Ok(Vec::new()));
    }
}
