//! As syslog: to rsyslogd, and to a socket of this machine.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cloud_fixtures::port::Port;
use tokio::io::AsyncReadExt;

use super::receiver::acceptor;
use super::{begin_with, fetch, has_all, lines};
use crate::support::{Gateway, LIMIT};

/// The real one, with what it has been told in a file.
struct Rsyslogd {
    folder: PathBuf,
    child: Child,
}

impl Rsyslogd {
    fn start(folder: &Path, input: &str) -> Self {
        let conf = folder.join("rsyslog.conf");
        let text = format!(
            "global(workDirectory=\"{folder}\" maxMessageSize=\"1m\")\n{input}\n\
             template(name=\"all\" type=\"string\" string=\"%pri% %app-name% %msgid% %hostname%|%msg%\\n\")\n\
             *.* action(type=\"omfile\" file=\"{folder}/received\" template=\"all\")\n",
            folder = folder.display()
        );
        fs::write(&conf, text).unwrap();
        let child = Command::new("rsyslogd")
            .args(["-n", "-i"])
            .arg(folder.join("pid"))
            .arg("-f")
            .arg(&conf)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let folder = folder.to_owned();
        Self { folder, child }
    }

    /// What it has written: head and message.
    fn received(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.folder.join("received")).unwrap_or_default();
        let own = |line: &&str| line.contains("attest-gateway");
        let split = |line: &str| {
            line.split_once('|')
                .map(|(head, message)| (head.to_owned(), message.trim_start().to_owned()))
        };
        text.lines().filter(own).filter_map(split).collect()
    }

    fn messages(&self) -> Vec<String> {
        self.received().into_iter().map(|(_, message)| message).collect()
    }
}

impl Drop for Rsyslogd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn gateway(to: &str, more: &str) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(&format!(
        "[attestation_log]\nname = \"gw-7\"\n[[attestation_log.forward]]\nname = \"logs\"\nto = \"{to}\"\n{more}"
    ));
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn rsyslogd_gets_each_record_whole_and_in_order_once_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let mut gateway = gateway(&format!("syslog+tcp://{}", port.address()), "");
    // As long as a TPM's record is.
    begin_with(&gateway, 700, &format!(",\"reason\":\"{}\"", "x".repeat(30_000)));
    gateway.run();
    gateway.line(|line| line.contains("logs does not take the attestation log"));
    fetch(&gateway).await;
    let input = format!(
        "module(load=\"imtcp\")\ninput(type=\"imtcp\" port=\"{}\" address=\"127.0.0.1\")",
        port.number()
    );
    let rsyslogd = Rsyslogd::start(folder.path(), &input);
    has_all(&gateway, || rsyslogd.messages()).await;
    let heads = rsyslogd.received();
    assert_eq!(heads[0].0, "110 attest-gateway config gw-7");
    assert!(
        heads.iter().any(|(head, _)| head == "110 attest-gateway checkpoint gw-7"),
        "{:?}",
        heads.last()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_this_machine_gets_datagrams_and_of_what_is_too_large_the_most_important() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut gateway = gateway(&format!("syslog+unix:{}", path.display()), "");
    begin_with(
        &gateway,
        2,
        &format!(",\"name\":\"worker-7\",\"claims\":\"{}\"", "x".repeat(1_000_000)),
    );
    gateway.run();
    let received = tokio::task::spawn_blocking(move || {
        let next = || {
            let mut buffer = vec![0; 1_000_000];
            let length = socket.recv(&mut buffer).unwrap();
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            serde_json::from_str::<serde_json::Value>(text.split_once("attest-gateway: ").unwrap().1).unwrap()
        };
        [next(), next(), next()]
    });
    let [first, second, third] = received.await.unwrap();
    for (record, number) in [(first, 1), (second, 2)] {
        assert_eq!(
            (record["name"].as_str(), record["chain"]["number"].as_u64()),
            (Some("worker-7"), Some(number))
        );
        assert!(record["shortened"]["bytes"].as_u64() > Some(1_000_000) && record.get("claims").is_none());
    }
    assert_eq!((third["decision"].as_str(), third.get("shortened")), (Some("checkpoint"), None));
}

/// The messages of what was framed by octet counting.
fn unframed(mut bytes: &[u8]) -> Vec<String> {
    let mut messages = Vec::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let Some(message) = bytes.get(space + 1..space + 1 + length) else {
            break;
        };
        messages.push(String::from_utf8(message.to_vec()).unwrap());
        bytes = &bytes[space + 1 + length..];
    }
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_it_goes_to_who_has_a_certificate_by_the_ca_and_to_nobody_else() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = format!("syslog+tls://{}", listener.local_addr().unwrap());
    let mut gateway = gateway(&to, "ca = \"tls/mcs-ca.crt\"");
    begin_with(&gateway, 3, "");
    let stranger = acceptor(&Gateway::init());
    let own = acceptor(&gateway);
    gateway.run();
    let (stream, _) = listener.accept().await.unwrap();
    assert!(stranger.accept(stream).await.is_err());
    gateway.line(|line| line.contains("logs does not take the attestation log") && line.contains("certificate"));
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = own.accept(stream).await.unwrap();
    let mut received = Vec::new();
    let message = |line: &str| {
        line.split_once(" - ")
            .and_then(|(_, rest)| rest.split_once(" - "))
            .unwrap()
            .1
            .to_owned()
    };
    let messages = |received: &[u8]| unframed(received).iter().map(|line| message(line)).collect::<Vec<_>>();
    while messages(&received) != lines(&gateway) {
        assert_ne!(
            tokio::time::timeout(LIMIT, stream.read_buf(&mut received)).await.unwrap().unwrap(),
            0
        );
    }
}
