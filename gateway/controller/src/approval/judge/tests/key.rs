//! The key that a request is for.

use super::*;

/// A machine that has attested the key of its request.
fn keyed() -> Case {
    Case::given().but(|case| case.attested[0].1.key_sha256 = Some(key_of(&case.csr)))
}

#[test]
fn csr_must_use_the_attested_key() {
    approved("its key", &keyed(), Bound::Given);
    let other_key = |case: &mut Case| case.csr = csr("csr-1", NODE);
    let case = keyed().but(other_key);
    let found = key_of(&case.csr).to_string();
    let said = left("another key", case, "csr-key-not-attested");
    assert!(said.contains(&found) && said.contains(IDENTITY), "{said}");
    let one_bit = |case: &mut Case| case.attested[0].1.key_sha256.as_mut().unwrap().0[31] ^= 1;
    left("a digest that is another", keyed().but(one_bit), "csr-key-not-attested");
    // What was attested before does not count.
    let again = |case: &mut Case| case.attested[0].1.key_sha256 = Some(SpkiSha256([7; 32]));
    left("an attestation of before", keyed().but(again), "csr-key-not-attested");
    let of_another = keyed().but(|case| case.csr.username = "system:admin".to_owned());
    left("its key alone is not enough", of_another, "csr-requester");
    let of_instance = Case::instance().but(|case| case.attested[0].1.key_sha256 = Some(key_of(&case.csr)));
    approved("an instance's", &of_instance, Bound::Machine);
    left(
        "an instance's, with another key",
        of_instance.but(other_key),
        "csr-key-not-attested",
    );
}

#[test]
fn unattested_keys_can_be_refused() {
    let required = |case: &mut Case| case.rules.keys = ApprovedKeys::Attested;
    approved("attested", &keyed().but(required), Bound::Given);
    check("none", required, "csr-key-not-attested");
    approved("none, and not required", &Case::given(), Bound::Given);
}

#[test]
fn rival_csr_does_not_block_the_attested_key() {
    let rival = csr("csr-2", NODE);
    let with = |other: Csr| keyed().but(|case| case.others = vec![other]);
    let late = Csr {
        created: NOW,
        ..rival.clone()
    };
    let early = Csr {
        created: NOW - 110,
        ..rival.clone()
    };
    for other in [rival.clone(), late, early] {
        let case = with(other.clone());
        approved("the machine's", &case, Bound::Given);
        let rivals = case.but(|case| case.others = vec![std::mem::replace(&mut case.csr, other)]);
        left("the other's", rivals, "csr-key-not-attested");
    }
    let crowd = keyed().but(|case| case.others = (2..100).map(|number| csr(&format!("csr-{number}"), NODE)).collect());
    approved("among a hundred", &crowd, Bound::Given);
    // Somebody else has approved it: there would be two machines of one name.
    let approved_one = Csr {
        stage: CsrStage::Approved,
        ..rival
    };
    left("one that was approved by others", with(approved_one), "csr-name-taken");
}
