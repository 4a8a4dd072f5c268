use std::collections::BTreeSet;

use attest_machines::revocations::Revocation;
use serde_json::{Value, json};

use super::edits::{self, EditStep};
use super::object::{AttestedNode, AttestedNodeSpec};
use crate::machine_status::facts::MachineUpdates;
use crate::machine_status::object_name::object_name;
use crate::machine_status::status::{AttestedNodeState, AttestedNodeStatus, ConditionAnswer, ConditionType, reason_of_code};
use crate::machine_status::stored::StoredMachine;

fn tpm(digits: &str) -> String {
    format!("tpm:{}", digits.repeat(32))
}

fn node(value: Value) -> AttestedNode {
    serde_json::from_value(value).unwrap()
}

#[test]
fn object_names_are_unique_per_machine_identity() {
    let check = |identity: &str, expected: Option<&str>| assert_eq!(object_name(identity).as_deref(), expected, "{identity}");
    check(&tpm("ab"), Some(&format!("tpm-{}", "ab".repeat(32))));
    // As `sha256sum` has it.
    check(
        "gcp:p/1",
        Some("gcp-53465ae3896928ff20ac1730455cb599e5a8bb86951c8b6e0904af11a8272125"),
    );
    for other in [
        "",
        "tpm:",
        "tpm:ab",
        &tpm("AB"),
        &tpm("ag"),
        &format!("{}0", tpm("ab")),
        "kubelet:worker-7",
        "claimant:00",
        "gcp:",
        "gcp",
        "worker-7",
        &format!("gcp:{}", "x".repeat(320)),
    ] {
        check(other, None);
    }
    let names: BTreeSet<String> = ["aws:1/i-1", "aws:1/i-2", "aws-nitrotpm:i-1", "azure:1/a", "azure-vtpm:a"]
        .iter()
        .filter_map(|identity| object_name(identity))
        .collect();
    assert_eq!(names.len(), 5);
    assert!(names.iter().all(|name| {
        name.len() <= 253
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    }));
}

#[test]
fn reads_objects_with_malformed_spec_or_status() {
    let meta = json!({"name": "a", "uid": "u", "generation": 3});
    for spec in [json!(null), json!({})] {
        assert_eq!(
            node(json!({"metadata": meta, "spec": spec})).spec(),
            Ok(&AttestedNodeSpec::default())
        );
    }
    for spec in [
        json!(7),
        json!([]),
        json!([true]),
        json!("x"),
        json!({"ban": true}),
        json!({"banned": 1}),
        json!({"approved": {}}),
    ] {
        let node = node(json!({"metadata": meta, "spec": spec, "status": spec}));
        assert!(node.spec().is_err(), "{spec}");
        assert_eq!(node.status().into_owned().identity, None);
    }
    assert_eq!(
        node(json!({"metadata": meta, "status": {"identity": "a", "new": 7}}))
            .status()
            .identity
            .as_deref(),
        Some("a")
    );
}

#[test]
fn finds_the_last_spec_manager_in_managed_fields() {
    let entry = |manager: &str, seconds: u32, part: &str, field: &str| {
        json!({"manager": manager, "operation": "Update", "time": format!("2026-01-01T00:00:{seconds:02}Z"), "fieldsType": "FieldsV1",
            "fieldsV1": {field: {}}, "subresource": part})
    };
    let manager = |entries: &[Value]| {
        node(json!({"metadata": {"name": "a", "managedFields": entries}}))
            .manager()
            .map(str::to_owned)
    };
    assert_eq!(manager(&[]), None);
    let entries = [
        entry("first", 1, "", "f:spec"),
        entry("last", 3, "", "f:spec"),
        entry("attest-gateway", 9, "status", "f:status"),
        entry("kubectl-annotate", 8, "", "f:metadata"),
        entry("other", 2, "", "f:spec"),
    ];
    assert_eq!(manager(&entries).as_deref(), Some("last"));
}

fn line(decision: &str, verdict: &str, at: u64, more: &Value) -> Vec<u8> {
    let mut line = json!({
        "v": 1, "time": "", "peer": "192.0.2.1:7", "decided_by": "evidence", "reason": "",
        "at": at, "id": format!("id-{at}"), "decision": decision, "verdict": verdict, "pool": "worker", "shown": "tpm", "kinds": ["tpm", "gcp"],
        "identity": tpm("ab"), "grant": "full", "config_sha256": "c0", "spec_version": "3.4.0", "code": "pcr-mismatch", "claims": {"more": [1]},
    });
    for (name, value) in more.as_object().unwrap() {
        line[name] = value.clone();
    }
    line.to_string().into_bytes()
}

fn status_of(lines: &[Vec<u8>]) -> Option<AttestedNodeStatus> {
    let mut news = MachineUpdates::default();
    lines.iter().for_each(|line| news.add(line));
    let facts = news.0.into_values().next()?;
    let mut status = AttestedNodeStatus::default();
    facts.add_to(&mut status, 1);
    status.sum_up();
    Some(status)
}

