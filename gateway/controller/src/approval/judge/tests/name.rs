//! Tests for the owner of a requested name.

use super::*;

#[test]
fn rejects_a_name_of_another_or_revoked_machine() {
    check(
        "revoked",
        |case| case.held.revoked = Some("worker-1 was revoked".to_owned()),
        "csr-revoked",
    );
    let said = check("another's", |case| case.held.owner = Some(OTHER.to_owned()), "csr-name-taken");
    assert!(said.contains(OTHER), "{said}");
    check(
        "a second name",
        |case| case.held.other_name = Some("worker-7".to_owned()),
        "csr-name-taken",
    );
    check("not given", |case| case.held.given = false, "csr-asked-name");
    check("given, and forgotten", |case| case.held.owner = None, "csr-asked-name");
    check(
        "a node's",
        |case| drop(case.nodes.insert(NODE.to_owned(), NodeFacts::default())),
        "csr-node-exists",
    );
    left(
        "an instance whose name the administrator has given to another",
        Case::instance().but(|case| (case.held.owner, case.held.owner_given) = (Some(OTHER.to_owned()), true)),
        "csr-name-taken",
    );
}

#[test]
fn requested_name_does_not_block_its_instance() {
    let squatted = Case::instance().but(|case| {
        case.attested.insert(0, (OTHER.to_owned(), attested(Some(NODE))));
        case.held.owner = Some(OTHER.to_owned());
    });
    let ground = approved("the instance", &squatted, Bound::Machine);
    assert_eq!(ground.identity, INSTANCE);
    let alone = squatted.but(|case| case.attested.truncate(1));
    left("the other, alone", alone, "csr-asked-name");
}

#[test]
fn store_owner_wins_a_contested_name() {
    let renamed = Case::given().but(|case| case.attested.insert(0, (OTHER.to_owned(), attested(Some(NODE)))));
    let ground = approved("the owner", &renamed, Bound::Given);
    assert_eq!(ground.identity, IDENTITY);
}

#[test]
fn a_name_of_another_machine_is_not_given() {
    // That of a node that is there, of one that is expected, of nobody.
    for (name, code) in [
        ("worker-0", "csr-node-exists"),
        ("worker-2", "csr-not-attested"),
        ("nobody", "csr-not-attested"),
    ] {
        check(name, |case| case.csr = csr("csr-1", name), code);
    }
}

#[test]
fn rejects_a_control_plane_name_for_a_worker() {
    let said = check("by its Machine", |case| case.csr = csr("csr-1", "master-0"), "csr-control-plane");
    assert!(said.contains("openshift-machine-api/master-0"), "{said}");
    let node = |case: &mut Case| {
        case.csr = csr("csr-1", "host-0");
        let is_control_plane = true;
        case.nodes.insert(
            "host-0".to_owned(),
            NodeFacts {
                is_control_plane,
                ..NodeFacts::default()
            },
        );
    };
    check("by its Node", node, "csr-control-plane");
    let pattern = |case: &mut Case| {
        case.csr = csr("csr-1", "master-9");
        case.rules.names.insert("master".to_owned(), names(&["master-*"]));
    };
    check("by its pool's names", pattern, "csr-control-plane");
    // Whatever name the worker was given.
    let given = |case: &mut Case| {
        case.csr = csr("csr-1", "master-0");
        case.attested[0].1.name = Some("master-0".to_owned());
        case.rules.pools = texts(&["worker", "master"]);
    };
    let said = check("a worker that is called so", given, "csr-control-plane");
    assert!(said.contains("pool worker"), "{said}");
}
