//! Azure's vTPM of a generated authority: what is accepted, and one refusal for each thing that can be wrong.

mod while_booting;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use crate::log_builder;
use crate::log_builder::LogBuilder;
use attest::azure::vtpm::{
    self, ADVICE, AkRoots, AzureVtpmAttester, AzureVtpmError, AzureVtpmEvidence, AzureVtpmRules, AzureVtpmSubject, ExpectedBinding,
    VerifiedAzureVtpm, VmId, appraise,
};
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Blob, HexDigest};
use attest::tpm::ek_certificate::EkRootProblem;
use attest::tpm::event_log::EventLogError;
use attest::{HashAlg, PcrSelection, SpkiSha256, TpmEvidenceError, UnixTime, tpm};
use cloud_fixtures::azure::vtpm::{AK_CERTIFICATE, EK_CERTIFICATE, Vtpm, VtpmCas, ak_params, common_name, extended, measured, nv_contents};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;

const NOW: u64 = 1_800_000_000;
const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
const OTHER_KEY: SpkiSha256 = SpkiSha256([0x5b; 32]);
const NONCE: [u8; 32] = [0x11; 32];
const VM_ID: &str = "3c18c97a-0d2a-4565-969d-166cdcef26a3";
const OTHER_VM_ID: &str = "bdd43904-dbf8-4337-8b91-3adba92c5ebd";
const NAME: &str = "f859864a6a31.TrustedVM.Azure.windows.net";
const QUOTED: [u8; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 11];

static GLOBAL: LazyLock<VtpmCas> = LazyLock::new(VtpmCas::global);
static REGIONAL: LazyLock<VtpmCas> = LazyLock::new(VtpmCas::regional);
static OTHERS: LazyLock<VtpmCas> = LazyLock::new(VtpmCas::global);

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn vm_id(text: &str) -> VmId {
    VmId::try_from(text.to_owned()).unwrap()
}

fn roots_of(cas: &VtpmCas) -> AkRoots {
    AkRoots::new(vec![cas.root()], cas.intermediates()).unwrap()
}

/// Input of a verification; each part can be changed before [`Case::verify`].
struct Case {
    vtpm: Vtpm,
    certificate: Vec<u8>,
    intermediates: Vec<CertificateDer<'static>>,
    roots: AkRoots,
    vm_id: VmId,
    /// Marshalled `TPMS_ATTEST`, as quoted.
    quoted: Vec<u8>,
    asked: Vec<u8>,
    extra_data: [u8; 32],
    signature: Option<Vec<u8>>,
    event_log: Option<Vec<u8>>,
    server_keys: Vec<SpkiSha256>,
    pool: &'static str,
    now: u64,
}

impl Case {
    /// Evidence that is accepted.
    fn new() -> Self {
        let vtpm = Vtpm::new(VM_ID);
        Self {
            certificate: nv_contents(&GLOBAL.certify(&ak_params(NAME), &vtpm.ak.pair)),
            vtpm,
            intermediates: Vec::new(),
            roots: roots_of(&GLOBAL),
            vm_id: vm_id(VM_ID),
            quoted: QUOTED.to_vec(),
            asked: QUOTED.to_vec(),
            extra_data: qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY),
            signature: None,
            event_log: None,
            server_keys: vec![OTHER_KEY, SERVER_KEY],
            pool: "worker",
            now: NOW,
        }
    }

    /// Returns the case with one change.
    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the case with a certificate of other parameters.
    fn certified(self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = ak_params(NAME);
        change(&mut params);
        self.but(|case| case.certificate = GLOBAL.certify(&params, &case.vtpm.ak.pair))
    }

    fn verify(&self) -> Result<VerifiedAzureVtpm, AzureVtpmError> {
        let quoted = self.vtpm.quoted(&self.extra_data, &self.quoted);
        let signature = self.signature.clone().unwrap_or_else(|| self.vtpm.sign(&quoted));
        let subject = AzureVtpmSubject {
            attester: AzureVtpmAttester {
                ak_public: Blob(self.vtpm.ak_public()),
                ak_certificate: Blob(self.certificate.clone()),
                ak_intermediates: self.intermediates.iter().map(|der| Blob(der.to_vec())).collect(),
                vm_id: self.vm_id.clone(),
            },
            selection: PcrSelection::new(HashAlg::Sha256, self.asked.iter().copied()).unwrap(),
        };
        let of_asked = |pcr: &u8| (*pcr, HexDigest::new(&self.vtpm.pcrs[pcr]).unwrap());
        let evidence = AzureVtpmEvidence {
            quoted: Blob(quoted),
            signature: Blob(signature),
            pcrs: self.asked.iter().map(of_asked).collect::<BTreeMap<u8, HexDigest>>(),
            event_log: self.event_log.clone().map(Blob),
        };
        let expected = ExpectedBinding {
            nonce: &NONCE,
            purpose: PURPOSE_CONFIG,
            pool: self.pool,
            server_keys: &self.server_keys,
        };
        vtpm::verify(&subject, &evidence, &expected, &self.roots, at(self.now))
    }

    /// Verifies and expects a refusal with this code.
    #[track_caller]
    fn refused(&self, code: &str) -> AzureVtpmError {
        let error = self.verify().map(|_| ()).expect_err(code);
        assert_eq!(error.code(), code, "{error}");
        error
    }
}

