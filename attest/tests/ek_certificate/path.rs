//! Intermediates: which of them lead to a root, and which cost too much.

use super::*;

#[test]
fn intermediates_lead_to_the_root() {
    for length in 0..=4 {
        for verified in both_ways(&chain(length, |_, _| {})) {
            assert_eq!(verified.unwrap().root_subject(), "CN=Test TPM Root");
        }
    }
    // In any order, and twice.
    let (mut certificates, leaf) = chain(3, |_, _| {});
    certificates.reverse();
    certificates.extend(certificates.clone());
    assert!(ek_certificate::verify(&leaf, &[], &EkRoots::new(vec![root()], certificates).unwrap(), NOW).is_ok());
}

#[test]
fn attack_19_overlong_chain_is_refused() {
    let (certificates, leaf) = chain(INTERMEDIATES_LIMIT, |_, _| {});
    let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
    assert_eq!(
        ek_certificate::verify(&leaf, &sent, &roots(), NOW),
        Err(EkCertificateError::ChainTooLong)
    );
}

/// Eight CAs of one name and the root's, so that every one might have issued every other: refused within bounds.
#[test]
fn attack_19_intermediates_named_as_the_root_are_bounded() {
    let maze: Vec<CertificateDer<'static>> = (0..INTERMEDIATES_LIMIT)
        .map(|_| {
            let (key, signer) = (p256(), p256());
            let issuer = ca_params("Test TPM Root");
            ca_params("Test TPM Root")
                .signed_by(&key, &Issuer::from_params(&issuer, &signer))
                .unwrap()
                .into()
        })
        .collect();
    let sent: Vec<&[u8]> = maze.iter().map(AsRef::as_ref).collect();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Test TPM Root"), &p256()))
        .unwrap();
    // A root of this name decides, and nothing that is sent beside it.
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::Signature);
}

/// Eight CAs of one name, none of them the root's, each of which might have issued every other: no signature is verified for them.
#[test]
fn attack_36_ambiguous_intermediates_are_bounded() {
    let maze: Vec<CertificateDer<'static>> = (0..INTERMEDIATES_LIMIT)
        .map(|_| ca_params("Maze").self_signed(&p256()).unwrap().into())
        .collect();
    let mut sent: Vec<&[u8]> = maze.iter().map(AsRef::as_ref).collect();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Maze"), &p256()))
        .unwrap();
    // They lead to nobody who is trusted.
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert!(error.is_unknown_issuer(), "{error}");
    // Two of them might, and nothing says which one has issued the certificate.
    let of_the_root: Vec<CertificateDer<'static>> = (0..2).map(|_| issued(&ca_params("Maze"), &p256())).collect();
    sent.splice(..2, of_the_root.iter().map(AsRef::as_ref));
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::ChainTooLong);
    // Where no root is configured, nothing could come of it.
    let error = ek_certificate::verify(leaf.der(), &sent, &EkRoots::default(), NOW).unwrap_err();
    assert_eq!(
        error,
        EkCertificateError::NoRoots {
            issuer: "CN=Maze".to_owned()
        }
    );
    assert!(error.is_unknown_issuer());
}

