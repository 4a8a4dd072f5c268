//! Whole runs of the program on a cloud, without a TPM: a gateway over TLS and a metadata server, both small and of this test.

mod first_boot_secret;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use attest::aws;
use attest::azure::attested_document::ImdsNonce;
use attest::gcp::{Audience, request_path};
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::CLAIMANT_HEADER;
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use serde_json::{Value, json};

use crate::support;
use crate::support::gateway::{Gateway, NONCE, TOKEN};
use crate::support::{Asked, GOOGLE, Reply, Server, google, google_token, googles, imds, ok, status};

struct Run {
    stderr: String,
    success: bool,
    written: Option<String>,
}

/// Runs the program on a machine without a TPM, of the platform with this id; `dmi` are the firmware's files.
fn run(folder: &Path, id: Option<&str>, dmi: &[(&str, &str)], metadata: &str, arguments: &[&str]) -> Run {
    let cmdline = id.map(|id| format!("console=ttyS0 ignition.platform.id={id}\n"));
    fs::write(folder.join("cmdline"), cmdline.unwrap_or_default()).unwrap();
    fs::create_dir_all(folder.join("dmi")).unwrap();
    dmi.iter()
        .for_each(|(name, text)| fs::write(folder.join("dmi").join(name), text).unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        // As its unit does: without it, the TPM's library writes lines of its own.
        .env("TSS2_LOG", "all+NONE")
        .args([
            "attest",
            "--cmdline",
            "cmdline",
            "--dmi",
            "dmi",
            "--metadata",
            metadata,
            "--out",
            "user.ign",
        ])
        .args(if arguments.contains(&"--state") {
            [].as_slice()
        } else {
            &["--state", "state"]
        })
        .args(if arguments.contains(&"--first-boot-secret-on") {
            [].as_slice()
        } else {
            &["--first-boot-secret-on", "none"]
        })
        .args(if arguments.contains(&"--tcti") {
            [].as_slice()
        } else {
            &["--tcti", "device:/dev/no-such-tpm"]
        })
        .args(if arguments.contains(&"--deadline") {
            [].as_slice()
        } else {
            &["--deadline", "30"]
        })
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("SECRET"), "{stderr}");
    Run {
        stderr,
        success: output.status.success(),
        written: fs::read_to_string(folder.join("user.ign")).ok(),
    }
}

impl Run {
    /// Checks for one line that contains this, and a pointer with the ticket as its only credential.
    fn attested(&self, said: &str) {
        assert!(self.success && self.stderr.lines().count() == 1, "{}", self.stderr);
        assert!(self.stderr.contains(said), "{said:?} is missing in {}", self.stderr);
        let written = self.written.as_ref().unwrap();
        assert!(written.contains("Bearer ticket.abc") && !written.contains(TOKEN), "{written}");
    }

    /// A last line that holds all of this, and no pointer.
    fn failed(&self, said: &[&str]) {
        self.ends_unattested(said, "; the pointer config is unchanged");
        assert_eq!(self.written, None);
    }

    /// Checks for a last line that contains all of this, and a pointer with the claimant of its token as the only addition.
    fn failed_with_token(&self, pointer: &str, said: &[&str]) {
        self.ends_unattested(
            said,
            "; the pointer config is unchanged, except for a header that identifies the node that uses its token",
        );
        let mut written: Value = serde_json::from_str(self.written.as_ref().unwrap()).unwrap();
        let source = written.pointer_mut("/ignition/config/merge/0").unwrap().as_object_mut().unwrap();
        claimant_in(&source.remove("httpHeaders").unwrap());
        assert_eq!(written, serde_json::from_str::<Value>(pointer).unwrap());
    }

    fn ends_unattested(&self, said: &[&str], end: &str) {
        let line = self.stderr.lines().last().unwrap_or_default();
        assert!(!self.success && line.ends_with(end), "{}", self.stderr);
        for part in said {
            assert!(line.contains(part), "{part:?} is missing in {line}");
        }
    }
}

