//! `attest-node kubelet-certificate request` against an API: its request, its checks of the answer, and the files that it leaves for the kubelet.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use attest_node::gateway::identity::ClientIdentity;
use attest_node::kubelet::key::{KeyPaths, KubeletKeyPair};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, Mishap, RestartHistory};
use data_encoding::BASE64;
use rcgen::{CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SubjectPublicKeyInfo};
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

const CSRS: &str = "certificatesigningrequests";
const NODE: &str = "worker-1";
/// Longest that something may take on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(60);

struct Site {
    api: KubernetesApi,
    folder: tempfile::TempDir,
    token: String,
}

/// Result of a run.
struct Ended {
    success: bool,
    output: String,
}

impl Site {
    /// Creates a node that has attested a key, and an API that gives the bootstrap credential the rights of OpenShift's
    /// `system:node-bootstrapper`.
    fn new() -> Self {
        let site = Self::without_key();
        site.places().load_or_create().unwrap().unwrap();
        site
    }

    fn without_key() -> Self {
        let api = KubernetesApi::start();
        let may = json!([{"apiGroups": ["certificates.k8s.io"], "resources": [CSRS], "verbs": ["create", "get", "list", "watch"]}]);
        api.grant("bootstrap", "node", &may);
        let token = api.token("bootstrap", "node");
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("kept")).unwrap();
        fs::write(folder.path().join("kubeconfig"), api.kubeconfig(&token)).unwrap();
        Self { api, folder, token }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn places(&self) -> KeyPaths {
        KeyPaths::new(&self.path("kept"), &self.path("keys"))
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_attest-node"))
            .current_dir(self.folder.path())
            .args([
                "kubelet-certificate",
                "request",
                "--kubeconfig",
                "kubeconfig",
                "--certificates",
                "pki",
                "--keys",
                "keys",
                "--kept",
                "kept",
            ])
            .args(arguments)
            .env("KUBELET_NODE_NAME", NODE)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits for a run's end, and checks that its output has no secret.
    fn end(&self, child: Child) -> Ended {
        let output = ended(child);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains(&self.token) && !said.contains("PRIVATE"), "{said}");
        Ended {
            success: output.status.success(),
            output: said,
        }
    }

    /// The request, once it is there.
    fn asked(&self) -> Value {
        let mut found = None;
        until(&self.api, || {
            found = self.api.all(CSRS).pop();
            found.is_some()
        });
        found.unwrap()
    }

    /// Approves and signs the request, like the controllers do.
    fn sign(&self, csr: &Value, certificate: &str) {
        let mut signed = csr.clone();
        signed["status"] = json!({
            "conditions": [{"type": "Approved", "status": "True", "reason": "AttestationApproved"}],
            "certificate": BASE64.encode(certificate.as_bytes()),
        });
        self.api.put(signed);
    }

    /// Checks that the key is still available to another run, and the kubelet has nothing.
    fn has_key_only(&self) {
        assert!(self.places().settle().unwrap().is_some());
        assert!(!self.path("pki/kubelet-client-current.pem").exists());
    }

    /// Checks that the kubelet has the same file that it would have made itself, and that the key is nowhere else.
    fn has_certificate(&self) {
        let current = self.path("pki/kubelet-client-current.pem");
        assert!(fs::symlink_metadata(&current).unwrap().is_symlink());
        ClientIdentity::read(&current).unwrap();
        assert!(self.places().settle().unwrap().is_none());
        assert!(!self.path("keys").exists());
    }
}

/// A run that does not end would hold up all tests.
fn ended(child: Child) -> std::process::Output {
    let (pid, (running, ended)) = (child.id().to_string(), mpsc::channel::<()>());
    let watch = thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-9", &pid]).status().unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(running);
    watch.join().unwrap();
    output
}

/// Waits until this is true for the API's objects.
fn until(api: &KubernetesApi, is_so: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert!(runtime.block_on(api.comes_to(LIMIT, is_so)));
}

/// Returns the next line of its output, and nothing after it.
fn line(run: &mut Child) -> String {
    let (stderr, mut line, mut byte) = (run.stderr.as_mut().unwrap(), Vec::new(), [0]);
    while byte != *b"\n" {
        stderr.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

fn der(csr: &Value) -> Vec<u8> {
    let pem = BASE64.decode(csr["spec"]["request"].as_str().unwrap().as_bytes()).unwrap();
    x509_parser::pem::parse_x509_pem(&pem).unwrap().1.contents
}

/// A certificate for the key of a request, as the kube-controller-manager makes it, with one thing changed.
fn certificate(csr: &Value, change: impl FnOnce(&mut CertificateParams)) -> String {
    let der = der(csr);
    let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
    issued(request.certification_request_info.subject_pki.raw, change)
}

fn issued(public: &[u8], change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = Issuer::new(ca, KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2100, 1, 1));
    params.distinguished_name = subject("system:nodes", &format!("system:node:{NODE}"));
    change(&mut params);
    let public = SubjectPublicKeyInfo::from_der(public).unwrap();
    params.signed_by(&public, &issuer).unwrap().pem()
}

fn subject(organization: &str, name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, organization);
    subject.push(DnType::CommonName, name);
    subject
}

