//! Types whose values prove a check, and the code that can make them.

use super::*;

/// Types that prove a check, with their files, and the beginnings of their fields: none is `pub`.
const EARNED: [(&str, &str, &str); 13] = [
    ("attest/src/verified.rs", "Verified<T>", "(T"),
    ("attest/src/tpm/vtpm/mod.rs", "VerifiedInstance", " {\n    instance:"),
    ("attest/src/aws/sts/request.rs", "CheckedRequest", " {\n    url:"),
    ("attest/src/azure/vtpm/verifier.rs", "VerifiedAzureVtpm", " {\n    vm_id:"),
    ("attest/src/azure/vtpm/certificate.rs", "AkCertificate", " {\n    name:"),
    ("attest/src/claims.rs", "Claims", " {\n    pub(crate) identity:"),
    (DOCUMENT, "ClaimedDocument", " {\n    pub(super) document:"),
    ("attest/src/appraisal.rs", "AttestationResult", " {\n    claims:"),
    ("gateway/certificates/src/kubelet/verify.rs", "VerifiedKubelet", " {\n    name:"),
    ("gateway/src/credentials/kubelet/member.rs", "PoolMember", " {\n    verified:"),
    ("gateway/src/policy/mod.rs", "Grant", " {\n    pool:"),
    ("gateway/src/pools/mod.rs", "PreparedConfig", " {\n    pool:"),
    ("gateway/attestation-log/src/journal.rs", "Recorded<T>", " {\n    outcome:"),
];
const DOCUMENT: &str = "attest/src/aws/identity_document/document.rs";

#[test]
fn proof_types_have_no_public_constructor() {
    for (file, name, first_field) in EARNED {
        let (code, definition) = (code(&root().join(file)), format!("pub struct {name}"));
        let before_and_fields = code.split_once(&format!("{definition}{first_field}"));
        let (before, fields) = before_and_fields.unwrap_or_else(|| panic!("{file} has no {definition}{first_field}"));
        let fields = fields.split_inclusive(['}', ';']).next().unwrap_or_default();
        assert!(!fields.contains("    pub "), "{file}: {definition}{fields}");
        // What stands between the item before it and this one.
        let own = before.rsplit("\n}\n").next().unwrap_or_default();
        let derives = own.rsplit_once("#[derive(").map_or("", |(_, derives)| derives);
        for constructor in ["Deserialize", "Default"] {
            assert!(!derives.contains(constructor), "{file}: {definition} derives {constructor}");
        }
    }
}

#[test]
fn each_proof_type_is_constructed_once() {
    let makers = [
        ("attest/src", "Ok(Claims {", "attest/src/evidence.rs"),
        ("attest/src", "Ok(AttestationResult {", "attest/src/appraisal.rs"),
        (
            "gateway/certificates/src",
            "Ok(VerifiedKubelet {",
            "gateway/certificates/src/kubelet/verify.rs",
        ),
        ("gateway/src", "Ok(PoolMember {", "gateway/src/credentials/kubelet/member.rs"),
        ("gateway/src", "Some(Grant {", "gateway/src/policy/mod.rs"),
        (
            "gateway/attestation-log/src",
            "Ok(Recorded {",
            "gateway/attestation-log/src/journal.rs",
        ),
    ];
    for (folder, made, maker) in makers {
        let found: Vec<PathBuf> = rust_files(folder).into_iter().filter(|path| code(path).contains(made)).collect();
        assert_eq!(found, [root().join(maker)], "{made}");
        // `Name {` with anything else before it than what is looked for above would be another way.
        let (_, name) = made.split_once('(').unwrap_or_default();
        let elsewhere = format!(" = {name}");
        for path in rust_files(folder) {
            assert!(!code(&path).contains(&elsewhere), "{} makes {name}", path.display());
        }
    }
}

/// Files that mark data as verified, and the one that joins two verified values.
const VERIFIERS: [&str; 6] = [
    "attest/src/aws/identity_document/verifier.rs",
    "attest/src/aws/nitro_tpm/document.rs",
    "attest/src/aws/nitro_tpm/verifier.rs",
    "attest/src/aws/sts/answer.rs",
    "attest/src/azure/attested_document/verifier.rs",
    "attest/src/gcp/openid.rs",
];

#[test]
fn only_verifiers_construct_verified_values() {
    let says_so = |path: &PathBuf| {
        let code = code(path);
        ["Verified::new", "Self::new(joined)", ".into_inner()"]
            .iter()
            .any(|made| code.contains(made))
    };
    let found: BTreeSet<PathBuf> = rust_files("attest/src").into_iter().filter(says_so).collect();
    assert_eq!(found, VERIFIERS.map(|path| root().join(path)).into());
    let proof = code(&root().join("attest/src/verified.rs"));
    for way in ["    pub(crate) const fn new(", "    pub(crate) fn into_inner("] {
        assert!(proof.contains(way), "{way}");
    }
    for way in ["DerefMut", "Deserialize", "    pub fn"] {
        assert!(!proof.contains(way), "{way}");
    }
}

#[test]
fn no_endpoint_reaches_a_config_without_a_grant() {
    let administrators = "for_administrator";
    assert!(code(&root().join("gateway/src/pools/mod.rs")).contains(administrators));
    for folder in ["gateway/src/api", "gateway/src/server", "gateway/src/policy"] {
        for path in rust_files(folder) {
            assert!(!code(&path).contains(administrators), "{} reaches past the grant", path.display());
        }
    }
}

#[test]
fn no_endpoint_has_the_whole_gateway() {
    let takes_its_part = ["use super::gateway::Gateway;", "pub(super) fn new(gateway: &Gateway) -> Self {"];
    let whole = ["gateway/src/api/gateway.rs", "gateway/src/api/mod.rs"].map(|file| root().join(file));
    for path in rust_files("gateway/src/api").into_iter().filter(|path| !whole.contains(path)) {
        for line in code(&path).lines().map(str::trim) {
            let names_it = ["gateway::Gateway", "super::Gateway", "&Gateway", "<Gateway>"]
                .iter()
                .any(|name| line.contains(name));
            let part = takes_its_part.contains(&line);
            assert!(!names_it || part, "{}: {line}", path.display());
        }
    }
}

#[test]
fn only_the_recorder_writes_decisions_to_the_log() {
    // Its budgets count: whoever proves nothing would fill the disk by another way, or be answered without a line.
    for path in rust_files("gateway/src") {
        let whole: String = code(&path).split_whitespace().collect();
        let past_the_recorder = ["journal.count(", "journal.record(", "journal.record_late(", "journal.write("];
        let found = past_the_recorder.iter().any(|call| whole.contains(call));
        assert_eq!(found, path.ends_with("gateway/src/recording/mod.rs"), "{}", path.display());
    }
}