#[test]
fn status_shows_a_machines_last_proven_decision() {
    let trusted = line("evidence", "trusted", 10, &json!({}));
    let served = line("config", "served", 11, &json!({"shown": "ticket"}));
    let refused = line("evidence", "refused", 12, &json!({}));
    let status = status_of(&[trusted.clone(), served.clone()]).unwrap();
    assert_eq!(status.state, Some(AttestedNodeState::Trusted));
    let attestation = status.attestation.clone().unwrap();
    assert_eq!(
        (&*attestation.at, &*attestation.by, &*attestation.record),
        ("1970-01-01T00:00:10Z", "tpm+gcp", "id-10")
    );
    assert!(status.holds(ConditionType::Attested) && status.holds(ConditionType::ConfigServed));
    assert_eq!(status.config.unwrap().sha256, "c0");
    let status = status_of(&[trusted.clone(), refused.clone()]).unwrap();
    assert_eq!(status.state, Some(AttestedNodeState::Refused));
    assert_eq!(status.says(ConditionType::Attested).unwrap().reason, "PcrMismatch");
    // Later it is trusted again.
    let again = line("evidence", "trusted", 13, &json!({}));
    assert_eq!(
        status_of(&[refused.clone(), again]).unwrap().state,
        Some(AttestedNodeState::Trusted)
    );
    // Within one second, the log's order counts.
    let at_once = line("evidence", "trusted", 12, &json!({}));
    for (lines, state) in [
        ([at_once.clone(), refused.clone()], AttestedNodeState::Refused),
        ([refused.clone(), at_once], AttestedNodeState::Trusted),
    ] {
        assert_eq!(status_of(&lines).unwrap().state, Some(state));
    }
    // Who proves nothing, whoever it says it is; and what is no machine's.
    for (decision, verdict, more) in [
        ("evidence", "refused", json!({"claims": null})),
        ("challenge", "refused", json!({})),
        ("config", "refused", json!({"shown": "ticket"})),
        ("config", "served", json!({"shown": "token"})),
        ("config", "served", json!({"shown": "kubelet", "identity": "kubelet:worker-7"})),
        ("config", "served", json!({"shown": "nothing"})),
        ("evidence", "trusted", json!({"identity": null})),
        ("evidence", "trusted", json!({"identity": "worker-7"})),
        ("evidence", "trusted", json!({"at": "soon"})),
        ("admin", "served", json!({})),
    ] {
        assert_eq!(
            status_of(&[line(decision, verdict, 10, &more)]),
            None,
            "{decision} {verdict} {more}"
        );
    }
    assert_eq!(status_of(&[b"{".to_vec(), b"".to_vec(), b"[]".to_vec()]), None);
    // A refusal alone is told of one that is there, and makes none.
    let mut news = MachineUpdates::default();
    news.add(&refused);
    assert!(!news.0.values().next().unwrap().is_of_a_machine());
}

#[test]
fn older_records_do_not_overwrite_a_newer_status() {
    let facts = |at: u64| {
        let mut news = MachineUpdates::default();
        news.add(&line("evidence", "trusted", at, &json!({})));
        news.add(&line("config", "served", at, &json!({"shown": "ticket"})));
        news.0.into_values().next().unwrap()
    };
    let mut status = AttestedNodeStatus::default();
    facts(20).add_to(&mut status, 1);
    let before = status.clone();
    // Told again, and an older one.
    for at in [20, 10] {
        facts(at).add_to(&mut status, 1);
        assert_eq!(status.attestation, before.attestation);
        assert_eq!(status.config, before.config);
    }
    facts(20).add_to(&mut status, 1);
    assert_eq!(status.patch(&before), None);
}

#[test]
fn conditions_have_transition_times_and_patches_only_changes() {
    let mut status = AttestedNodeStatus::default();
    status.set_condition(ConditionType::Banned, ConditionAnswer::new(false, "NotBanned", ""), 1, 10);
    status.set_condition(ConditionType::Banned, ConditionAnswer::new(false, "Other", "x".repeat(5000)), 2, 20);
    let said = status.says(ConditionType::Banned).unwrap();
    assert_eq!(
        (&*said.last_transition_time, said.observed_generation),
        ("1970-01-01T00:00:10Z", Some(2))
    );
    assert_eq!(said.message.len(), 1024);
    status.set_condition(ConditionType::Banned, ConditionAnswer::new(true, "ByCommand", ""), 2, 30);
    assert_eq!(
        status.says(ConditionType::Banned).unwrap().last_transition_time,
        "1970-01-01T00:00:30Z"
    );
    let before = AttestedNodeStatus {
        node_name: Some("a".to_owned()),
        identity: Some("i".to_owned()),
        ..AttestedNodeStatus::default()
    };
    let after = AttestedNodeStatus {
        observed_generation: Some(2),
        identity: Some("i".to_owned()),
        ..AttestedNodeStatus::default()
    };
    assert_eq!(after.patch(&before), Some(json!({"nodeName": null, "observedGeneration": 2})));
    assert_eq!(after.patch(&after), None);
}