#[test]
fn csr_and_certificate_match_the_kubelets() {
    let site = Site::new();
    let digest = site.places().settle().unwrap().and_then(|key| key.digest()).unwrap();
    let run = site.spawn(&[]);
    let csr = site.asked();
    let spec = &csr["spec"];
    assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    assert_eq!(spec["username"], "system:serviceaccount:bootstrap:node");
    let members: Vec<&String> = spec
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !["username", "groups", "uid", "extra"].contains(&name.as_str()))
        .collect();
    assert_eq!(members, ["request", "signerName", "usages"]);
    let der = der(&csr);
    let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
    let info = &request.certification_request_info;
    assert_eq!(info.subject.to_string(), format!("O=system:nodes, CN=system:node:{NODE}"));
    assert_eq!(attest::SpkiSha256::from_spki(info.subject_pki.raw), digest);
    site.sign(&csr, &certificate(&csr, |_| ()));
    let ended = site.end(run);
    assert!(
        ended.success && ended.output.contains("is in pki/kubelet-client-"),
        "{}",
        ended.output
    );
    site.has_certificate();
    // Once more: there is one.
    let ended = site.end(site.spawn(&[]));
    assert!(
        ended.success && ended.output.contains("has a certificate already"),
        "{}",
        ended.output
    );
    assert_eq!(site.api.all(CSRS).len(), 1);
}

#[test]
fn kubelet_certificate_without_key_does_nothing() {
    let site = Site::without_key();
    let ended = site.end(site.spawn(&[]));
    assert!(ended.success && ended.output.contains("nothing to do"), "{}", ended.output);
    assert!(site.api.all(CSRS).is_empty());
}

#[test]
fn api_outage_and_lost_answers_are_retried() {
    let site = Site::new();
    site.api.disturb(Disturbance::Down);
    let mut run = site.spawn(&[]);
    let said = line(&mut run);
    assert!(said.contains("cannot be reached") && !said.contains(&site.token), "{said}");
    assert!(site.path("keys/kubelet-key.pem").exists());
    assert!(run.try_wait().unwrap().is_none());
    // The answer to the first request is lost: the second finds that it was done.
    site.api.befall([Mishap::Done]);
    site.api.restart(RestartHistory::Kept);
    let csr = site.asked();
    site.sign(&csr, &certificate(&csr, |_| ()));
    let ended = site.end(run);
    assert!(ended.success, "{}", ended.output);
    assert_eq!(site.api.all(CSRS).len(), 1);
    site.has_certificate();
}

#[test]
fn killed_run_resumes_its_csr_after_a_reboot() {
    let site = Site::new();
    let mut run = site.spawn(&[]);
    let csr = site.asked();
    run.kill().unwrap();
    run.wait().unwrap();
    fs::remove_file(site.path("kept/kubelet-key.pem")).unwrap();
    let run = site.spawn(&[]);
    site.sign(&csr, &certificate(&csr, |_| ()));
    assert!(site.end(run).success);
    assert_eq!(site.api.all(CSRS).len(), 1);
    site.has_certificate();
}