/// Returns the claimant in a source's only header: 32 bytes in 43 letters.
fn claimant_in(headers: &Value) -> String {
    let [header] = headers.as_array().unwrap().as_slice() else {
        panic!("{headers}")
    };
    assert_eq!(header["name"], CLAIMANT_HEADER);
    let value = header["value"].as_str().unwrap();
    assert_eq!((value.len(), BASE64URL_NOPAD.decode(value.as_bytes()).unwrap().len()), (43, 32));
    value.to_owned()
}

const GCP_DMI: &[(&str, &str)] = &[("sys_vendor", "Google\n"), ("product_name", "Google Compute Engine\n")];
const EC2_DMI: &[(&str, &str)] = &[("sys_vendor", "Amazon EC2\n"), ("product_name", "m7i.large\n")];
const AZURE_DMI: &[(&str, &str)] = &[("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n")];
const QEMU_DMI: &[(&str, &str)] = &[("sys_vendor", "QEMU\n")];

fn gcp_task() -> Value {
    json!({"gcp": {"gateway": "api-int.example"}})
}

/// The pointer from the user data, attested by an identity token for exactly this challenge.
fn check_gcp(id: Option<&str>, dmi: &[(&str, &str)]) {
    let gateway = Gateway::start(&json!(["tpm", "gcp", "token"]), &gcp_task());
    let metadata = google(Some(gateway.pointer()));
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), id, dmi, &metadata.base, &[]).attested("attested as gcp:project/4711 by gcp to https://127.0.0.1:");
    let offer = gateway.offer().attester;
    assert!(offer.tpm.is_none() && offer.gcp.is_some() && offer.token.is_some() && offer.aws_sts.is_none());
    let audience = Audience::new("api-int.example", PURPOSE_CONFIG, "worker", &NONCE, &gateway.server_key);
    assert_eq!(
        gateway.evidence().evidence.gcp.unwrap().token.0,
        google_token(&request_path(&audience))
    );
    assert!(!format!("{:?}", metadata.asked()).contains("SECRET"));
}

#[test]
fn late_metadata_server_is_retried_past_the_deadline() {
    let gateway = Gateway::start(&json!(["tpm", "gcp", "token"]), &gcp_task());
    let (begun, pointer) = (Instant::now(), gateway.pointer());
    let metadata = Server::start(GOOGLE, move |asked: &Asked, _| {
        match begun.elapsed() < Duration::from_millis(3500) {
            true => status(503),
            false => googles(Some(&pointer), asked),
        }
    });
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some("gcp"), &[], &metadata.base, &["--deadline", "4"]).attested("attested as gcp:project/4711 by gcp");
}

#[test]
fn an_instance_of_google_attests() {
    check_gcp(Some("gcp"), &[]);
    check_gcp(Some("gcp"), QEMU_DMI);
    check_gcp(None, GCP_DMI);
    check_gcp(None, &[]);
}

#[test]
fn node_name_on_command_line_overrides_the_unit() {
    let check = |id: &str, arguments: &[&str], expected: Option<&str>| {
        let gateway = Gateway::start(&json!(["gcp"]), &json!({"gcp": {"gateway": "api-int.example"}}));
        let metadata = google(Some(gateway.pointer()));
        let folder = tempfile::tempdir().unwrap();
        let run = run(folder.path(), Some(id), &[], &metadata.base, arguments);
        assert!(run.success, "{}", run.stderr);
        assert_eq!(gateway.offer().name.as_deref(), expected, "{id} {arguments:?}");
        run.stderr
    };
    check("gcp", &[], None);
    check("gcp", &["--name", "worker-1"], Some("worker-1"));
    check("gcp attest-node.name=worker-2", &[], Some("worker-2"));
    check("gcp attest-node.name=worker-2", &["--name", "worker-1"], Some("worker-2"));
    let said = check("gcp attest-node.name=Worker_2", &["--name", "worker-1"], Some("worker-1"));
    assert!(
        said.contains("ignoring attest-node.name=Worker_2 on the kernel command line"),
        "{said}"
    );
}