const CERTIFICATE: &str = "azure-vtpm-certificate";
const NOT_ENDORSED: &str = "azure-vtpm-not-endorsed";
const VM_ID_CODE: &str = "azure-vtpm-vm-id";

#[test]
fn azure_vtpm_evidence_is_accepted() {
    let verified = Case::new().verify().unwrap();
    assert_eq!(verified.identity(), format!("azure-vtpm:{VM_ID}"));
    assert_eq!(verified.vm_id().as_str(), VM_ID);
    assert_eq!(verified.server_key(), &SERVER_KEY);
    assert_eq!(verified.pcrs().keys().copied().collect::<Vec<_>>(), QUOTED);
    let certificate = verified.certificate();
    assert_eq!((certificate.name(), certificate.is_confidential()), ("f859864a6a31", false));

    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!(record["vm_id"], VM_ID);
    assert_eq!(
        record["certificate"]["root_subject"],
        "CN=Test Virtual TPM Root Certificate Authority"
    );
    assert_eq!(record["certificate"]["issuer"], "CN=Test Global Virtual TPM CA - 03");
    assert_eq!(
        (&record["pcr_bank"], &record["pcrs"]["11"]),
        (&"sha256".into(), &"0b".repeat(32).into())
    );
    assert_eq!(
        (&record["reset_count"], &record["subscription_id"]),
        (&2.into(), &serde_json::Value::Null)
    );
}

#[test]
fn equivalent_vtpm_evidence_is_accepted() {
    let accepted = |case: Case| drop(case.verify().unwrap());
    // An NV index that is as long as the certificate.
    accepted(Case::new().certified(|_| {}));
    accepted(Case::new().certified(|params| params.is_ca = IsCa::NoCa));
    accepted(Case::new().certified(|params| params.distinguished_name = common_name("2ede2d532aaf.ConfidentialVM.Azure.windows.net")));
    accepted(Case::new().certified(|params| params.distinguished_name = common_name("2EDE2D532AAF.TrustedVM.Azure.Windows.Net")));
    accepted(Case::new().but(|case| case.vm_id = vm_id(&VM_ID.to_ascii_uppercase())));
    // Of a region, over two intermediates.
    let regional = |case: &mut Case| {
        case.certificate = REGIONAL.certify(&ak_params(NAME), &case.vtpm.ak.pair);
        case.roots = roots_of(&REGIONAL);
    };
    accepted(Case::new().but(regional));
    // With intermediates that the node sends, and the root alone configured.
    let sent = |case: &mut Case| {
        regional(case);
        case.roots = AkRoots::new(vec![REGIONAL.root()], Vec::new()).unwrap();
        case.intermediates = REGIONAL.intermediates();
    };
    accepted(Case::new().but(sent));
}