#[test]
fn condition_reasons_are_valid_for_the_kubernetes_api() {
    assert_eq!(reason_of_code("pcr-mismatch"), "PcrMismatch");
    assert_eq!(reason_of_code(""), "Unsaid");
    for code in attest::reject::advices().map(|advice| advice.code) {
        let reason = reason_of_code(code);
        assert!(reason.starts_with(|first: char| first.is_ascii_uppercase()), "{code}");
        assert!(reason.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{code}");
    }
}

fn steps(spec: &Value, handled: Option<&Value>, machine: &StoredMachine) -> Vec<EditStep> {
    let spec: AttestedNodeSpec = serde_json::from_value(spec.clone()).unwrap();
    let before = handled.map(|handled| edits::handled(&serde_json::from_value(handled.clone()).unwrap()));
    edits::steps(&spec, &before.unwrap_or_default(), machine, "tpm-ab")
}

fn revoked(reason: &str, itself: bool) -> StoredMachine {
    StoredMachine {
        identity: tpm("ab"),
        revoked: Some(Revocation {
            at: 1,
            reason: Some(reason.to_owned()),
            with: BTreeSet::new(),
        }),
        revoked_itself: itself,
        ..StoredMachine::default()
    }
}

#[test]
fn applies_bans_continuously_and_grants_once() {
    let machine = StoredMachine {
        identity: tpm("ab"),
        ..StoredMachine::default()
    };
    let by_object = revoked("attestednode tpm-ab: x", true);
    let by_command = revoked("x", true);
    let ban = json!({"banned": true});
    assert_eq!(steps(&ban, None, &machine), [EditStep::Ban(None)]);
    // Restored by a command while the object says otherwise, it is banned again.
    assert_eq!(steps(&ban, Some(&ban), &machine), [EditStep::Ban(None)]);
    assert_eq!(steps(&ban, None, &revoked("x", false)), [EditStep::Ban(None)], "its name alone was");
    assert!(steps(&ban, None, &by_command).is_empty() && steps(&ban, None, &by_object).is_empty());
    let lift = json!({"banned": false});
    assert_eq!(steps(&lift, None, &by_object), [EditStep::Lift]);
    for machine in [&machine, &by_command, &revoked("attestednode tpm-abc", true)] {
        assert!(steps(&lift, None, machine).is_empty());
    }
    assert!(steps(&json!({}), None, &by_object).is_empty(), "nothing said is nothing done");
    for given in [json!({"forget": "a"}), json!({"approved": {"pools": ["worker"]}})] {
        assert_eq!(steps(&given, None, &machine).len(), 1, "{given}");
        assert!(steps(&given, Some(&given), &machine).is_empty(), "{given}");
        assert_eq!(steps(&given, Some(&json!({})), &machine).len(), 1, "{given}");
    }
    let approved = json!({"approved": {"pools": ["worker"]}});
    for other in [
        json!({"approved": {"pools": ["infra"]}}),
        json!({"approved": {"pools": ["worker"], "nodeName": "a"}}),
    ] {
        assert_eq!(steps(&other, Some(&approved), &machine).len(), 1, "{other}");
    }
    // The ban comes last.
    let all = json!({"banned": true, "forget": "a", "approved": {"pools": ["worker"]}});
    assert!(matches!(
        &*steps(&all, None, &machine),
        [EditStep::Forget(_), EditStep::Approve(_), EditStep::Ban(_)]
    ));
}

#[test]
fn derives_an_unknown_machines_identity_from_object_name() {
    let of = |name: &str, identity: Option<&str>| {
        let status = AttestedNodeStatus {
            identity: identity.map(str::to_owned),
            ..AttestedNodeStatus::default()
        };
        StoredMachine::unknown(name, &status).map(|machine| machine.identity)
    };
    let aws = object_name("aws:1/i-1").unwrap();
    assert_eq!(of(&object_name(&tpm("ab")).unwrap(), None), Some(tpm("ab")));
    assert_eq!(of(&aws, Some("aws:1/i-1")).as_deref(), Some("aws:1/i-1"));
    // Nobody is another by what a status says.
    assert_eq!(of(&object_name(&tpm("ab")).unwrap(), Some(&tpm("cd"))), Some(tpm("ab")));
    for (name, identity) in [
        (&*aws, Some("aws:1/i-2")),
        (&*aws, Some(&*tpm("ab"))),
        (&*aws, None),
        ("worker-7", None),
        ("tpm-00", None),
    ] {
        assert_eq!(of(name, identity), None, "{name} {identity:?}");
    }
}

#[test]
fn reference_page_lists_all_edit_refusal_reasons() {
    let code = [include_str!("edits.rs"), include_str!("leader.rs")].concat();
    let mut reasons = BTreeSet::from(["RevokedByCommand"]);
    for call in ["refused(", "Answer::new(false,"] {
        for rest in code.split(call).skip(1) {
            let said = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'));
            reasons.extend(said.map(|(reason, _)| reason));
        }
    }
    assert!(reasons.len() >= 9, "{reasons:?}");
    let document = include_str!("../../../../docs/reference/attested-nodes.md");
    for reason in reasons {
        assert!(document.contains(&format!("`{reason}`")), "{reason}");
    }
}