#[test]
fn a_token_is_a_second_factor_only_when_asked_for() {
    let gateway = Gateway::start(
        &json!(["gcp", "token"]),
        &json!({"gcp": {"gateway": "api-int.example"}, "token": {}}),
    );
    let metadata = google(Some(gateway.pointer()));
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some("gcp"), &[], &metadata.base, &[]).attested("as gcp:project/4711 by gcp + token to");
    assert_eq!(gateway.evidence().evidence.token.unwrap().token.reveal(), TOKEN);
}

fn check_task_refused(task: &Value, said: &str) {
    let gateway = Gateway::start(&json!(["tpm", "gcp", "azure"]), task);
    let metadata = google(Some(gateway.pointer()));
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some("gcp"), &[], &metadata.base, &[]).failed_with_token(&gateway.pointer(), &[said, "[gateway-task]; next: "]);
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != "/v1/attest/evidence"));
    assert!(metadata.asked().iter().all(|asked| !asked.path.contains("/identity?")));
}

#[test]
fn refuses_tasks_with_foreign_audience_or_unoffered_kinds() {
    check_task_refused(
        &json!({"gcp": {"gateway": "https://vault.example/"}}),
        "an identity token for \"https://vault.example/\"",
    );
    check_task_refused(&json!({"gcp": {"gateway": "vault.example/x"}}), "which is not a host name");
    check_task_refused(&json!({"gcp": {"gateway": ""}}), "which is not a host name");
    check_task_refused(&json!({"azure": {}}), "evidence of the kind azure, which was not offered");
    check_task_refused(
        &json!({"gcp": {"gateway": "api-int.example"}, "token": {}}),
        "evidence of the kind token, which was not offered",
    );
    check_task_refused(&json!({}), "no kind of evidence that identifies this node");
}

#[test]
fn metadata_failure_is_reported_and_the_pointer_unchanged() {
    let gateway = Gateway::start(&json!(["gcp"]), &gcp_task());
    let broken = |answer: fn() -> Reply| {
        let pointer = gateway.pointer();
        Server::start(GOOGLE, move |asked: &Asked, _| match asked.path.split('?').next().unwrap() {
            "/computeMetadata/v1/instance/attributes/user-data" => ok(&pointer),
            "/computeMetadata/v1/instance/service-accounts/default/email" => ok("worker@project.iam.example"),
            _ => answer(),
        })
    };
    let check = |answer: fn() -> Reply, said: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let server = broken(answer);
        run(folder.path(), Some("gcp"), &[], &server.base, &["--deadline", "9"]).failed_with_token(&gateway.pointer(), said);
    };
    check(|| status(404), &["refuses with status 404", "[metadata-refused]; next: "]);
    check(|| ok("<html>"), &["data other than an identity token", "[metadata-answer]; next: "]);
    check(|| status(500), &["answers 500", "[metadata-unreachable]; next: "]);
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some("gcp"), &[], "http://127.0.0.1:1", &["--deadline", "2"]).failed(&["[metadata-unreachable]; next: "]);
}

#[test]
fn instance_without_service_account_has_no_evidence() {
    let gateway = Gateway::start(&json!(["gcp"]), &gcp_task());
    let pointer = gateway.pointer();
    let metadata = Server::start(GOOGLE, move |asked: &Asked, _| match asked.path.as_str() {
        "/computeMetadata/v1/instance/attributes/user-data" => ok(&pointer),
        _ => status(404),
    });
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), Some("gcp"), &[], &metadata.base, &[])
        .failed_with_token(&gateway.pointer(), &["the gateway accepts: gcp", "[no-accepted-evidence]; next: "]);
}

#[test]
fn a_cloud_without_user_data_has_no_pointer() {
    let metadata = google(None);
    let folder = tempfile::tempdir().unwrap();
    let ended = run(folder.path(), Some("gcp"), &[], &metadata.base, &[]);
    ended.failed(&[
        "the attribute user-data of this Google Compute Engine instance",
        "[pointer-not-found]",
    ]);
}