#[test]
fn ak_certificate_of_an_untrusted_issuer_is_refused() {
    Case::new().but(|case| case.roots = AkRoots::default()).refused(NOT_ENDORSED);
    Case::new().but(|case| case.roots = roots_of(&REGIONAL)).refused(NOT_ENDORSED);
    // The intermediate is missing.
    let root_alone = |case: &mut Case| case.roots = AkRoots::new(vec![GLOBAL.root()], Vec::new()).unwrap();
    let error = Case::new().but(root_alone).refused(NOT_ENDORSED);
    assert!(error.to_string().contains("CN=Test Global Virtual TPM CA - 03"), "{error}");
    // Sent along, but of somebody else of the same name.
    Case::new()
        .but(root_alone)
        .but(|case| case.intermediates = OTHERS.intermediates())
        .refused(NOT_ENDORSED);
    // Issued by somebody else of the same names.
    let forged = |case: &mut Case| case.certificate = OTHERS.certify(&ak_params(NAME), &case.vtpm.ak.pair);
    Case::new().but(forged).refused(CERTIFICATE);
    let with_chain = |case: &mut Case| case.intermediates = [OTHERS.intermediates(), vec![OTHERS.root()]].concat();
    Case::new().but(forged).but(with_chain).refused(CERTIFICATE);
}

#[test]
fn invalid_ak_certificate_is_refused() {
    let certified = |change: fn(&mut CertificateParams)| Case::new().certified(change).refused(CERTIFICATE);
    certified(|params| params.not_after = date_time_ymd(2026, 12, 31));
    certified(|params| params.not_before = date_time_ymd(2030, 1, 1));
    // Not an AK's.
    let usage = |oid: &[u64]| vec![ExtendedKeyUsagePurpose::Other(oid.to_vec())];
    certified(|params| params.extended_key_usages.clear());
    Case::new()
        .certified(|params| params.extended_key_usages = usage(&EK_CERTIFICATE))
        .refused(CERTIFICATE);
    certified(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any]);
    certified(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    certified(|params| params.key_usages.clear());
    certified(|params| params.key_usages = vec![KeyUsagePurpose::KeyEncipherment]);
    certified(|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    // Bytes.
    let bytes = |change: fn(&mut Vec<u8>)| Case::new().but(|case| change(&mut case.certificate)).refused(CERTIFICATE);
    bytes(Vec::clear);
    bytes(|bytes| bytes.truncate(300));
    bytes(|bytes| *bytes.last_mut().unwrap() = 1);
    bytes(|bytes| bytes[0] = 0x31);
    bytes(|bytes| bytes[400] ^= 1);
    bytes(|bytes| bytes.resize(9000, 0));
}

#[test]
fn ak_certificate_must_name_an_azure_vtpm() {
    for name in [
        "",
        "f859864a6a31",
        "TrustedVM.Azure.windows.net",
        ".TrustedVM.Azure.windows.net",
        "f859864a6a31.Azure.windows.net",
        "f859864a6a31.OtherVM.Azure.windows.net",
        "f859864a6a31.TrustedVM.Azure.windows.net.evil.example",
        "f859864a6a31.TrustedVM.evilAzure.windows.net",
        "a.b.TrustedVM.Azure.windows.net",
        "f8 59.TrustedVM.Azure.windows.net",
        "f859/864a.TrustedVM.Azure.windows.net",
    ] {
        Case::new()
            .certified(|params| params.distinguished_name = common_name(name))
            .refused(CERTIFICATE);
    }
    let long = format!("{}.TrustedVM.Azure.windows.net", "f".repeat(64));
    Case::new()
        .certified(|params| params.distinguished_name = common_name(&long))
        .refused(CERTIFICATE);
    // No common name.
    Case::new()
        .certified(|params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, NAME);
        })
        .refused(CERTIFICATE);
}