/// A certificate that does not belong to a CA has issued another, and is sent in a CA's place.
#[test]
fn attack_36_non_ca_intermediate_is_refused() {
    let lacking = |alter: fn(&mut CertificateParams)| {
        let (certificates, leaf) = chain(2, |position, params| {
            if position == 1 {
                alter(params);
            }
        });
        let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
        match ek_certificate::verify(&leaf, &sent, &roots(), NOW) {
            Ok(_) => "nothing",
            Err(EkCertificateError::SentIssuerNotCa { subject, lacks }) => {
                assert_eq!(subject, "CN=Intermediate 1");
                lacks
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(lacking(|_| ()), "nothing");
    assert_eq!(
        lacking(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        "the key usage keyCertSign"
    );
    assert_eq!(lacking(|params| params.key_usages.clear()), "the key usage keyCertSign");
    assert_eq!(lacking(|params| params.is_ca = IsCa::NoCa), "basicConstraints with CA:TRUE");
    assert_eq!(lacking(|params| params.is_ca = IsCa::ExplicitNoCa), "basicConstraints with CA:TRUE");
    // What leads nowhere is not looked at: some TPMs have more in their NV memory than their chain.
    let (certificates, leaf) = chain(1, |_, _| {});
    let stray = ek_with(|params| params.distinguished_name = named("A stray"));
    assert!(ek_certificate::verify(&leaf, &[&stray, &certificates[0], &[0x30, 0x00]], &roots(), NOW).is_ok());
}

/// A CA that was given new keys under its old name: the key identifier says which one it was.
#[test]
fn key_identifiers_distinguish_cas_of_one_name() {
    let mut params = ca_params("Intermediate");
    params.use_authority_key_identifier_extension = true;
    let root = ca_params("Test TPM Root");
    let signer = Issuer::from_params(&root, &*CA_KEY);
    let (old, new) = (p256(), p256());
    let certificates: Vec<CertificateDer<'static>> = [&old, &new].map(|key| params.signed_by(key, &signer).unwrap().into()).into();
    let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
    for key in [&old, &new] {
        let mut leaf = ek_params();
        leaf.use_authority_key_identifier_extension = true;
        let leaf = leaf.signed_by(&*EK, &Issuer::from_params(&params, key)).unwrap();
        assert!(ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).is_ok());
        leaf_without_identifier(&params, key, &sent);
    }
    // The same CA twice, once expired: the valid one is taken, in whatever order they come.
    let mut expired = params.clone();
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired: CertificateDer<'static> = expired.signed_by(&old, &signer).unwrap().into();
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(&params, &old)).unwrap();
    for sent in [[&*expired, sent[0]], [sent[0], &*expired]] {
        assert!(ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).is_ok());
    }
}

fn leaf_without_identifier(issuer: &CertificateParams, key: &KeyPair, sent: &[&[u8]]) {
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(issuer, key)).unwrap();
    let error = ek_certificate::verify(leaf.der(), sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::ChainTooLong);
}

fn signed(params: &CertificateParams, key: &KeyPair, issuer: &str, issuer_key: &KeyPair) -> CertificateDer<'static> {
    params
        .signed_by(key, &Issuer::from_params(&ca_params(issuer), issuer_key))
        .unwrap()
        .into()
}

/// Checks the result for several orders of the sent certificates.
#[track_caller]
fn check_sent(leaf: &CertificateDer<'_>, sent: &[&CertificateDer<'_>], roots: &EkRoots, expect: bool) {
    let mut sent: Vec<&[u8]> = sent.iter().map(|der| der.as_ref()).collect();
    let (count, next) = (sent.len(), sent.len().min(1));
    for _ in 0..count.max(1) {
        let verified = ek_certificate::verify(leaf, &sent, roots, NOW);
        assert_eq!(verified.is_ok(), expect, "{verified:?}");
        let mut reversed = sent.clone();
        reversed.reverse();
        let verified = ek_certificate::verify(leaf, &reversed, roots, NOW);
        assert_eq!(verified.is_ok(), expect, "{verified:?}");
        sent.rotate_left(next);
    }
}

/// A CA that several others have certified: the way that leads to a configured root is found, whichever that is.
#[test]
fn cross_signed_ca_chains_to_the_configured_root() {
    let [key, strangers, middle] = [p256(), p256(), p256()];
    let cross = |issuer: &str, issuer_key: &KeyPair| signed(&ca_params("Cross"), &key, issuer, issuer_key);
    let leaf = signed(&ek_params(), &EK, "Cross", &key);
    let ours = cross("Test TPM Root", &CA_KEY);
    let theirs = cross("Their Root", &strangers);
    let their_root = CertificateDer::from(ca_params("Their Root").self_signed(&strangers).unwrap());
    check_sent(&leaf, &[&ours, &theirs], &roots(), true);
    check_sent(&leaf, &[&theirs, &their_root, &ours], &roots(), true);
    check_sent(&leaf, &[&theirs, &their_root], &roots(), false);
    // By way of one CA more, beside a way of the same length that leads to nobody.
    let by_middle = cross("Middle", &middle);
    let middle = issued(&ca_params("Middle"), &middle);
    check_sent(&leaf, &[&theirs, &their_root, &by_middle, &middle], &roots(), true);
    // Both roots are configured, but one way ends at a key that is not theirs any more, or has expired.
    let another = p256();
    let both = EkRoots::new(vec![root(), ca_params("Their Root").self_signed(&another).unwrap().into()], vec![]).unwrap();
    check_sent(&leaf, &[&theirs, &ours], &both, true);
    let mut expired = ca_params("Their Root");
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired = EkRoots::new(vec![expired.self_signed(&strangers).unwrap().into(), root()], vec![]).unwrap();
    check_sent(&leaf, &[&theirs, &ours], &expired, true);
}