/// A platform that is given is believed, and its metadata server is not searched for.
fn check_not_asked(id: Option<&str>, dmi: &[(&str, &str)], said: &str) {
    let metadata = google(Some("{}".to_owned()));
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), id, dmi, &metadata.base, &[]).failed(&[said, "[pointer-not-found]"]);
    assert_eq!(metadata.asked(), []);
}

#[test]
fn metal_platform_queries_no_metadata_server() {
    check_not_asked(Some("metal"), &[], "platform metal has no config of its own");
    check_not_asked(Some("metal"), GCP_DMI, "platform metal has no config of its own");
    check_not_asked(Some("hyperv"), &[], "[pointer-not-found]");
    check_not_asked(Some("qemu"), &[], "QEMU's fw_cfg");
    check_not_asked(None, QEMU_DMI, "QEMU's fw_cfg");
}

/// The pointer is QEMU's, and the firmware says that this is an instance: what it can show does not depend on where the pointer was.
#[test]
fn cloud_evidence_does_not_depend_on_pointer_origin() {
    let gateway = Gateway::start(&json!(["tpm", "gcp"]), &gcp_task());
    let metadata = google(None);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), gateway.pointer()).unwrap();
    let ended = run(folder.path(), Some("qemu"), GCP_DMI, &metadata.base, &["--pointer", "pointer.ign"]);
    ended.attested("as gcp:project/4711 by gcp to");
}

const DOCUMENT: &str = r#"{"accountId" : "123456789012", "instanceId" : "i-0123456789abcdef0"}"#;

pub fn amazon(user_data: String) -> Server {
    Server::start("", move |asked, _| {
        imds(asked, |path| match path {
            "/2019-10-01/user-data" => ok(&user_data),
            "/latest/dynamic/instance-identity/rsa2048" => ok("MIAGCSqG\nSIb3\n"),
            "/latest/dynamic/instance-identity/document" => ok(DOCUMENT),
            "/latest/meta-data/placement/region" => ok("eu-central-1"),
            "/latest/meta-data/iam/security-credentials/" => ok("worker-role"),
            "/latest/meta-data/iam/security-credentials/worker-role" => {
                ok(r#"{"AccessKeyId":"ASIAIOSFODNN7EXAMPLE","SecretAccessKey":"SECRETKEY","Token":"SESSION/+=="}"#)
            }
            _ => status(404),
        })
    })
}

#[test]
fn ec2_instance_attests_with_every_requested_kind() {
    let kinds = json!(["aws-identity-document", "aws-nitro-tpm", "aws-sts", "gcp", "azure"]);
    let gateway = Gateway::start(&kinds, &json!({"aws_identity_document": {}, "aws_sts": {}}));
    let metadata = amazon(gateway.pointer());
    let folder = tempfile::tempdir().unwrap();
    let ended = run(folder.path(), None, EC2_DMI, &metadata.base, &[]);
    ended.attested("as aws:123456789012/i-0123456789abcdef0 by aws-identity-document + aws-sts to");
    let offer = gateway.offer().attester;
    assert!(offer.aws_sts.is_some() && offer.gcp.is_none() && offer.azure.is_none());
    // There is no TPM, so no NitroTPM.
    assert!(offer.aws_nitro_tpm.is_none());
    let evidence = gateway.evidence().evidence;
    let document = evidence.aws_identity_document.unwrap();
    assert_eq!(document.pkcs7.0, "MIAGCSqG\nSIb3\n");
    assert!(offer.aws_identity_document.is_some());
    let claimant = evidence.claimant.unwrap();
    let claimed = ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, claimant.as_ref());
    assert_eq!(
        (claimant.as_ref().len(), offer.claimant_sha256.unwrap().to_string()),
        (32, HEXLOWER.encode(claimed.as_ref()))
    );
    let request = evidence.aws_sts.unwrap().request;
    let server_id = request
        .headers
        .iter()
        .find(|header| header.name == aws::sts::SERVER_ID_HEADER)
        .unwrap();
    let expected = aws::sts::expected_server_id(&NONCE, PURPOSE_CONFIG, "worker", &gateway.server_key);
    assert_eq!(*server_id.value, expected);
}