#[test]
fn ca_certificate_constraints_are_enforced() {
    let with = |change: fn(&mut CertificateParams)| {
        let mut cas = VtpmCas::global();
        change(&mut cas.cas[1].0);
        cas
    };
    let sent = |cas: &VtpmCas| {
        Case::new().but(|case| {
            case.certificate = cas.certify(&ak_params(NAME), &case.vtpm.ak.pair);
            case.roots = AkRoots::new(vec![cas.root()], Vec::new()).unwrap();
            case.intermediates = cas.intermediates();
        })
    };
    drop(sent(&with(|_| {})).verify().unwrap());
    sent(&with(|params| params.not_after = date_time_ymd(2026, 12, 31))).refused(CERTIFICATE);
    sent(&with(|params| params.is_ca = IsCa::ExplicitNoCa)).refused(CERTIFICATE);
    sent(&with(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature])).refused(CERTIFICATE);
    sent(&with(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(EK_CERTIFICATE.to_vec())];
    }))
    .refused(CERTIFICATE);
    let only_aks =
        |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(AK_CERTIFICATE.to_vec())];
    drop(sent(&with(only_aks)).verify().unwrap());
    // Nobody has chosen it for AKs, neither who configured the root nor the CA itself.
    sent(&with(|params| params.extended_key_usages.clear())).refused(CERTIFICATE);
    // An AK certifies nothing.
    let vtpm = Vtpm::new(VM_ID);
    let ak = CertificateDer::from(GLOBAL.certify(&ak_params(NAME), &vtpm.ak.pair));
    let by_ak = VtpmCas {
        cas: vec![(ak_params(NAME), KeyPair::try_from(vtpm.ak.pair.serialize_der()).unwrap())],
    };
    let issued = |case: &mut Case| {
        case.certificate = by_ak.certify(&ak_params("ffffffffffff.TrustedVM.Azure.windows.net"), &case.vtpm.ak.pair);
        case.intermediates = vec![ak];
    };
    Case::new().but(issued).refused(CERTIFICATE);
    let too_many = |case: &mut Case| case.intermediates = vec![GLOBAL.root(); 9];
    Case::new().but(too_many).refused(CERTIFICATE);
}

#[test]
fn configured_ca_with_extended_key_usage_issues_aks() {
    let configured = |usages: &[&[u64]]| {
        let mut cas = VtpmCas::global();
        let other = |oid: &&[u64]| ExtendedKeyUsagePurpose::Other(oid.to_vec());
        cas.cas[1].0.extended_key_usages = usages.iter().map(other).collect();
        let roots = AkRoots::new(vec![cas.root()], cas.intermediates());
        let case = |roots| {
            Case::new().but(|case| {
                case.certificate = cas.certify(&ak_params(NAME), &case.vtpm.ak.pair);
                case.roots = roots;
            })
        };
        roots.map(|roots| drop(case(roots).verify().unwrap()))
    };
    configured(&[&AK_CERTIFICATE]).unwrap();
    configured(&[&EK_CERTIFICATE, &AK_CERTIFICATE]).unwrap();
    // The administrator's choice says it for a CA that does not.
    configured(&[]).unwrap();
    let required = EkRootProblem::ExtendedKeyUsage { required: "2.23.133.8.3" };
    assert_eq!(configured(&[&EK_CERTIFICATE]).unwrap_err().problem, required);
    // A root, too.
    let mut cas = VtpmCas::global();
    cas.cas[0].0.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(EK_CERTIFICATE.to_vec())];
    assert_eq!(AkRoots::new(vec![cas.root()], Vec::new()).unwrap_err().problem, required);
}

#[test]
fn attack_03_ak_certificate_for_another_key_is_refused() {
    let other = Vtpm::new(VM_ID);
    Case::new()
        .but(|case| case.certificate = GLOBAL.certify(&ak_params(NAME), &other.ak.pair))
        .refused("azure-vtpm-other-key");
    // The same modulus is the same key, of whatever kind the certificate's is otherwise.
    let curve = KeyPair::generate().unwrap();
    Case::new()
        .but(|case| case.certificate = GLOBAL.certify(&ak_params(NAME), &curve))
        .refused("azure-vtpm-other-key");
}

