//! Requests to AWS STS that must not be sent, and answers that must be refused.

use attest::protocol::Evidence;
use attest::{Kind, SpkiSha256};
use cloud_fixtures::aws::{RoleSession, StsServer};
use cloud_fixtures::clock;
use cloud_fixtures::server::ServerFault;
use cloud_fixtures::tampering;
use serde_json::{Value, json};

use super::machine::{Asked, Machine, sts_evidence};
use super::site::{self, DOCUMENT, STS};
use crate::support::{Answer, Gateway};

const KINDS: [Kind; 1] = [Kind::AwsSts];

/// Starts a gateway with a pool that accepts callers of STS, and the region's STS.
fn start() -> (Gateway, StsServer) {
    let mut gateway = site::init(r#"[["aws-sts"]]"#, &[STS]);
    let sts = StsServer::start("eu-central-1", Vec::new());
    site::reach_sts(&gateway, &sts);
    gateway.run();
    (gateway, sts)
}

/// Returns a machine whose credentials STS knows.
fn known_machine(sts: &StsServer) -> Machine {
    let machine = Machine::new();
    sts.add(machine.session.clone());
    machine
}

/// Presents this instead of the machine's request.
async fn show(gateway: &Gateway, machine: &Machine, alter: impl FnOnce(Value, &Asked) -> Value) -> Answer {
    let alter = |evidence: &mut Evidence, asked: &Asked| {
        evidence.aws_sts = Some(sts_evidence(&alter(machine.presigned(asked), asked)));
    };
    machine.attest_altered(gateway, &KINDS, alter).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_15_a_request_that_is_altered_anywhere_is_never_sent() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    let check = async |alter: &dyn Fn(&mut Value), code: &str| {
        let answer = show(&gateway, &machine, |mut request, _| {
            alter(&mut request);
            request
        });
        site::refused(&gateway, &answer.await, code);
        assert!(sts.requests().is_empty(), "{:?}", sts.requests());
    };
    for (field, value, code) in [
        ("method", "GET", "sts-request"),
        ("method", "post", "sts-request"),
        ("url", "https://evil.example/", "sts-endpoint"),
        ("url", "http://sts.eu-central-1.amazonaws.com/", "sts-endpoint"),
        ("url", "https://sts.amazonaws.com/", "sts-endpoint"),
        ("url", "https://sts.us-east-1.amazonaws.com/", "sts-endpoint"),
        ("url", "https://sts.eu-central-1.amazonaws.com:8443/", "sts-endpoint"),
        ("url", "https://sts.eu-central-1.amazonaws.com@evil.example/", "sts-endpoint"),
        (
            "url",
            "https://sts.eu-central-1.amazonaws.com/?Action=GetCallerIdentity",
            "sts-endpoint",
        ),
        ("url", "https://sts.eu-central-1.amazonaws.com//evil.example", "sts-endpoint"),
        ("url", "https://STS.eu-central-1.amazonaws.com/", "sts-endpoint"),
        ("body", "Action=AssumeRole&Version=2011-06-15", "sts-request"),
        (
            "body",
            "Action=GetCallerIdentity&Version=2011-06-15&Action=GetSessionToken",
            "sts-request",
        ),
        ("body", "", "sts-request"),
    ] {
        check(&|request| request[field] = json!(value), code).await;
    }
    for (header, value, code) in [
        ("accept", "text/html", "sts-request"),
        ("content-type", "application/json", "sts-request"),
        ("host", "evil.example", "sts-request"),
        ("host", "sts.us-east-1.amazonaws.com", "sts-request"),
        ("x-amz-date", "20200101T000000Z", "sts-date"),
        ("x-amz-date", "now", "sts-request"),
        ("x-amz-security-token", "", "sts-request"),
        ("x-amz-security-token", "a b", "sts-request"),
        ("x-attestation-gateway-server-id", "00", "sts-server-id"),
        ("x-attestation-gateway-server-id", "", "sts-server-id"),
        ("authorization", "Basic YTpi", "sts-request"),
    ] {
        check(&|request| *request = tampering::presigned_request(request, header, value), code).await;
    }
    // A header more, one twice, one less.
    let headers = |request: &mut Value, change: &dyn Fn(&mut Vec<Value>)| change(request["headers"].as_array_mut().unwrap());
    let more = json!({"name": "x-amz-target", "value": "evil"});
    check(&|request| headers(request, &|headers| headers.push(more.clone())), "sts-request").await;
    for position in 0..7 {
        check(
            &|request| headers(request, &|headers| headers.push(headers[position].clone())),
            "sts-request",
        )
        .await;
        check(
            &|request| headers(request, &|headers| drop(headers.remove(position))),
            "sts-request",
        )
        .await;
        let upper = |headers: &mut Vec<Value>| {
            let name = headers[position]["name"].as_str().unwrap().to_uppercase();
            headers[position]["name"] = name.into();
        };
        check(&|request| headers(request, &upper), "sts-request").await;
    }
    // The signature of others, and of less.
    let authorization = |request: &mut Value, from: &str, to: &str| {
        let headers = request["headers"].as_array_mut().unwrap();
        let header = headers.iter_mut().find(|header| header["name"] == "authorization").unwrap();
        header["value"] = header["value"].as_str().unwrap().replace(from, to).into();
    };
    for (from, to, code) in [
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", "sts-request"),
        ("/eu-central-1/", "/us-east-1/", "sts-request"),
        ("/sts/", "/iam/", "sts-request"),
        (";x-attestation-gateway-server-id", "", "sts-server-id"),
        ("accept;", "", "sts-request"),
        ("Signature=", "Signature=00", "sts-request"),
    ] {
        check(&|request| authorization(request, from, to), code).await;
    }
    let elsewhere = json!(format!("https://evil.example/?X-Amz-Security-Token={}", machine.session.token));
    check(&|request| request["url"] = elsewhere.clone(), "sts-endpoint").await;
    let in_body = json!(format!("Action=GetCallerIdentity&X-Amz-Security-Token={}", machine.session.token));
    check(&|request| request["body"] = in_body.clone(), "sts-request").await;
    drop(machine.attest(&gateway, &KINDS).await.ticket());
    assert_eq!(sts.requests().len(), 1);
    // Wherever the node put its credentials, the log has them not.
    let log = std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert!(!log.contains(&machine.session.token) && !gateway.output().contains(&machine.session.token));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_a_request_for_another_gateway_challenge_or_pool_is_never_sent() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    let other = async |change: fn(&mut Asked)| {
        let asked = machine.ask(&gateway, &KINDS).await;
        let evidence = machine.evidence(&asked.but(change));
        site::refused(&gateway, &asked.show(&gateway, evidence).await, "sts-server-id");
    };
    other(|asked| asked.key = SpkiSha256([1; 32])).await;
    other(|asked| asked.nonce = vec![1; 32]).await;
    other(|asked| asked.pool = "infra".to_owned()).await;
    other(|asked| asked.purpose = "other".to_owned()).await;
    let early = |_, asked: &Asked| machine.session.presigned("eu-central-1", &asked.server_id(), clock::now() - 600);
    site::refused(&gateway, &show(&gateway, &machine, early).await, "sts-date");
    assert!(sts.requests().is_empty());
    // One challenge is one call.
    let asked = machine.ask(&gateway, &KINDS).await;
    let evidence = machine.evidence(&asked);
    let copies = futures_util::future::join_all((0..50).map(|_| asked.show(&gateway, evidence.clone()))).await;
    assert_eq!(copies.iter().filter(|answer| answer.status == 200).count(), 1);
    site::refused(&gateway, &asked.show(&gateway, evidence).await, "challenge-spent");
    assert_eq!(sts.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_15_sends_only_known_headers_to_sts() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    drop(machine.attest(&gateway, &KINDS).await.ticket());
    let sent = sts.requests().pop().unwrap();
    assert_eq!((sent.method.as_str(), sent.target.as_str()), ("POST", "/"));
    assert_eq!(sent.body, b"Action=GetCallerIdentity&Version=2011-06-15");
    // The last two are the gateway's own, and not signed.
    let known = [
        "accept",
        "authorization",
        "content-type",
        "host",
        "x-amz-date",
        "x-amz-security-token",
        "x-attestation-gateway-server-id",
        "content-length",
        "user-agent",
    ];
    let names: Vec<&str> = sent.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert!(
        names.len() == known.len() && known.iter().all(|name| names.contains(name)),
        "{names:?}"
    );
    let agent = sent.header("user-agent").unwrap();
    assert!(agent.starts_with("attest-gateway/"), "{agent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_15_a_redirect_of_sts_is_not_followed() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    let elsewhere = StsServer::start("eu-central-1", vec![machine.session.clone()]);
    sts.fail(ServerFault::Redirect(elsewhere.url()));
    let answer = machine.attest(&gateway, &KINDS).await;
    site::refused(&gateway, &answer, "sts-unavailable");
    assert_eq!((sts.requests().len(), elsewhere.requests().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sts_outage_is_answered_503() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    let before = gateway.records().len();
    sts.fail(ServerFault::Down);
    let answer = machine.attest(&gateway, &KINDS).await;
    answer.refused(503, "cloud-unavailable");
    assert_eq!(gateway.records().len(), before);
    gateway.line(|line| line.contains("cannot verify cloud evidence"));
    sts.recover();
    drop(machine.attest(&gateway, &KINDS).await.ticket());
    for fault in [ServerFault::Garbage, ServerFault::Status(500), ServerFault::Status(204)] {
        sts.fail(fault.clone());
        let answer = machine.attest(&gateway, &KINDS).await;
        assert_ne!(answer.status.as_u16(), 200, "{fault:?}");
        sts.recover();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_aws_credentials_of_other_roles_or_accounts() {
    let (gateway, sts) = start();
    let check = async |change: fn(&mut Machine), code: &str| {
        let machine = Machine::new().but(change);
        sts.add(machine.session.clone());
        site::refused(&gateway, &machine.attest(&gateway, &KINDS).await, code);
    };
    let somebody = |machine: &mut Machine| machine.session = RoleSession::named(&machine.aws, "somebody", clock::now());
    check(somebody, "sts-not-an-instance").await;
    let of_role = |machine: &mut Machine| {
        machine.aws.role = "admin".to_owned();
        machine.session = RoleSession::for_instance(&machine.aws, clock::now());
    };
    check(of_role, "sts-role").await;
    let of_account = |machine: &mut Machine| {
        machine.aws.account = "210987654321".to_owned();
        machine.session = RoleSession::for_instance(&machine.aws, clock::now());
    };
    check(of_account, "sts-account").await;
    // Credentials that STS does not know, and a signature by another key.
    let unknown = Machine::new();
    site::refused(&gateway, &unknown.attest(&gateway, &KINDS).await, "sts-refused");
    let forger = known_machine(&sts).but(|machine| machine.session.secret_access_key.push('x'));
    site::refused(&gateway, &forger.attest(&gateway, &KINDS).await, "sts-refused");
    let machine = known_machine(&sts);
    let signed_by_another = |request: Value, _: &Asked| {
        let value = unknown.session.token.clone();
        tampering::presigned_request(&request, "x-amz-security-token", &value)
    };
    site::refused(&gateway, &show(&gateway, &machine, signed_by_another).await, "sts-refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_15_refuses_forged_sts_answers() {
    let (gateway, sts) = start();
    let machine = known_machine(&sts);
    let check = async |field: &'static str, value: &'static str, code: &str| {
        sts.change_answers(move |answer| answer[field] = json!(value));
        site::refused(&gateway, &machine.attest(&gateway, &KINDS).await, code);
    };
    let arn = "arn:aws:sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0";
    check("Account", "210987654321", "sts-not-an-instance").await;
    check("Account", "root", "sts-unavailable").await;
    check("Arn", "arn:aws:iam::123456789012:user/admin", "sts-not-an-instance").await;
    check(
        "Arn",
        "arn:aws-cn:sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0",
        "sts-not-an-instance",
    )
    .await;
    check(
        "Arn",
        "arn:aws:sts::123456789012:assumed-role/worker-role/admin",
        "sts-not-an-instance",
    )
    .await;
    sts.change_answers(move |answer| (answer["Arn"], answer["UserId"]) = (json!(arn), json!("AROA1:i-00000000000000000")));
    site::refused(&gateway, &machine.attest(&gateway, &KINDS).await, "sts-unavailable");
    // Who answers in the name of STS is another CA's.
    let stranger = StsServer::start("eu-central-1", vec![machine.session.clone()]);
    let mut other = site::init(r#"[["aws-sts"]]"#, &[STS]);
    site::reach_sts(&other, &stranger);
    site::write(&other, "outgoing-ca.pem", sts.ca_pem());
    other.run();
    machine.attest(&other, &KINDS).await.refused(503, "cloud-unavailable");
    assert!(stranger.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_document_and_sts_caller_of_different_instances() {
    let mut gateway = site::init(r#"[["aws-identity-document", "aws-sts"]]"#, &[DOCUMENT, STS]);
    let sts = StsServer::start("eu-central-1", Vec::new());
    site::reach_sts(&gateway, &sts);
    gateway.run();
    let kinds = [Kind::AwsIdentityDocument, Kind::AwsSts];
    // Somebody's document, and one's own credentials.
    let thief = known_machine(&sts).but(|machine| machine.aws.instance_id = "i-00000000000000001".to_owned());
    site::refused(&gateway, &thief.attest(&gateway, &kinds).await, "identities-differ");
    let identity = "aws:123456789012/i-0123456789abcdef0";
    site::trusted(&gateway, &known_machine(&sts).attest(&gateway, &kinds).await, identity, &kinds);
    site::trusted(&gateway, &known_machine(&sts).attest(&gateway, &kinds).await, identity, &kinds);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_sts_credentials_do_not_override_an_instance_claim() {
    let mut gateway = site::init(r#"[["aws-identity-document", "aws-sts"], ["aws-sts"]]"#, &[DOCUMENT, STS]);
    let sts = StsServer::start("eu-central-1", Vec::new());
    site::reach_sts(&gateway, &sts);
    gateway.run();
    let both = [Kind::AwsIdentityDocument, Kind::AwsSts];
    let identity = "aws:123456789012/i-0123456789abcdef0";
    site::trusted(&gateway, &known_machine(&sts).attest(&gateway, &both).await, identity, &both);
    // A pod of that instance's: it gets the role's credentials from the metadata server, and the document.
    let thief = || known_machine(&sts).but(|machine| machine.claimant = Machine::another().claimant);
    site::refused(&gateway, &thief().attest(&gateway, &both).await, "instance-claimed");
    site::refused(&gateway, &thief().attest(&gateway, &[Kind::AwsSts]).await, "instance-claimed");
    site::trusted(
        &gateway,
        &known_machine(&sts).attest(&gateway, &[Kind::AwsSts]).await,
        identity,
        &[Kind::AwsSts],
    );
}