/// Replacement of AWS's program: it prints the values that it is asked to put into a document.
const NITRO_TPM_ATTEST: &str = "#!/bin/sh\ntest \"$1 $3\" = \"--nonce --user-data\" && cat \"$2\" \"$4\"\n";

#[test]
fn an_instance_of_amazon_attests_by_its_nitro_tpm() {
    let gateway = Gateway::start(&json!(["aws-nitro-tpm", "aws-sts"]), &json!({"aws_nitro_tpm": {}}));
    let metadata = amazon(gateway.pointer());
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nitro-tpm-attest");
    support::install(&program, NITRO_TPM_ATTEST);
    // A TPM that is said to be there, and that nothing here has to open.
    let arguments = ["--nitro-tpm-attest", program.to_str().unwrap(), "--tcti", "swtpm:path=none"];
    let ended = run(folder.path(), Some("aws"), &[], &metadata.base, &arguments);
    ended.attested("as aws:123456789012/i-0123456789abcdef0 by aws-nitro-tpm to");
    let user_data = aws::nitro_tpm::expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &gateway.server_key);
    let document = gateway.evidence().evidence.aws_nitro_tpm.unwrap().document;
    assert_eq!(document.as_ref(), [NONCE.as_slice(), &user_data].concat());
    assert!(!folder.path().join("state/input").exists());
}

fn microsoft(pointer: &str) -> Server {
    let pointer = BASE64.encode(pointer.as_bytes());
    Server::start("", move |asked: &Asked, _| {
        let (path, query) = asked.path.split_once('?').unwrap_or_default();
        match (asked.header("metadata"), path) {
            (Some("true"), "/metadata/instance/compute/userData") => ok(&pointer),
            (Some("true"), "/metadata/attested/document") => {
                let nonce = query.split("nonce=").nth(1).unwrap();
                let document = json!({"nonce": nonce, "vmId": "B-1", "subscriptionId": "A-1"}).to_string();
                ok(json!({"encoding": "pkcs7", "signature": BASE64.encode(document.as_bytes())}).to_string())
            }
            _ => status(400),
        }
    })
}

/// The pool decides which of two is enough, and the console says why the other is missing.
#[test]
fn vtpm_failure_is_noted_and_azure_document_sent() {
    let gateway = Gateway::start(&json!(["azure", "azure-vtpm"]), &json!({"azure": {}}));
    let metadata = microsoft(&gateway.pointer());
    let folder = tempfile::tempdir().unwrap();
    let ended = run(folder.path(), None, AZURE_DMI, &metadata.base, &["--tcti", "swtpm:port=1"]);
    assert!(ended.success, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let [note, end] = lines.as_slice() else {
        panic!("{}", ended.stderr)
    };
    assert!(
        note.starts_with("attest-node: note: evidence left out: azure-vtpm: no TPM answers at swtpm:port=1 "),
        "{note}"
    );
    assert!(note.contains("[tpm-failed]; next: "), "{note}");
    assert!(end.contains("attested as azure:a-1/b-1 by azure to"), "{end}");
    let offer = gateway.offer().attester;
    assert!(offer.azure.is_some() && offer.azure_vtpm.is_none());
}

#[test]
fn a_virtual_machine_of_azure_attests() {
    let gateway = Gateway::start(&json!(["azure"]), &json!({"azure": {}}));
    let metadata = microsoft(&gateway.pointer());
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), None, AZURE_DMI, &metadata.base, &[]).attested("as azure:a-1/b-1 by azure to");
    let nonce = ImdsNonce::derive(&qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &gateway.server_key));
    let (offer, evidence) = (gateway.offer().attester, gateway.evidence().evidence);
    assert_eq!(offer.claimant_sha256, evidence.claimant_sha256());
    assert!(offer.claimant_sha256.is_some());
    let signature = evidence.azure.unwrap().signature.0;
    let document = String::from_utf8(BASE64.decode(signature.as_bytes()).unwrap()).unwrap();
    assert!(document.contains(nonce.as_str()), "{document}");
}
