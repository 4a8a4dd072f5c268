use std::collections::BTreeMap;

use attest_machines::attested::{Approval, Bound};

use super::super::csr::{CsrPurpose, CsrStage};
use super::super::facts::{ApprovalRules, EgressItem, NodeFacts};
use super::super::judge::FirstSeen;
use super::super::judge::tests::{asked, csr, machine, rules};
use super::super::request::VerifiedCsr;
use super::super::request::content::{self, RequestContent};
use super::*;

const NODE: &str = "worker-1";
const IDENTITY: &str = "tpm:1111111111111111111111111111111111111111111111111111111111111111";

fn addresses() -> Addresses {
    Addresses {
        names: vec![NODE.to_owned(), "worker-1.example.com".to_owned()],
        addresses: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
    }
}

struct Case {
    csr: Csr,
    rules: ApprovalRules,
    machines: Vec<MachineApiMachine>,
    nodes: BTreeMap<String, NodeFacts>,
    egress: EgressAddresses,
    held: ApprovalHold,
}

fn request(names: &[Vec<u8>]) -> Result<VerifiedCsr, super::super::request::RequestError> {
    let attributes = if names.is_empty() {
        vec![]
    } else {
        vec![content::alternatives(names)]
    };
    VerifiedCsr::read(
        &RequestContent::for_kubelet_client(NODE)
            .but(|made| made.attributes = attributes)
            .pem(),
    )
}

fn node_case() -> Case {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Case {
        csr: Csr {
            purpose: CsrPurpose::Serving,
            username: "system:node:worker-1".to_owned(),
            groups: texts(&["system:nodes", "system:authenticated"]),
            usages: texts(&["digital signature", "server auth"]),
            stage: CsrStage::Pending,
            request: request(&[content::dns(NODE), content::ip(&[10, 0, 0, 7])]),
            ..csr("csr-1", NODE)
        },
        rules: rules(),
        machines: vec![MachineApiMachine {
            node: Some(NODE.to_owned()),
            addresses: addresses(),
            ..machine(NODE, "worker")
        }],
        nodes: BTreeMap::from([(
            NODE.to_owned(),
            NodeFacts {
                is_control_plane: false,
                addresses: Addresses::default(),
            },
        )]),
        egress: EgressAddresses::default(),
        held: ApprovalHold {
            approval: Some(Approval {
                identity: IDENTITY.to_owned(),
                instance: None,
                pool: "worker".to_owned(),
                at: 1,
                attestation: "decision".to_owned(),
                bound: Bound::Given,
                machine: None,
                csr: "csr-0".to_owned(),
                uid: "uid".to_owned(),
                key_sha256: String::new(),
            }),
            ..ApprovalHold::default()
        },
    }
}

#[track_caller]
fn check(what: &str, change: impl FnOnce(&mut Case), expected: Option<&str>) {
    let mut case = node_case();
    change(&mut case);
    let facts = CsrFacts {
        rules: &case.rules,
        now: 1_800_000_000,
        requests: &[asked(&case.csr)],
        machines: &case.machines,
        nodes: &case.nodes,
        egress: &case.egress,
        attested: &[],
        first_seen: &FirstSeen::new(),
    };
    let reason = judge(&case.csr, &facts, &case.held).err();
    assert_eq!(reason.as_ref().map(Reason::code), expected, "{what}: {reason:?}");
}

#[test]
fn approves_a_serving_certificate_for_own_addresses() {
    check("as it is", |_| {}, None);
    let all = [
        content::dns("WORKER-1"),
        content::dns("worker-1.example.com"),
        content::ip(&[10, 0, 0, 7]),
    ];
    check("all of them", |case| case.csr.request = request(&all), None);
    let usages = ["digital signature", "key encipherment", "server auth"].map(str::to_owned);
    check("for an RSA key", |case| case.csr.usages = usages.to_vec(), None);
    let by_node = |case: &mut Case| {
        (case.rules.machines, case.machines) = (false, Vec::new());
        case.nodes.get_mut(NODE).unwrap().addresses = addresses();
    };
    check("by its Node, where there are no Machine objects", by_node, None);
}