#[test]
fn ak_with_unsafe_attributes_or_hierarchy_is_refused() {
    for (bit, what) in [
        (1, "fixedTPM"),
        (4, "fixedParent"),
        (5, "sensitiveDataOrigin"),
        (16, "restricted"),
        (18, "sign"),
    ] {
        let error = Case::new().but(|case| case.vtpm.attributes &= !(1 << bit)).refused("ak-attributes");
        assert!(error.to_string().contains(what), "{error}");
    }
    Case::new().but(|case| case.vtpm.attributes |= 1 << 17).refused("ak-attributes");
    // The owner's, platform's and null hierarchy: their counters are obfuscated.
    for hierarchy in [0x4000_0001, 0x4000_000c, 0x4000_0007] {
        Case::new().but(|case| case.vtpm.hierarchy = hierarchy).refused("ak-hierarchy");
    }
}

#[test]
fn quote_must_match_challenge_purpose_pool_and_server() {
    let bound = |nonce: &[u8], purpose: &str, pool: &str, key: &SpkiSha256| {
        let extra_data = qualifying_data(nonce, purpose, pool, key);
        Case::new().but(|case| case.extra_data = extra_data)
    };
    drop(bound(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY).verify().unwrap());
    bound(&[0x12; 32], PURPOSE_CONFIG, "worker", &SERVER_KEY).refused("quote-extra-data");
    bound(&NONCE, "report", "worker", &SERVER_KEY).refused("quote-extra-data");
    bound(&NONCE, PURPOSE_CONFIG, "master", &SERVER_KEY).refused("quote-extra-data");
    bound(&NONCE, PURPOSE_CONFIG, "worker", &SpkiSha256([0; 32])).refused("quote-extra-data");
    Case::new().but(|case| case.server_keys.clear()).refused("quote-extra-data");
    Case::new().but(|case| case.pool = "master").refused("quote-extra-data");
    // Other PCRs than were asked for.
    Case::new().but(|case| case.quoted.truncate(8)).refused("quote-selection");
    Case::new().but(|case| case.quoted.push(12)).refused("quote-selection");
    // Signed by another key, or over something else.
    let other = Vtpm::new(VM_ID);
    let quoted = Case::new().vtpm.quoted(&[0; 32], &QUOTED);
    Case::new()
        .but(|case| case.signature = Some(other.sign(&quoted)))
        .refused("quote-signature");
    Case::new()
        .but(|case| case.signature = Some(case.vtpm.sign(&quoted)))
        .refused("quote-signature");
    Case::new().but(|case| case.signature = Some(Vec::new())).refused("tpm-malformed");
}

#[test]
fn attack_13_pcr_6_must_prove_the_vm_id() {
    Case::new().but(|case| case.vm_id = vm_id(OTHER_VM_ID)).refused(VM_ID_CODE);
    let pcr_6 = |measured: &[Vec<u8>]| {
        let value = extended(measured);
        Case::new().but(|case| _ = case.vtpm.pcrs.insert(6, value))
    };
    let [uuid, architecture, separator] = <[Vec<u8>; 3]>::try_from(measured(VM_ID)).unwrap();
    let [other, ..] = <[Vec<u8>; 3]>::try_from(measured(OTHER_VM_ID)).unwrap();
    let accepted = |measured: &[&Vec<u8>]| drop(pcr_6(&measured.iter().copied().cloned().collect::<Vec<_>>()).verify().unwrap());
    let arm = br#"{"MachineArchitecture": "AARCH64"}"#.to_vec();
    let of_systemd = b"os-separator".to_vec();
    accepted(&[&uuid, &separator]);
    accepted(&[&uuid, &architecture, &separator]);
    accepted(&[&uuid, &arm, &separator]);
    accepted(&[&uuid, &separator, &of_systemd]);
    accepted(&[&uuid, &architecture, &separator, &of_systemd]);
    let refused = |measured: &[&Vec<u8>]| drop(pcr_6(&measured.iter().copied().cloned().collect::<Vec<_>>()).refused(VM_ID_CODE));
    refused(&[]);
    refused(&[&separator]);
    refused(&[&uuid]);
    refused(&[&uuid, &architecture]);
    refused(&[&separator, &uuid]);
    refused(&[&architecture, &uuid, &separator]);
    // Whoever is first is who it is: what a guest extends comes later.
    refused(&[&other, &architecture, &separator, &uuid]);
    refused(&[&other, &uuid, &separator]);
    refused(&[&uuid, &other, &separator]);
    refused(&[&uuid, &separator, &separator]);
    // PCR 6 was not asked for.
    let unasked = |case: &mut Case| {
        case.asked.retain(|pcr| *pcr != 6);
        case.quoted.retain(|pcr| *pcr != 6);
    };
    Case::new().but(unasked).refused(VM_ID_CODE);
}

