mod key;
mod name;
mod rivals;

use attest::SpkiSha256;
use attest_certificates::kubelet::NamePatterns;
use attest_machines::attested::{Approval, Provider};
use attest_system::clock::rfc3339;

use super::super::request::content::{self, RequestContent};
use super::*;

const NODE: &str = "worker-1";
const IDENTITY: &str = "tpm:1111111111111111111111111111111111111111111111111111111111111111";
const OTHER: &str = "tpm:2222222222222222222222222222222222222222222222222222222222222222";
const INSTANCE: &str = "aws:123456789012/i-0123456789abcdef0";
const NOW: u64 = 1_800_000_000;
const WITHIN: u64 = 30 * 60;
const REQUESTER: &str = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper";

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A request that came a minute after its machine had attested, which was two minutes ago.
pub(in super::super) fn csr(name: &str, node: &str) -> Csr {
    Csr {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        created: NOW - 60,
        purpose: CsrPurpose::Client,
        username: REQUESTER.to_owned(),
        groups: texts(&[
            "system:serviceaccounts:openshift-machine-config-operator",
            "system:serviceaccounts",
            "system:authenticated",
        ]),
        usages: texts(&["digital signature", "client auth"]),
        expiration_seconds: None,
        stage: CsrStage::Pending,
        approved: None,
        request: VerifiedCsr::read(&RequestContent::for_kubelet_client(node).pem()),
    }
}

/// Returns a CSR that arrived while this gateway was watching.
pub(in super::super) fn asked(csr: &Csr) -> PendingRequest {
    PendingRequest {
        csr: Arc::new(csr.clone()),
        first_judged: None,
        maybe_judged_before: false,
    }
}

pub(in super::super) fn machine(name: &str, role: &str) -> MachineApiMachine {
    MachineApiMachine {
        id: format!("openshift-machine-api/{name}"),
        role: Some(role.to_owned()),
        provider_id: None,
        node: None,
        internal_names: texts(&[name]),
        addresses: Default::default(),
        going: false,
    }
}

fn names(patterns: &[&str]) -> NamePatterns {
    NamePatterns::new(texts(patterns)).unwrap()
}

pub(in super::super) fn rules() -> ApprovalRules {
    ApprovalRules {
        within_seconds: WITHIN,
        requester: REQUESTER.to_owned(),
        groups: csr("", NODE).groups,
        pools: texts(&["worker"]),
        control_plane_pools: texts(&["master"]),
        machines: true,
        asked_names: false,
        keys: ApprovedKeys::Any,
        names: BTreeMap::from([("worker".to_owned(), names(&[])), ("master".to_owned(), names(&[]))]),
    }
}

fn attested(name: Option<&str>) -> AttestedMachine {
    AttestedMachine {
        at: NOW - 120,
        pool: "worker".to_owned(),
        name: name.map(str::to_owned),
        instance: None,
        provider: None,
        key_sha256: None,
        decision: "decision".to_owned(),
    }
}

struct Case {
    csr: Csr,
    others: Vec<Csr>,
    rules: ApprovalRules,
    machines: Vec<MachineApiMachine>,
    nodes: BTreeMap<String, NodeFacts>,
    attested: Vec<(String, AttestedMachine)>,
    held: ApprovalHold,
    now: u64,
    first_judged: Option<u64>,
    maybe_judged_before: bool,
    first_seen: FirstSeen,
}

impl Case {
    /// A TPM that the administrator has named, in a cluster with Machine objects.
    fn given() -> Self {
        Self {
            csr: csr("csr-1", NODE),
            others: Vec::new(),
            rules: rules(),
            machines: vec![
                machine("worker-0", "worker"),
                machine(NODE, "worker"),
                machine("master-0", "master"),
            ],
            nodes: BTreeMap::from([("worker-0".to_owned(), NodeFacts::default())]),
            attested: vec![(IDENTITY.to_owned(), attested(Some(NODE)))],
            held: ApprovalHold {
                owner: Some(IDENTITY.to_owned()),
                owner_given: true,
                given: true,
                ..ApprovalHold::default()
            },
            now: NOW,
            first_judged: None,
            maybe_judged_before: false,
            first_seen: FirstSeen::from([("decision".to_owned(), 7)]),
        }
    }