#[test]
fn rejects_a_serving_certificate_for_foreign_addresses() {
    let asks = |what: &str, names: &[Vec<u8>]| check(what, |case| case.csr.request = request(names), Some("csr-address"));
    asks("nothing", &[]);
    asks("another name", &[content::dns(NODE), content::dns("worker-2")]);
    asks("the API's name", &[content::dns("kubernetes.default.svc")]);
    asks("another address", &[content::dns(NODE), content::ip(&[10, 0, 0, 8])]);
    asks("an address as a name", &[content::dns("10.0.0.7")]);
    check(
        "another's Machine",
        |case| case.machines[0].node = Some("worker-2".to_owned()),
        Some("csr-machine"),
    );
    check("no Machine", |case| case.machines.clear(), Some("csr-machine"));
    check(
        "two Machines",
        |case| case.machines.push(case.machines[0].clone()),
        Some("csr-machine"),
    );
    // What a node says of itself is not what its Machine object says.
    let only_node = |case: &mut Case| {
        case.nodes.get_mut(NODE).unwrap().addresses = addresses();
        case.machines[0].addresses = Addresses::default();
    };
    check("its Node says it alone", only_node, Some("csr-address"));
}

#[test]
fn egress_ips_of_the_node_are_accepted() {
    let with_egress = |node: &'static str| {
        move |case: &mut Case| {
            case.csr.request = request(&[content::dns(NODE), content::ip(&[10, 0, 0, 7]), content::ip(&[10, 0, 0, 99])]);
            let (node, egress_ip) = (node.to_owned(), "10.0.0.99".to_owned());
            case.egress.add(&[EgressItem { node, egress_ip }]);
        }
    };
    check("an egress address that it has", with_egress(NODE), None);
    check("another node's", with_egress("worker-2"), Some("csr-address"));
    let alone = |case: &mut Case| {
        with_egress(NODE)(case);
        case.csr.request = request(&[content::dns("worker-2"), content::ip(&[10, 0, 0, 99])]);
    };
    check("besides another name", alone, Some("csr-address"));
}

#[test]
fn serving_csr_must_come_from_the_approved_node() {
    check(
        "another node",
        |case| case.csr.username = "system:node:worker-2".to_owned(),
        Some("csr-serving-of-another"),
    );
    check(
        "no node",
        |case| case.csr.username = NODE.to_owned(),
        Some("csr-serving-of-another"),
    );
    check(
        "a group more",
        |case| case.csr.groups.push("system:masters".to_owned()),
        Some("csr-groups"),
    );
    check("a group less", |case| drop(case.csr.groups.pop()), Some("csr-groups"));
    check(
        "another group",
        |case| case.csr.groups[0] = "system:masters".to_owned(),
        Some("csr-groups"),
    );
    check(
        "another usage",
        |case| case.csr.usages[1] = "client auth".to_owned(),
        Some("csr-usages"),
    );
    check(
        "a usage more",
        |case| case.csr.usages.push("client auth".to_owned()),
        Some("csr-usages"),
    );
    check("a usage less", |case| drop(case.csr.usages.pop()), Some("csr-usages"));
    check("a lifetime", |case| case.csr.expiration_seconds = Some(1), Some("csr-lifetime"));
    check("no Node", |case| case.nodes.clear(), Some("csr-no-node"));
    check(
        "not approved here",
        |case| case.held.approval = None,
        Some("csr-client-not-approved-here"),
    );
    check(
        "revoked",
        |case| case.held.revoked = Some("revoked".to_owned()),
        Some("csr-revoked"),
    );
    check(
        "given to another",
        |case| case.held.owner = Some("tpm:other".to_owned()),
        Some("csr-name-taken"),
    );
    let asked_by_another = |case: &mut Case| {
        case.held.owner = Some("tpm:other".to_owned());
        case.held.approval.as_mut().unwrap().bound = Bound::Machine;
    };
    check(
        "asked for by another, where a Machine object names the instance",
        asked_by_another,
        None,
    );
    let given_to_another = |case: &mut Case| {
        asked_by_another(case);
        case.held.owner_given = true;
    };
    check(
        "given to another, whatever a Machine object names",
        given_to_another,
        Some("csr-name-taken"),
    );
    check("its own", |case| case.held.owner = Some(IDENTITY.to_owned()), None);
    let unsigned = |case: &mut Case| {
        let made = RequestContent::for_kubelet_client(NODE);
        case.csr.request = VerifiedCsr::read(&content::pem(&made.signed(&made.info(), b"")));
    };
    check("unsigned", unsigned, Some("csr-request"));
}