/// A root with a new key under its old name: certificates by either key are good, if the old key, or another root, has certified the new
/// one.
#[test]
fn root_rollover_under_one_name_is_accepted() {
    let (new, name) = (p256(), "Test TPM Root");
    let own = CertificateDer::from(ca_params(name).self_signed(&new).unwrap());
    let by_old = signed(&ca_params(name), &new, name, &CA_KEY);
    let by_another = signed(&ca_params(name), &new, "Another Root", &EK);
    let (of_old, of_new) = (ek_with(|_| {}), signed(&ek_params(), &EK, name, &new));
    let middle = p256();
    let below = signed(&ca_params("Below"), &middle, name, &new);
    let further = signed(&ek_params(), &EK, "Below", &middle);
    // Configured is the old one.
    for sent in [vec![&by_old], vec![&by_old, &own]] {
        check_sent(&of_old, &sent, &roots(), true);
        check_sent(&of_new, &sent, &roots(), true);
        check_sent(&further, &[sent.as_slice(), &[&below]].concat(), &roots(), true);
    }
    // That it signs itself is no reason to believe it, nor that somebody does who is not known.
    check_sent(&of_new, &[&own], &roots(), false);
    check_sent(&of_new, &[&by_another], &roots(), false);
    check_sent(&of_old, &[&own, &by_another], &roots(), true);
    let another = EkRoots::new(vec![ca_params("Another Root").self_signed(&*EK).unwrap().into(), root()], vec![]).unwrap();
    check_sent(&of_new, &[&by_another], &another, true);
    // Both are configured, or the new one alone, with the old one certified by it.
    let both = EkRoots::new(vec![root(), own.clone()], vec![]).unwrap();
    check_sent(&of_old, &[], &both, true);
    check_sent(&of_new, &[], &both, true);
    check_sent(&further, &[&below], &both, true);
    let alone = EkRoots::new(vec![own.clone()], vec![]).unwrap();
    check_sent(&of_new, &[&root()], &alone, true);
    check_sent(&of_old, &[&root()], &alone, false);
    check_sent(&of_old, &[&signed(&ca_params(name), &CA_KEY, name, &new)], &alone, true);
    // Configured as intermediates, below either.
    let below_both = EkRoots::new(vec![root(), own], vec![below]).unwrap();
    check_sent(&further, &[], &below_both, true);
}

/// Further defects of a certificate do not make its TPM a trusted maker's.
#[test]
fn certificates_of_an_unknown_maker_are_not_endorsed() {
    let theirs = p256();
    let of = |alter: &dyn Fn(&mut CertificateParams)| {
        let mut params = ek_params();
        alter(&mut params);
        signed(&params, &EK, "Their Root", &theirs)
    };
    let unknown = |leaf: &CertificateDer<'_>, sent: &[&[u8]]| {
        let error = ek_certificate::verify(leaf, sent, &roots(), NOW).unwrap_err();
        assert!(error.is_unknown_issuer(), "{error}");
    };
    unknown(&of(&|params| params.not_after = date_time_ymd(2025, 1, 1)), &[]);
    unknown(&of(&|params| params.extended_key_usages.clear()), &[]);
    let mut critical = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 1], vec![5, 0]);
    critical.set_criticality(true);
    unknown(&of(&|params| params.custom_extensions.push(critical.clone())), &[]);
    let mut no_ca = ca_params("Their Root");
    no_ca.is_ca = IsCa::ExplicitNoCa;
    let no_ca = no_ca.self_signed(&theirs).unwrap();
    unknown(&of(&|_| {}), &[no_ca.der()]);
    let several: Vec<CertificateDer<'static>> = (0..3)
        .map(|_| ca_params("Their Root").self_signed(&p256()).unwrap().into())
        .collect();
    unknown(&of(&|_| {}), &several.iter().map(AsRef::as_ref).collect::<Vec<_>>());
}
