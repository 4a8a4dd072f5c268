//! Kubelet's bootstrap kubeconfig: the API's address, the CAs of its certificate, and the credential for requests of new nodes.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Path that the Machine Config Server uses (`defaultMachineKubeConfPath` in `pkg/server/server.go` of openshift/machine-config-operator),
/// and kubeadm's (`KubeletBootstrapKubeConfigFileName` in `cmd/kubeadm/app/constants/constants.go` of kubernetes/kubernetes).
pub const USUAL: [&str; 2] = ["/etc/kubernetes/kubeconfig", "/etc/kubernetes/bootstrap-kubelet.conf"];
/// Largest file read, of a kubeconfig, of CAs or a token: a cluster has a few dozen CAs at most, of 2 KiB each.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;
/// Longest token that goes into a header, in bytes: a service account's has about a thousand.
const TOKEN_LIMIT_BYTES: usize = 16 * 1024;
/// Most values in it: those of a kubeconfig with a hundred clusters.
const NODES_LIMIT: usize = 4096;
/// Deepest nesting: a kubeconfig has four levels.
const DEPTH_LIMIT: usize = 16;

/// Parsed kubeconfig, as far as it is needed. It contains a secret, so there is no `Debug`.
pub struct Kubeconfig {
    /// `https://HOST:PORT`, perhaps with a path, without a slash at the end.
    pub server: String,
    /// The CAs that its certificate has to be of: these and no others.
    pub authorities: Vec<CertificateDer<'static>>,
    pub token: Zeroizing<String>,
}

impl Kubeconfig {
    /// Reads the first of these that is there.
    ///
    /// # Errors
    /// `kubelet-kubeconfig`.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        for path in paths {
            match file(path) {
                Ok(Some(content)) => return Self::parse(&content, path).map_err(|problem| failure(path, &problem)),
                Ok(None) => {}
                Err(problem) => return Err(failure(path, &problem)),
            }
        }
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Err(Failure::new(
            "kubelet-kubeconfig",
            format!("bootstrap kubeconfig not found: {}", paths.join(" and ")),
            "name the kubelet's bootstrap kubeconfig with --kubeconfig",
        ))
    }

    /// Parses a file's content; errors contain nothing of it.
    fn parse(content: &str, path: &Path) -> Result<Self, String> {
        let config = read(content)?;
        let context = text(&config, "current-context").ok_or("it has no current-context")?;
        let context = named(&config, "contexts", context, "context")?;
        let of_context = |name: &str| text(context, name).ok_or(format!("its context has no {name}"));
        let cluster = named(&config, "clusters", of_context("cluster")?, "cluster")?;
        let user = named(&config, "users", of_context("user")?, "user")?;
        // What would have the kubelet go another way than this program.
        for (of, name) in [
            (cluster, "insecure-skip-tls-verify"),
            (cluster, "tls-server-name"),
            (cluster, "proxy-url"),
            (user, "as"),
            (user, "exec"),
            (user, "auth-provider"),
            (user, "username"),
            (user, "client-certificate"),
            (user, "client-certificate-data"),
        ] {
            if of.get(name).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false))) {
                return Err(format!("it has {name}, which this program does not support"));
            }
        }
        Ok(Self {
            server: server(text(cluster, "server").ok_or("its cluster has no server")?)?,
            authorities: authorities(cluster, path)?,
            token: token(user, path)?,
        })
    }
}

fn failure(path: &Path, problem: &str) -> Failure {
    Failure::new(
        "kubelet-kubeconfig",
        format!("{} cannot be used: {problem}", path.display()),
        "correct it, or name another one with --kubeconfig",
    )
}

/// Reads a file's text; `None` if the file does not exist.
fn file(path: &Path) -> Result<Option<Zeroizing<String>>, String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };
    let mut text = Zeroizing::new(String::new());
    let read = file
        .take(FILE_LIMIT_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    match u64::try_from(read) {
        Ok(read) if read <= FILE_LIMIT_BYTES => Ok(Some(text)),
        _ => Err(format!("it is larger than {FILE_LIMIT_BYTES} bytes")),
    }
}

/// A file that a kubeconfig names: relative to that.
fn read_relative(path: &Path, named: &str) -> Result<Zeroizing<String>, String> {
    let path = path.parent().unwrap_or(path).join(named);
    let read = file(&path).map_err(|problem| format!("{}: {problem}", path.display()))?;
    read.ok_or_else(|| format!("there is no {}", path.display()))
}