#[test]
fn deleted_csr_is_recreated_and_foreign_one_ignored() {
    let site = Site::new();
    let run = site.spawn(&[]);
    let first = site.asked();
    let name = first["metadata"]["name"].as_str().unwrap().to_owned();
    site.api.remove(CSRS, "", &name);
    // Whoever knows how it is called.
    let mut squatted = first.clone();
    let other = attest_node::kubelet::csr::request(&KubeletKeyPair::generate().unwrap(), NODE).unwrap();
    squatted["spec"]["request"] = json!(BASE64.encode(other.as_bytes()));
    squatted["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
    site.api.put(squatted);
    let mut own = None;
    until(&site.api, || {
        let all = site.api.all(CSRS);
        own = all.into_iter().find(|csr| csr["metadata"]["name"] != name.as_str());
        own.is_some()
    });
    let own = own.unwrap();
    site.sign(&own, &certificate(&own, |_| ()));
    let ended = site.end(run);
    assert!(ended.success, "{}", ended.output);
    site.has_certificate();
}

/// Checks that the kubelet gets nothing, and the key stays, if the certificate does not match the request.
fn check_refused(certificate: impl FnOnce(&Value) -> String, said: &str) {
    let site = Site::new();
    let run = site.spawn(&[]);
    let csr = site.asked();
    site.sign(&csr, &certificate(&csr));
    let ended = site.end(run);
    assert!(
        !ended.success && ended.output.contains("[kubelet-certificate-answer]") && ended.output.contains(said),
        "{said}: {}",
        ended.output
    );
    site.has_key_only();
}

#[test]
fn certificate_not_matching_the_csr_is_rejected() {
    let of_another = |_: &Value| issued(&KubeletKeyPair::generate().unwrap().public().unwrap(), |_| ());
    check_refused(of_another, "for another key");
    let named = |organization: &'static str, name: &'static str| {
        move |csr: &Value| certificate(csr, |params| params.distinguished_name = subject(organization, name))
    };
    check_refused(named("system:nodes", "system:node:worker-2"), "worker-2");
    check_refused(named("system:nodes", "worker-1"), "worker-1");
    check_refused(named("system:masters", "system:node:worker-1"), "not for a node");
    check_refused(
        |csr| certificate(csr, |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1)),
        "it has expired",
    );
    check_refused(|_| "x".to_owned(), "it has no certificate");
    check_refused(
        |_| "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
        "not a certificate",
    );
    check_refused(|csr| certificate(csr, |_| ()).repeat(100), "larger than");
}

#[test]
fn denied_csr_ends_the_run_with_its_reason() {
    for kind in ["Denied", "Failed"] {
        let site = Site::new();
        let run = site.spawn(&[]);
        let mut csr = site.asked();
        csr["status"] = json!({"conditions": [{"type": kind, "status": "True", "reason": "NotOurs", "message": "by\nhand"}]});
        site.api.put(csr);
        let ended = site.end(run);
        assert!(!ended.success, "{}", ended.output);
        for part in [
            "[kubelet-request-denied]",
            "NotOurs by hand",
            "with its own key, which is not attested",
        ] {
            assert!(ended.output.contains(part), "{part}: {}", ended.output);
        }
        site.has_key_only();
    }
}

/// Checks that the program waits until its time limit for an API with this object in the place of the request.
fn check_waits(alter: impl FnOnce(&mut Value), said: &str) {
    let site = Site::new();
    let run = site.spawn(&["--wait", "2"]);
    let mut csr = site.asked();
    alter(&mut csr);
    site.api.put_as_it_is(csr);
    let ended = site.end(run);
    assert!(
        !ended.success && ended.output.contains("[kubelet-request-unanswered]"),
        "{}",
        ended.output
    );
    assert!(ended.output.contains(said), "{said}: {}", ended.output);
    site.has_key_only();
}

#[test]
fn pending_csr_and_malformed_answers_are_retried() {
    let approved = |csr: &mut Value| csr["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    // At once: each waits for as long as it may.
    thread::scope(|scope| {
        scope.spawn(|| check_waits(|_| (), "is not approved yet"));
        scope.spawn(|| check_waits(approved, "is approved, but not signed yet"));
        scope.spawn(|| check_waits(|csr| csr["spec"]["request"] = json!(7), "does not answer with a CSR"));
        scope.spawn(|| check_waits(|csr| csr["status"] = json!({"certificate": ["x"]}), "does not answer with a CSR"));
        let huge = |csr: &mut Value| csr["metadata"]["annotations"] = json!({"a": "x".repeat(300 * 1024)});
        scope.spawn(move || check_waits(huge, "more than 262144 bytes"));
    });
}

#[test]
fn api_refusal_is_reported_and_the_token_protected() {
    let site = Site::new();
    fs::write(site.path("kubeconfig"), site.api.kubeconfig(&site.api.token("bootstrap", "nobody"))).unwrap();
    let ended = site.end(site.spawn(&["--wait", "1"]));
    assert!(!ended.success && ended.output.contains("the API answers 403"), "{}", ended.output);
    site.has_key_only();
    // The CA of another cluster.
    let other = KubernetesApi::start();
    let wrong = other.kubeconfig(&site.token).replace(&other.url(), &site.api.url());
    fs::write(site.path("kubeconfig"), wrong).unwrap();
    site.api.forget_asked();
    let ended = site.end(site.spawn(&["--wait", "1"]));
    assert!(!ended.success && ended.output.contains("cannot be reached"), "{}", ended.output);
    assert!(site.api.asked().is_empty());
    fs::remove_file(site.path("kubeconfig")).unwrap();
    let ended = site.end(site.spawn(&["--wait", "1"]));
    assert!(!ended.success && ended.output.contains("[kubelet-kubeconfig]"), "{}", ended.output);
    let ended = site.end(site.spawn(&["--wait", "1", "--name", "Worker 1"]));
    assert!(!ended.success, "{}", ended.output);
}