    /// An instance of AWS without a name, which its Machine object names.
    fn instance() -> Self {
        let provider = Some(Provider::Aws {
            instance: "i-0123456789abcdef0".to_owned(),
        });
        let mut case = Self::given();
        case.attested = vec![(
            INSTANCE.to_owned(),
            AttestedMachine {
                provider,
                ..attested(None)
            },
        )];
        case.machines[1].provider_id = Some("aws:///us-east-1a/i-0123456789abcdef0".to_owned());
        case.held = ApprovalHold::default();
        case
    }

    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn asked(&self) -> PendingRequest {
        PendingRequest {
            first_judged: self.first_judged,
            maybe_judged_before: self.maybe_judged_before,
            ..asked(&self.csr)
        }
    }

    fn facts<T>(&self, of: impl FnOnce(&CsrFacts<'_>) -> T) -> T {
        let requests: Vec<PendingRequest> = self.others.iter().map(asked).chain([self.asked()]).collect();
        of(&CsrFacts {
            rules: &self.rules,
            now: self.now,
            requests: &requests,
            machines: &self.machines,
            nodes: &self.nodes,
            egress: &EgressAddresses::default(),
            attested: &self.attested,
            first_seen: &self.first_seen,
        })
    }

    fn judge(&self) -> ApprovalVerdict {
        self.facts(|facts| judge(&self.asked(), facts, &self.held))
    }
}

#[track_caller]
fn approved(what: &str, case: &Case, bound: Bound) -> Ground {
    match case.judge() {
        ApprovalVerdict::Approve(ground) if ground.bound == bound => ground,
        other => panic!("{what}: {other:?}"),
    }
}

#[track_caller]
fn left(what: &str, case: Case, code: &str) -> String {
    match case.judge() {
        ApprovalVerdict::Leave(reason) => {
            assert_eq!(reason.code(), code, "{what}: {reason}");
            reason.to_string()
        }
        ApprovalVerdict::Approve(ground) => panic!("{what}: {ground:?}"),
    }
}

#[track_caller]
fn check(what: &str, change: impl FnOnce(&mut Case), code: &str) -> String {
    left(what, Case::given().but(change), code)
}

/// The digest of the key that a request is for.
fn key_of(csr: &Csr) -> SpkiSha256 {
    csr.request.as_ref().unwrap().key
}

#[test]
fn approves_the_machine_that_owns_the_name() {
    let ground = approved("given", &Case::given(), Bound::Given);
    assert_eq!(
        (ground.identity.as_str(), ground.attested.decision.as_str()),
        (IDENTITY, "decision")
    );
    assert_eq!(ground.machine.unwrap(), format!("openshift-machine-api/{NODE}"));
    let longer = Case::given().but(|case| case.csr.usages = texts(&["client auth", "key encipherment", "digital signature"]));
    approved("for RSA keys, in any order", &longer, Bound::Given);
    approved("named by its Machine object", &Case::instance(), Bound::Machine);
    let asked = Case::given().but(|case| (case.held.given, case.rules.asked_names) = (false, true));
    approved("asked for", &asked, Bound::Asked);
    let without = Case::given().but(|case| {
        (case.machines, case.rules.machines) = (Vec::new(), false);
        case.rules.names.insert("worker".to_owned(), names(&["worker-*"]));
    });
    assert_eq!(approved("without Machine objects", &without, Bound::Given).machine, None);
    let host = Case::given().but(|case| {
        case.machines[1] = machine(NODE, "master");
        case.attested[0].1.pool = "master".to_owned();
        case.rules.pools = texts(&["worker", "master"]);
    });
    approved("a host of the control plane, where those are", &host, Bound::Given);
}

#[test]
fn usages_are_exactly_a_kubelets() {
    let usages = |usages: &[&str]| {
        check(&usages.join(", "), |case| case.csr.usages = texts(usages), "csr-usages");
    };
    usages(&[]);
    usages(&["digital signature"]);
    usages(&["client auth"]);
    usages(&["key encipherment", "client auth"]);
    usages(&["digital signature", "server auth"]);
    usages(&["digital signature", "client auth", "server auth"]);
    usages(&["digital signature", "key encipherment", "client auth", "server auth"]);
    usages(&["digital signature", "key encipherment", "client auth", "cert sign"]);
    usages(&["digital signature", "client auth", "client auth"]);
    usages(&["digital signature", "digital signature"]);
    usages(&["any", "client auth"]);
}

#[test]
fn requester_must_be_the_bootstrapper_in_its_groups() {
    for wrong in [
        "",
        "system:admin",
        "system:node:worker-0",
        "system:serviceaccount:default:node-bootstrapper",
    ] {
        check(wrong, |case| case.csr.username = wrong.to_owned(), "csr-requester");
    }
    let said = check(
        "a group more",
        |case| case.csr.groups.push("system:masters".to_owned()),
        "csr-groups",
    );
    assert!(said.contains("system:masters"), "{said}");
    check("a group less", |case| drop(case.csr.groups.pop()), "csr-groups");
    check("another group", |case| case.csr.groups[0] = "system:nodes".to_owned(), "csr-groups");
    check("no group", |case| case.csr.groups.clear(), "csr-groups");
    check(
        "a group twice",
        |case| case.csr.groups[1] = case.csr.groups[0].clone(),
        "csr-groups",
    );
}

#[test]
fn csr_must_request_a_plain_client_certificate() {
    check("a lifetime", |case| case.csr.expiration_seconds = Some(600), "csr-lifetime");
    let with_names = |case: &mut Case| {
        let request =
            RequestContent::for_kubelet_client(NODE).but(|made| made.attributes = vec![content::alternatives(&[content::dns(NODE)])]);
        case.csr.request = VerifiedCsr::read(&request.pem());
    };
    check("names", with_names, "csr-alternative-names");
    let unsigned = |case: &mut Case| {
        let request = RequestContent::for_kubelet_client(NODE);
        case.csr.request = VerifiedCsr::read(&content::pem(&request.signed(&request.info(), b"")));
    };
    check("no signature", unsigned, "csr-request");
}

#[test]
fn attestation_must_be_recent_and_precede_the_csr() {
    check("none", |case| case.attested.clear(), "csr-not-attested");
    check(
        "another's",
        |case| case.attested[0].1.name = Some("worker-2".to_owned()),
        "csr-not-attested",
    );
    check("of no name", |case| case.attested[0].1.name = None, "csr-not-attested");
    let at = |at: u64| Case::given().but(|case| (case.attested[0].1.at, case.csr.created) = (at, NOW));
    approved("the last second", &at(NOW - WITHIN), Bound::Given);
    left("a second later", at(NOW - WITHIN - 1), "csr-attested-too-long-ago");
    approved("a clock that is a little ahead", &at(NOW + CLOCK_SKEW_SECONDS), Bound::Given);
    left("in the future", at(NOW + CLOCK_SKEW_SECONDS + 1), "csr-attested-too-long-ago");
    left("the end of time", at(u64::MAX), "csr-attested-too-long-ago");
    let created = |created: u64| Case::given().but(|case| case.csr.created = created);
    approved("by another clock", &created(NOW - 120 - CLOCK_SKEW_SECONDS), Bound::Given);
    let said = left("before", created(NOW - 121 - CLOCK_SKEW_SECONDS), "csr-before-attestation");
    assert!(!said.contains("after"), "{said}");
    // Where it may have been judged meanwhile, there is no allowance for clocks.
    let unknown = |created: u64| Case::given().but(|case| (case.csr.created, case.maybe_judged_before) = (created, true));
    approved("as old as the attestation", &unknown(NOW - 120), Bound::Given);
    left("a second older", unknown(NOW - 121), "csr-before-attestation");
    let two = |case: &mut Case| {
        case.attested.push((OTHER.to_owned(), attested(Some(NODE))));
        (case.held.owner, case.held.given) = (None, false);
    };
    let said = check("two", two, "csr-ambiguous");
    assert!(said.contains(IDENTITY) && said.contains(OTHER), "{said}");
}

#[test]
fn attack_49_does_not_approve_a_csr_judged_before_attestation() {
    let judged = |pass: u64| Case::given().but(|case| case.first_judged = Some(pass));
    approved("in the pass that found the attestation", &judged(7), Bound::Given);
    approved("later", &judged(8), Bound::Given);
    let said = left("a pass earlier", judged(6), "csr-before-attestation");
    assert!(said.contains("judged before") && !said.contains("after"), "{said}");
    // Also by its key, and whatever the clock of the API says.
    let keyed = judged(6).but(|case| {
        case.attested[0].1.key_sha256 = Some(key_of(&case.csr));
        case.csr.created = NOW;
    });
    left("for the attested key", keyed, "csr-before-attestation");
    let unknown = judged(7).but(|case| case.first_seen.clear());
    left("an attestation that no pass has found", unknown, "csr-before-attestation");
}

#[test]
fn pool_must_be_approved_and_match_the_name() {
    check("another pool", |case| case.attested[0].1.pool = "infra".to_owned(), "csr-pool");
    check("no pool", |case| case.rules.pools.clear(), "csr-pool");
    let names_of = |pool: &'static str, patterns: &'static [&'static str]| {
        move |case: &mut Case| drop(case.rules.names.insert(pool.to_owned(), names(patterns)))
    };
    approved("its name", &Case::given().but(names_of("worker", &["worker-*"])), Bound::Given);
    check("not a name of its nodes", names_of("worker", &["node-*"]), "csr-pool-name");
    let said = check("another pool's", names_of("infra", &["worker-*"]), "csr-pool-name");
    assert!(said.contains("pool infra"), "{said}");
    let nothing_says = |case: &mut Case| (case.rules.machines, case.machines) = (false, Vec::new());
    check("neither Machine objects nor names", nothing_says, "csr-pool-name");
}

#[test]
fn machine_object_must_match_the_csr() {
    check("none", |case| drop(case.machines.remove(1)), "csr-machine");
    check(
        "another name",
        |case| case.machines[1].internal_names = texts(&["worker-10"]),
        "csr-machine",
    );
    check(
        "a node already",
        |case| case.machines[1].node = Some("worker-1".to_owned()),
        "csr-machine",
    );
    check("on its way out", |case| case.machines[1].going = true, "csr-machine");
    check("two", |case| case.machines.push(machine(NODE, "worker")), "csr-machine");
    let no_role = Case::given().but(|case| case.machines[1].role = None);
    approved("a role that it does not say", &no_role, Bound::Given);
    let host = |case: &mut Case| {
        case.attested[0].1.pool = "master".to_owned();
        case.rules.pools = texts(&["worker", "master"]);
    };
    let said = check("a worker's, for a host of the control plane", host, "csr-machine");
    assert!(said.contains("role worker"), "{said}");
    left(
        "another instance's, and so not its own",
        Case::instance().but(|case| case.machines[1].provider_id = Some("aws:///us-east-1a/i-0fedcba9876543210".to_owned())),
        "csr-not-attested",
    );
    let other_instance = Case::instance().but(|case| {
        case.machines[1].provider_id = Some("aws:///us-east-1a/i-0fedcba9876543210".to_owned());
        case.attested[0].1.name = Some(NODE.to_owned());
        (case.held.owner, case.held.given) = (Some(INSTANCE.to_owned()), true);
    });
    left("another instance's, whatever name it was given", other_instance, "csr-machine");
    let upper = Case::given().but(|case| case.machines[1].internal_names = texts(&["Worker-1"]));
    approved("names are the same in capitals", &upper, Bound::Given);
}

#[test]
fn candidates_come_from_names_and_machine_objects() {
    let found = |case: &Case, name: &str| -> Vec<String> {
        case.facts(|facts| {
            candidates(name, None, facts)
                .into_iter()
                .map(|(identity, _)| identity.clone())
                .collect()
        })
    };
    assert_eq!(found(&Case::given(), NODE), [IDENTITY]);
    assert_eq!(found(&Case::instance(), NODE), [INSTANCE]);
    for case in [Case::given(), Case::instance()] {
        assert!(found(&case, "worker-2").is_empty());
    }
}

#[test]
fn every_reason_code_is_listed() {
    let codes: Vec<String> = include_str!("../reason.rs")
        .split("=> \"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .collect();
    assert!(!codes.is_empty() && codes.iter().all(|code| Reason::CODES.contains(&code.as_str())));
    assert_eq!(codes.len(), Reason::CODES.len());
}
