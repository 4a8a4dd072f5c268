//! Small metadata server, and a gateway next to it, on ports that the kernel chooses, with answers that a test sets.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic, and not each test needs all"
)]

pub mod gateway;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

/// Request to a server: method, path with query, headers with names in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }
}

/// Answer of a server; `None` closes the connection without an answer.
pub type Reply = Option<(u16, Vec<u8>)>;

/// 200 with this body.
pub fn ok(body: impl AsRef<[u8]>) -> Reply {
    Some((200, body.as_ref().to_vec()))
}

/// This status, with a page for people that is longer than most answers.
pub fn status(status: u16) -> Reply {
    Some((status, vec![b'x'; 2000]))
}

pub struct Server {
    pub base: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` gets each request and its number, from 0; `headers` are on each answer.
    pub fn start(headers: &'static str, answer: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (all, answer) = (Arc::clone(&asked), Arc::new(answer));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                // A connection that a client gives up ends here with an error.
                thread::spawn(move || while serve(&connection, headers, &all, answer.as_ref()).is_some() {});
            }
        });
        Self { base, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(connection: &TcpStream, headers: &str, all: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked, usize) -> Reply) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let line = |reader: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line(&mut reader)?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut asked = Asked {
        method,
        path,
        headers: Vec::new(),
    };
    loop {
        let line = line(&mut reader)?;
        let Some((name, value)) = line.split_once(':') else { break };
        asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let number = {
        let mut all = all.lock().unwrap();
        all.push(asked.clone());
        all.len() - 1
    };
    let (status, body) = answer(&asked, number)?;
    let head = format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    let mut connection = connection;
    connection.write_all(head.as_bytes()).ok()?;
    connection.write_all(&body).ok()
}

/// Writes a program by another process: a file that this one has open for writing, or a child that it forks meanwhile, cannot be executed.
pub fn install(program: &Path, script: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(program)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

pub const GOOGLE: &str = "Metadata-Flavor: Google\r\nServer: Metadata Server for VM\r\n";

/// Answers as IMDSv2 does, with `answer` behind the session token.
pub fn imds(asked: &Asked, answer: impl Fn(&str) -> Reply) -> Reply {
    if asked.path == "/latest/api/token" {
        return match (asked.method.as_str(), asked.header("x-aws-ec2-metadata-token-ttl-seconds")) {
            ("PUT", Some(_)) => ok("SESSION=="),
            ("PUT", None) => status(400),
            _ => status(405),
        };
    }
    match asked.header("x-aws-ec2-metadata-token") {
        Some("SESSION==") if asked.method == "GET" => answer(&asked.path),
        _ => status(401),
    }
}

/// Starts a server like Google's, with this user data; identity tokens contain the path for which they were given.
pub fn google(user_data: Option<String>) -> Server {
    Server::start(GOOGLE, move |asked: &Asked, _| googles(user_data.as_deref(), asked))
}

/// Returns the answer of Google's server.
pub fn googles(user_data: Option<&str>, asked: &Asked) -> Reply {
    if asked.header("metadata-flavor") != Some("Google") {
        return status(403);
    }
    let path = asked.path.split('?').next().unwrap();
    match path.strip_prefix("/computeMetadata/v1/instance/").unwrap_or_default() {
        "attributes/user-data" => user_data.map_or_else(|| status(404), ok),
        "id" => ok("4711"),
        "service-accounts/default/email" => ok("worker@project.iam.example"),
        "service-accounts/default/identity" => ok(google_token(&asked.path)),
        _ => status(404),
    }
}

pub fn google_token(path: &str) -> String {
    let claims = json!({"path": path, "google": {"compute_engine": {"project_id": "project", "instance_id": "4711"}}});
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    format!("{}.{}.c2ln", part(&json!({"alg": "RS256"})), part(&claims))
}
