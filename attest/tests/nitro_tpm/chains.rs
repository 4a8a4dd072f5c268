//! Rules for the signer: a chain to a configured root.

use super::*;

const CERTIFICATE: &str = "nitro-tpm-certificate-invalid";

/// Each level of the chain, altered: the signature of the document itself is right.
#[test]
fn invalid_chains_are_refused() {
    let check = |change: fn(&mut Case), variant: &str, code: &str| drop(refused(&case(change), variant, code));
    let unknown = "nitro-tpm-not-endorsed";
    let time = "nitro-tpm-certificate-time";
    check(|case| case.roots = Some(Vec::new()), "UnknownIssuer", unknown);
    check(
        |case| {
            case.roots = Some(vec![
                Case::new()
                    .but(|case| case.levels[0].key = Arc::new(p384()))
                    .certificates()
                    .remove(0),
            ])
        },
        "ChainSignature",
        CERTIFICATE,
    );
    check(|case| case.roots = Some(vec![other_root()]), "UnknownIssuer", unknown);
    check(|case| case.cabundle = Some(Vec::new()), "UnknownIssuer", unknown);
    check(|case| case.certificate = Some(vec![1, 2, 3]), "CertificateUnreadable", CERTIFICATE);
    check(|case| case.certificate = Some(Vec::new()), "CertificateUnreadable", CERTIFICATE);
    check(
        |case| case.certificate = Some([leaf_of(case), vec![0]].concat()),
        "CertificateUnreadable",
        CERTIFICATE,
    );
    check(
        |case| case.cabundle = Some(vec![vec![0x30, 0]]),
        "CertificateUnreadable",
        CERTIFICATE,
    );
    // An instance's CA as the signer.
    check(
        |case| {
            case.levels.pop();
        },
        "Path",
        CERTIFICATE,
    );
    check(|case| case.levels[3].params.is_ca = IsCa::ExplicitNoCa, "Path", CERTIFICATE);
    check(|case| case.levels[3].params.is_ca = IsCa::NoCa, "Path", CERTIFICATE);
    check(
        |case| case.levels[3].params.key_usages = vec![KeyUsagePurpose::DigitalSignature],
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[3].params.key_usages = Vec::new(),
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[4].params.key_usages = vec![KeyUsagePurpose::KeyAgreement],
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[4].params.key_usages = Vec::new(),
        "CertificateUsage",
        CERTIFICATE,
    );
    for level in [1, 3, 4] {
        let usage = case(|case| case.levels[level].params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        refused(&usage, "Path", CERTIFICATE);
    }
    // The path length of the region's CA, and of the root.
    check(
        |case| case.levels[1].params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(1)),
        "Path",
        CERTIFICATE,
    );
    check(
        |case| case.levels[0].params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(2)),
        "Path",
        CERTIFICATE,
    );
    // P-384 and nothing else, in each place.
    check(
        |case| {
            case.levels[4].key = Arc::new(p256());
            case.signing_key = Some(p384());
        },
        "LeafKey",
        CERTIFICATE,
    );
    check(|case| case.levels[3].key = Arc::new(p256()), "ChainAlgorithm", CERTIFICATE);
    check(|case| case.levels[1].key = Arc::new(p256()), "ChainAlgorithm", CERTIFICATE);
    // Each validity, from both sides.
    for level in 0..5 {
        let late = case(|case| case.levels[level].params.not_before = date_time_ymd(2027, 1, 15) + Duration::from_secs(8 * 3600 + 1));
        refused(&late, "NotYetValid", time);
        let early = case(|case| case.levels[level].params.not_after = date_time_ymd(2027, 1, 15) + Duration::from_secs(8 * 3600 - 1));
        refused(&early, "Expired", time);
    }
    // Three hours.
    drop(case(|case| case.now = NOW + 2 * 3600).verify().unwrap());
    check(|case| case.now = NOW + 2 * 3600 + 1, "Expired", time);
    check(|case| case.now = NOW - 3601, "NotYetValid", time);
    check(|case| case.now = 0, "NotYetValid", time);
}

fn leaf_of(case: &Case) -> Vec<u8> {
    case.certificates().pop().unwrap().to_vec()
}

fn other_root() -> CertificateDer<'static> {
    case(|case| case.levels[0].params.distinguished_name = named("other"))
        .certificates()
        .remove(0)
}

#[test]
fn invalid_roots_are_refused() {
    let problem = |der: Vec<u8>| NitroRoots::new(&[der.into()]).unwrap_err().problem;
    let root = |change: fn(&mut CertificateParams), key: KeyPair| {
        let mut case = Case::new();
        change(&mut case.levels[0].params);
        case.levels[0].params.self_signed(&key).unwrap().der().to_vec()
    };
    assert!(matches!(problem(vec![1, 2]), RootProblem::Malformed(_)));
    assert!(matches!(
        problem([root(|_| {}, p384()), vec![0]].concat()),
        RootProblem::Malformed(_)
    ));
    assert_eq!(
        problem(root(|params| params.is_ca = IsCa::ExplicitNoCa, p384())),
        RootProblem::NotCa
    );
    assert_eq!(problem(root(|params| params.key_usages.clear(), p384())), RootProblem::NotCa);
    assert_eq!(problem(root(|_| {}, p256())), RootProblem::Key);
    assert!(NitroRoots::new(&[]).unwrap().is_empty());
    // The same twice is one.
    let twice = root(|_| {}, p384());
    assert!(NitroRoots::new(&[twice.clone().into(), twice.into()]).is_ok());
}

#[test]
fn attack_03_chain_below_a_forged_root_is_refused() {
    let own = case(|case| case.levels[0].key = Arc::new(p384()));
    let authentic = Case::new();
    let verified = nitro_tpm::verify(&own.document(), &authentic.nitro_roots(), &authentic.expected(), at(NOW));
    is(&verified.unwrap_err(), "ChainSignature", CERTIFICATE);
}

#[test]
fn attack_19_chain_length_and_duplicates_are_limited() {
    let bundle = |certificates: Vec<Vec<u8>>| case(|case| case.cabundle = Some(certificates));
    let authentic = || -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Case::new().certificates().iter().map(|certificate| certificate.to_vec()).collect();
        all.pop();
        all
    };
    refused(&bundle(vec![vec![0; 1]; 9]), "CabundleLength", MALFORMED);
    refused(&bundle(vec![vec![0; 1025]]), "FieldLength", MALFORMED);
    refused(&case(|case| case.certificate = Some(vec![0; 1025])), "FieldLength", MALFORMED);
    // Lookalikes, which a path builder would try one after the other.
    let lookalike = Case::new().but(|case| case.levels[3].key = Arc::new(p384())).certificates()[3].to_vec();
    refused(&bundle([authentic(), vec![lookalike]].concat()), "CertificateRepeated", CERTIFICATE);
    // Strangers are passed over.
    let strangers = (0..4).map(|stranger| {
        let stranger = format!("stranger {stranger}");
        case(|case| case.levels[0].params.distinguished_name = named(&stranger))
            .certificates()
            .remove(0)
            .to_vec()
    });
    drop(bundle(strangers.chain(authentic()).collect()).verify().unwrap());
}