/// Firmware with unknown measurements: the event log shows that the vmId was first.
#[test]
fn event_log_proves_the_vm_id_was_first() {
    let newer = |first: &str, later: &[u8]| {
        let mut log = LogBuilder::new(&[log_builder::SHA256]);
        for pcr in 0..8 {
            if pcr == 6 {
                log = log.event(6, 12, format!("UUID: {}", first.to_ascii_uppercase()).as_bytes());
                log = log.event(6, 12, later);
            }
            log = log.event(pcr, log_builder::EV_SEPARATOR, &[0; 4]);
        }
        log
    };
    let with_log = |log: &LogBuilder| {
        let bytes = log.build();
        let parsed = attest::tpm::event_log::EventLog::parse(&bytes).unwrap();
        let replayed = parsed.replay(HashAlg::Sha256, QUOTED).unwrap();
        let values = QUOTED.map(|pcr| (pcr, replayed.value(pcr).unwrap().to_vec()));
        Case::new().but(|case| {
            case.vtpm.pcrs = BTreeMap::from(values);
            case.event_log = Some(bytes.clone());
        })
    };
    let log = newer(VM_ID, b"what is to come");
    let verified = with_log(&log).verify().unwrap();
    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!(record["event_log"]["events"], 10);
    with_log(&log).but(|case| case.event_log = None).refused(VM_ID_CODE);
    with_log(&newer(OTHER_VM_ID, b"what is to come")).refused(VM_ID_CODE);
    let vm_id_later = format!("UUID: {}", VM_ID.to_ascii_uppercase());
    with_log(&newer(OTHER_VM_ID, vm_id_later.as_bytes())).refused(VM_ID_CODE);
    // A log that does not lead to what is quoted shows nothing.
    with_log(&newer(OTHER_VM_ID, b"x"))
        .but(|case| case.event_log = Some(log.build()))
        .refused(VM_ID_CODE);
    with_log(&log)
        .but(|case| case.event_log.as_mut().unwrap().truncate(60))
        .refused(VM_ID_CODE);
}

fn rules(text: &str) -> Result<AzureVtpmRules, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn azure_vtpm_rules_of_a_pool_are_enforced() {
    let check = |text: &str, expect: Result<(), &str>| {
        let rules = rules(&format!(
            "{text}\n[pcrs]\n\"0-3\" = \"not checked\"\n4 = [\"{}\"]\n\"5-7\" = \"not checked\"\n11 = \"not checked\"",
            "04".repeat(32)
        ));
        let verified = Case::new().verify().unwrap();
        assert_eq!(
            appraise(&verified, &rules.unwrap(), UnixTime::since_unix_epoch(std::time::Duration::ZERO)).map_err(|error| error.code()),
            expect,
            "{text}"
        );
    };
    check("", Ok(()));
    check(&format!("vm_ids = [\"{OTHER_VM_ID}\", \"{}\"]", VM_ID.to_ascii_uppercase()), Ok(()));
    check(&format!("vm_ids = [\"{OTHER_VM_ID}\"]"), Err("azure-vm-not-accepted"));
    check("vm_ids = []", Err("azure-vm-not-accepted"));
    check("event_log = \"required\"", Err("event-log-missing"));
}