/// Its content: YAML, of which JSON is a part.
fn read(content: &str) -> Result<Value, String> {
    // Nothing is said of the text but where: it may be a secret.
    let mut options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES_LIMIT, max_depth: DEPTH_LIMIT, max_aliases: 0 },
    };
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(content, options).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        format!("line {line} is not YAML that this program supports")
    })
}

fn text<'c>(of: &'c Value, name: &str) -> Option<&'c str> {
    of.get(name).and_then(Value::as_str)
}

/// Returns a member of the list's entry with this name.
fn named<'c>(config: &'c Value, list: &str, name: &str, member: &str) -> Result<&'c Value, String> {
    let has_name = |item: &&Value| text(item, "name") == Some(name);
    let all = config.get(list).and_then(Value::as_array);
    let mut found = all.map_or(&[][..], Vec::as_slice).iter().filter(has_name);
    let (one, more) = (found.next(), found.next());
    let one = one.filter(|_| more.is_none()).and_then(|one| one.get(member));
    one.ok_or_else(|| format!("it does not have exactly one {member} with the name in its current-context"))
}

fn server(text: &str) -> Result<String, String> {
    let wrong = || "its server is not an https URL without credentials and queries".to_owned();
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    if url.scheme() != "https" || !url.has_host() || !is_plain {
        return Err(wrong());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn authorities(cluster: &Value, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = |name: &str| text(cluster, name);
    let pem = match (text("certificate-authority-data"), text("certificate-authority")) {
        // As client-go does it: the data comes before the file.
        (Some(data), _) => data_encoding::BASE64
            .decode(data.as_bytes())
            .map_err(|_| "its certificate-authority-data is not Base64".to_owned())?,
        (None, Some(file)) => read_relative(path, file)?.as_bytes().to_vec(),
        (None, None) => return Err("it names no CA of its server".to_owned()),
    };
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|_| "its CAs are not PEM".to_owned())?;
    if found.is_empty() {
        return Err("its CAs are not valid CA certificates".to_owned());
    }
    Ok(found)
}

fn token(user: &Value, path: &Path) -> Result<Zeroizing<String>, String> {
    let text = |name: &str| text(user, name);
    let token = match (text("token"), text("tokenFile")) {
        // As client-go does it: the file comes before the token.
        (_, Some(file)) => Zeroizing::new(read_relative(path, file)?.trim().to_owned()),
        (Some(token), None) => Zeroizing::new(token.to_owned()),
        (None, None) => return Err("its user has no token".to_owned()),
    };
    let is_one = (1..=TOKEN_LIMIT_BYTES).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_one
        .then_some(token)
        .ok_or_else(|| "its token has characters that a header cannot have".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn ca() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(["ca".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem()
    }

    /// Returns a kubeconfig as the Machine Config Server writes it.
    fn openshift_kubeconfig() -> String {
        let ca = data_encoding::BASE64.encode(ca().as_bytes());
        format!(
            "clusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: https://api-int.example.com:6443\n  name: local\ncontexts:\n\
             - context:\n    cluster: local\n    user: kubelet\n  name: kubelet\ncurrent-context: kubelet\npreferences: {{}}\nusers:\n- name: kubelet\n  user:\n    token: SECRET\n"
        )
    }

    fn check(change: impl FnOnce(String) -> String, expect: Result<(), &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        std::fs::write(folder.path().join("ca.crt"), ca()).unwrap();
        std::fs::write(folder.path().join("token"), "SECRET\n").unwrap();
        std::fs::write(&path, change(openshift_kubeconfig())).unwrap();
        match (Kubeconfig::read(&[folder.path().join("none"), path]), expect) {
            (Ok(config), expect) => {
                assert_eq!(expect, Ok(()));
                assert_eq!(
                    (config.server.as_str(), config.token.as_str()),
                    ("https://api-int.example.com:6443", "SECRET")
                );
                assert_eq!(config.authorities.len(), 1);
            }
            (Err(failure), expect) => {
                let said = failure.to_string();
                assert_eq!(failure.code, "kubelet-kubeconfig");
                assert!(said.contains(expect.unwrap_err()) && !said.contains("SECRET"), "{said}");
            }
        }
    }

    fn replaced(from: &'static str, to: &'static str) -> impl FnOnce(String) -> String {
        move |text| {
            assert!(text.contains(from));
            text.replace(from, to)
        }
    }

    #[test]
    fn kubeconfigs_of_the_mcs_and_others_are_parsed() {
        check(|text| text, Ok(()));
        check(replaced(":6443\n", ":6443/\n"), Ok(()));
        check(replaced("token: SECRET", "tokenFile: token"), Ok(()));
        check(replaced("token: SECRET", "token: other\n    tokenFile: token"), Ok(()));
        let with_file = |text: String| {
            let (before, rest) = text.split_once("    certificate-authority-data").unwrap();
            format!("{before}    certificate-authority: ca.crt\n{}", rest.split_once('\n').unwrap().1)
        };
        check(with_file, Ok(()));
        check(replaced("preferences: {}", "kind: Config\nextensions: null"), Ok(()));
        let as_json = |text: String| {
            let ca = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("certificate-authority-data: "))
                .unwrap()
                .to_owned();
            serde_json::json!({
                "clusters": [{"name": "local", "cluster": {"server": "https://api-int.example.com:6443", "certificate-authority-data": ca, "insecure-skip-tls-verify": false}}],
                "users": [{"name": "kubelet", "user": {"token": "SECRET"}}],
                "contexts": [{"name": "kubelet", "context": {"cluster": "local", "user": "kubelet"}}],
                "current-context": "kubelet",
            })
            .to_string()
        };
        check(as_json, Ok(()));
    }

    #[test]
    fn kubeconfigs_with_unsupported_fields_are_rejected() {
        check(replaced("https://api-int", "http://api-int"), Err("not an https URL"));
        check(replaced("https://api-int", "https://user:SECRET@api-int"), Err("not an https URL"));
        check(replaced(":6443", ":6443?x=SECRET"), Err("not an https URL"));
        check(replaced("server: https", "servers: https"), Err("no server"));
        check(
            replaced("server:", "insecure-skip-tls-verify: true\n    server:"),
            Err("insecure-skip-tls-verify"),
        );
        check(replaced("server:", "tls-server-name: x\n    server:"), Err("tls-server-name"));
        check(replaced("server:", "proxy-url: http://x\n    server:"), Err("proxy-url"));
        check(replaced("token: SECRET", "client-certificate: x"), Err("client-certificate"));
        check(replaced("token: SECRET", "exec:\n      command: x"), Err("exec"));
        check(replaced("token: SECRET", "token: SECRET\n    as: admin"), Err("it has as"));
        check(replaced("    token: SECRET", "    {}"), Err("no token"));
        check(replaced("token: SECRET", "token: SECRET: x"), Err("line"));
        check(replaced("token: SECRET", "token: 123456.0123456789012345"), Err("no token"));
        check(replaced("token: SECRET", "token: other\n    token: SECRET"), Err("line"));
        check(replaced("token: SECRET", "x: &a SECRET\n    token: *a"), Err("line"));
        check(|text| text + &"[".repeat(100), Err("line"));
        check(|text| text + "extensions:\n" + &"- a\n".repeat(10_000), Err("line"));
        check(replaced("token: SECRET", "tokens: SECRET"), Err("no token"));
        check(
            replaced("token: SECRET", "token: SECRET SECRET"),
            Err("has characters that a header cannot have"),
        );
        check(replaced("token: SECRET", "tokenFile: none"), Err("there is no"));
        check(
            replaced("current-context: kubelet", "current-context: other"),
            Err("exactly one context"),
        );
        check(replaced("current-context: kubelet\n", ""), Err("no current-context"));
        check(replaced("cluster: local", "cluster: other"), Err("exactly one cluster"));
        check(replaced("user: kubelet", "user: other"), Err("exactly one user"));
        let twice = "users:\n- name: kubelet\n  user:\n    token: other";
        check(replaced("users:", twice), Err("exactly one user"));
        check(
            replaced("certificate-authority-data: ", "certificate-authority-data: \"!\"  # "),
            Err("Base64"),
        );
        check(
            replaced("certificate-authority-data: ", "certificate-authority-data: A"),
            Err("Base64"),
        );
        check(replaced("certificate-authority-data: ", "x: "), Err("names no CA"));
        check(|_| String::new(), Err("no current-context"));
        check(|_| "{".to_owned(), Err("line 1 is not YAML"));
        check(|_| "x: ".to_owned() + &"y".repeat(1024 * 1024), Err("larger than"));
        let missing = Kubeconfig::read(&["/nonexistent/a".into(), "/nonexistent/b".into()]).err().unwrap();
        assert!(missing.to_string().contains("/nonexistent/a and /nonexistent/b"), "{missing}");
    }
}
