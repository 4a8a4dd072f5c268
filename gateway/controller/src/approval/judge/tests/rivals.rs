//! Other requests for the same name.

use super::*;

#[test]
fn approves_neither_of_two_csrs_for_one_name() {
    let rival = csr("csr-2", NODE);
    let with = |other: Csr| Case::given().but(|case| case.others = vec![other]);
    let said = left("the first", with(rival.clone()), "csr-duplicate");
    assert!(said.contains("csr-2"), "{said}");
    let mut second = with(csr("csr-1", NODE));
    second.csr = rival.clone();
    left("the second", second, "csr-duplicate");
    let approved_one = Csr {
        stage: CsrStage::Approved,
        ..rival.clone()
    };
    let said = left("one that was approved by others", with(approved_one.clone()), "csr-name-taken");
    assert!(!said.contains("after"), "{said}");
    // Made long before, and approved since: a message says so, and not that it was made since.
    let since = Csr {
        created: NOW - 1000,
        approved: Some(NOW - 5),
        ..approved_one.clone()
    };
    let said = left("one that was approved since", with(since.clone()), "csr-name-taken");
    assert!(
        said.contains(&rfc3339(NOW - 1000)) && said.contains(&rfc3339(NOW - 5)) && !said.contains("after"),
        "{said}"
    );
    let before = Csr {
        approved: Some(NOW - 999),
        ..since
    };
    approved("one that was approved before", &with(before), Bound::Given);
    // Not of this boot, of no use to anybody, of another node.
    let early = NOW - 121 - CLOCK_SKEW_SECONDS;
    for other in [
        Csr {
            stage: CsrStage::Closed,
            ..rival.clone()
        },
        Csr {
            created: early,
            ..rival.clone()
        },
        Csr {
            created: early,
            ..approved_one
        },
        Csr {
            username: "system:admin".to_owned(),
            ..rival.clone()
        },
        Csr {
            usages: texts(&["server auth"]),
            ..rival.clone()
        },
        Csr {
            purpose: CsrPurpose::Serving,
            ..rival
        },
        csr("csr-2", "worker-2"),
    ] {
        approved("alone", &with(other), Bound::Given);
    }
    let again = Case::given().but(|case| {
        let request = case.csr.request.clone();
        case.others = vec![Csr {
            request,
            ..csr("csr-2", NODE)
        }];
    });
    approved("the same key once more", &again, Bound::Given);
}

#[test]
fn expired_approval_does_not_block_a_csr() {
    let case = Case::given().but(|case| {
        case.held.approval = Some(Approval {
            identity: OTHER.to_owned(),
            instance: None,
            pool: "worker".to_owned(),
            at: NOW - 10_000,
            attestation: "earlier".to_owned(),
            bound: Bound::Given,
            machine: None,
            csr: "csr-0".to_owned(),
            uid: "uid".to_owned(),
            key_sha256: String::new(),
        });
    });
    approved("the administrator has given the name to another since", &case, Bound::Given);
    // The CSR that was approved here for the boot before, a moment ago.
    let before = Csr {
        uid: "uid".to_owned(),
        stage: CsrStage::Approved,
        approved: Some(NOW - 125),
        created: NOW - 200,
        ..csr("csr-0", NODE)
    };
    let with_own = case.but(|case| case.others = vec![before]);
    approved("this gateway's own approval of the boot before", &with_own, Bound::Given);
    left(
        "the same by others",
        with_own.but(|case| case.held.approval = None),
        "csr-name-taken",
    );
}