#[test]
fn pcr_rules_of_a_pool_are_enforced() {
    let not_checked = "[pcrs]\n\"0-7\" = \"not checked\"";
    let appraised = |text: &str| {
        appraise(
            &Case::new().verify().unwrap(),
            &rules(text).unwrap(),
            UnixTime::since_unix_epoch(std::time::Duration::ZERO),
        )
        .map_err(|error| error.code())
    };
    assert_eq!(appraised(&format!("{not_checked}\n11 = \"not checked\"")), Ok(()));
    assert_eq!(appraised(&format!("{not_checked}\n11 = [\"{}\"]", "0b".repeat(32))), Ok(()));
    assert_eq!(
        appraised(&format!("{not_checked}\n11 = [\"{}\"]", "0c".repeat(32))),
        Err("pcr-mismatch")
    );
    assert_eq!(appraised(not_checked), Err("quote-selection"));
    assert_eq!(
        appraised(&format!("bank = \"sha256\"\n{not_checked}\n11 = \"not checked\"")),
        Ok(())
    );
}

/// The PCR that attest-node extends at the end of a boot.
#[test]
fn invalid_azure_vtpm_rules_are_rejected() {
    let refused = |text: &str, part: &str| {
        let error = rules(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    };
    let pcrs = "[pcrs]\n\"0-7\" = \"not checked\"";
    refused("", "missing field `pcrs`");
    refused("[pcrs]\n\"0-5\" = \"not checked\"\n7 = \"not checked\"", "PCR 6 is not named");
    // What PCR 6 begins with was seen in one bank only.
    for bank in ["sha384", "sha512"] {
        refused(
            &format!("bank = \"{bank}\"\n{pcrs}"),
            &format!("{bank} cannot be used with Azure vTPMs"),
        );
    }
    rules(&format!("bank = \"sha256\"\n{pcrs}")).unwrap();
    refused(&format!("vm_ids = [\"worker-7\"]\n{pcrs}"), "expected a vmId");
    refused(&format!("machines = []\n{pcrs}"), "unknown field");
    let stands_alone = |text: &str| rules(&format!("{text}\n{pcrs}")).unwrap().stands_alone();
    assert!(!stands_alone(""));
    assert!(stands_alone("accept_any_subscription = true"));
    assert!(stands_alone(&format!("vm_ids = [\"{VM_ID}\"]")));
    // As records have them.
    let read = rules(&format!("vm_ids = [\"{VM_ID}\"]\nevent_log = \"required\"\n{pcrs}")).unwrap();
    let again: AzureVtpmRules = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
    assert_eq!(read, again);
}

#[test]
fn advice_never_names_another_tpm_or_section() {
    let (found, bytes) = (String::new, EventLogError::TooLarge { bytes: 0 });
    let of_every_tpm = [
        TpmEvidenceError::AkAttributes {
            field: "sign",
            found: found(),
            required: "set",
        },
        TpmEvidenceError::AkAlgorithm { found: found() },
        TpmEvidenceError::AkHierarchy {
            found: found(),
            qualified_signer: found(),
        },
        TpmEvidenceError::Selection {
            signed: found(),
            asked: found(),
        },
        TpmEvidenceError::EventLogMissing,
        TpmEvidenceError::EventLog(bytes.clone()),
        TpmEvidenceError::EventLogMismatch(bytes),
    ];
    let own = of_every_tpm.map(|error| {
        let (advice, of_a_vtpm) = (error.advice(), AzureVtpmError::from(error).advice());
        assert_eq!((advice.code, advice.title), (of_a_vtpm.code, of_a_vtpm.title));
        of_a_vtpm
    });
    let as_every_tpm = tpm::ADVICE.iter().filter(|advice| own.iter().all(|own| own.code != advice.code));
    for advice in own.iter().chain(as_every_tpm).chain(ADVICE) {
        for others in ["[tpm]", "--ak"] {
            assert!(!advice.next_step.contains(others), "{}: {}", advice.code, advice.next_step);
        }
    }
}
