//! Known chains of EK certificates: a cached result is only used if verifying the chain again would confirm it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use attest::tpm::ek_certificate::{KnownChain, KnownChains};
use attest::tpm::wire::{Curve, KeyParameters, Public};
use attest::{Claims, EkRoots, Endorsements, Reject, Submission};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, date_time_ymd,
};

use crate::support::{Case, NOW, SoftKey, at, ek_area};

const DAY: u64 = 86_400;
/// The day of `NOW`, 2027-01-15, and the second in which it ends.
const TODAY: (i32, u8, u8) = (2027, 1, 15);

/// Cache that returns the entry for a digest or, if it lies, always the last entry.
#[derive(Debug, Default)]
struct Kept {
    chains: Mutex<HashMap<[u8; 32], Arc<KnownChain>>>,
    last: Mutex<Option<Arc<KnownChain>>>,
    kept: AtomicUsize,
    lies: bool,
}

impl Kept {
    fn lying() -> Arc<Self> {
        Arc::new(Self {
            lies: true,
            ..Self::default()
        })
    }

    fn count(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

impl KnownChains for Kept {
    fn get(&self, of: &[u8; 32]) -> Option<Arc<KnownChain>> {
        match self.lies {
            true => self.last.lock().unwrap().clone(),
            false => self.chains.lock().unwrap().get(of).cloned(),
        }
    }

    fn keep(&self, of: [u8; 32], chain: KnownChain) {
        let chain = Arc::new(chain);
        self.kept.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap() = Some(Arc::clone(&chain));
        self.chains.lock().unwrap().insert(of, chain);
    }
}

/// A CA, by its name, and its last day.
struct Authority(CertificateParams, KeyPair);

impl Authority {
    fn new(name: &str, (year, month, day): (i32, u8, u8)) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_after = date_time_ymd(year, month, day);
        Self(params, KeyPair::generate().unwrap())
    }

    fn root(&self) -> Vec<u8> {
        self.0.self_signed(&self.1).unwrap().der().to_vec()
    }

    fn certify(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Vec<u8> {
        params
            .signed_by(key, &Issuer::from_params(&self.0, &self.1))
            .unwrap()
            .der()
            .to_vec()
    }

    /// A machine whose EK it has certified until that day.
    fn machine(&self, (year, month, day): (i32, u8, u8)) -> Case {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])];
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().unwrap();
        let (x, y) = key.public_key_raw()[1..].split_at(32);
        let (curve, x, y) = (Curve::P256, x.to_vec(), y.to_vec());
        let area = Public {
            key: KeyParameters::Ecc { curve, x, y },
            ..ek_area(&SoftKey::p256())
        };
        let certificate = self.certify(&params, &key);
        Case::new(SoftKey::p256()).but(|case| {
            case.ek_area = area;
            case.ek_certificate = Some(certificate);
        })
    }

    fn roots(&self) -> Arc<EkRoots> {
        Arc::new(EkRoots::new(vec![self.root().into()], Vec::new()).unwrap())
    }
}

const LATER: (i32, u8, u8) = (2050, 1, 1);

/// Verifies the machine's evidence at that time, with these certificates sent in addition to its own.
fn verify(case: &Case, sent: &[Vec<u8>], roots: &Arc<EkRoots>, known: Option<&Arc<Kept>>, seconds: u64) -> Result<Claims, Reject> {
    let mut challenge = case.challenge();
    challenge.expires = u64::MAX;
    let attester = &mut challenge.subject.tpm.as_mut().unwrap().attester;
    attester.ek_intermediates = sent.iter().cloned().map(attest::protocol::Blob).collect();
    let mut endorsements = Endorsements::new(Arc::clone(roots));
    if let Some(known) = known {
        endorsements = endorsements.knowing(Arc::clone(known) as Arc<dyn KnownChains>);
    }
    let evidence = case.evidence();
    attest::verify(
        &Submission::new(&challenge, &evidence, &case.server_keys),
        &endorsements,
        at(seconds),
    )
}

#[test]
fn cached_chain_verifies_once_with_equal_result() {
    let (maker, kept) = (Authority::new("Maker", LATER), Arc::<Kept>::default());
    let (machine, roots) = (maker.machine(LATER), maker.roots());
    let unknown = verify(&machine, &[], &roots, None, NOW).unwrap();
    for seconds in [NOW, NOW, NOW + DAY] {
        let known = verify(&machine, &[], &roots, Some(&kept), seconds).unwrap();
        assert_eq!(
            known.tpm().unwrap().endorsed_by,
            unknown.tpm().unwrap().endorsed_by,
            "who vouches for it is the same"
        );
        assert_eq!(kept.count(), 1);
    }
    // Before it was verified nobody has looked.
    verify(&machine, &[], &roots, Some(&kept), NOW - 1).unwrap();
    assert_eq!(kept.count(), 2);
    // Beside other certificates it is another chain.
    verify(&machine, &[maker.root()], &roots, Some(&kept), NOW).unwrap();
    assert_eq!(kept.count(), 3);
}

#[test]
fn attack_03_cached_chain_endorses_no_other_chain() {
    let (maker, kept) = (Authority::new("Maker", LATER), Kept::lying());
    let (machine, roots) = (maker.machine(LATER), maker.roots());
    verify(&machine, &[], &roots, Some(&kept), NOW).unwrap();
    let refused = |case: &Case, roots: &Arc<EkRoots>, code: &str| {
        assert_eq!(verify(case, &[], roots, Some(&kept), NOW).unwrap_err().code(), code);
        assert_eq!(kept.count(), 1, "what does not hold is not kept");
    };
    // Others' certificates: of nobody known, and of one that calls itself by the maker's name.
    refused(&Authority::new("Another", LATER).machine(LATER), &roots, "ek-not-endorsed");
    refused(&Authority::new("Maker", LATER).machine(LATER), &roots, "ek-certificate-invalid");
    // This one's, altered in its last byte, which is the signature's.
    let mut altered = machine.ek_certificate.clone().unwrap();
    *altered.last_mut().unwrap() ^= 1;
    let altered = maker.machine(LATER).but(|case| {
        case.ek_area = machine.ek_area.clone();
        case.ek_certificate = Some(altered);
    });
    refused(&altered, &roots, "ek-certificate-invalid");
    // The same certificate with another EK.
    let borrowed = maker
        .machine(LATER)
        .but(|case| case.ek_certificate.clone_from(&machine.ek_certificate));
    assert_eq!(
        verify(&borrowed, &[], &roots, Some(&kept), NOW).unwrap_err().code(),
        "ek-certificate-mismatch"
    );
    // Its anchor was taken away between challenge and evidence, or another one is in its place.
    refused(&machine, &Arc::default(), "ek-not-endorsed");
    refused(&machine, &Authority::new("Another", LATER).roots(), "ek-not-endorsed");
    refused(&machine, &Authority::new("Maker", LATER).roots(), "ek-certificate-invalid");
}

#[test]
fn cached_chain_expires_with_its_certificates() {
    let midnight = NOW / DAY * DAY + DAY;
    let tomorrow = (TODAY.0, TODAY.1, TODAY.2 + 1);
    let above = Authority::new("Root", LATER);
    // The leaf; its root; a CA that was sent and leads to one, and one that leads nowhere.
    let (short, below) = (Authority::new("Maker", tomorrow), Authority::new("Below", tomorrow));
    let lasting = Authority::new("Maker", LATER);
    let sent = above.certify(&below.0, &below.1);
    for (machine, sent, roots, is_over) in [
        (lasting.machine(tomorrow), Vec::new(), lasting.roots(), true),
        (short.machine(LATER), Vec::new(), short.roots(), true),
        (below.machine(LATER), vec![sent.clone()], above.roots(), true),
        (lasting.machine(LATER), vec![sent], lasting.roots(), false),
    ] {
        let kept = Arc::<Kept>::default();
        let verify = |seconds: u64| verify(&machine, &sent, &roots, Some(&kept), seconds);
        verify(NOW).unwrap();
        verify(midnight).unwrap();
        assert_eq!(kept.count(), 1, "up to its last second");
        let after = verify(midnight + 1);
        assert_eq!(after.as_ref().err().map(Reject::code), is_over.then_some("ek-certificate-invalid"));
        // It was verified, whatever it comes to.
        assert_eq!(kept.count(), if is_over { 1 } else { 2 });
    }
}

#[test]
fn cached_chain_is_reverified_when_validity_begins() {
    let (maker, kept) = (Authority::new("Maker", LATER), Arc::<Kept>::default());
    let mut renewed = Authority::new("Maker", LATER);
    renewed.0.not_before = date_time_ymd(TODAY.0, TODAY.1, TODAY.2 + 1);
    let midnight = NOW / DAY * DAY + DAY;
    let machine = maker.machine(LATER);
    let roots = Arc::new(EkRoots::new(vec![maker.root().into(), renewed.root().into()], Vec::new()).unwrap());
    for (seconds, count) in [(NOW, 1), (midnight - 1, 1), (midnight, 2), (midnight + 1, 2)] {
        verify(&machine, &[], &roots, Some(&kept), seconds).unwrap();
        assert_eq!(kept.count(), count, "{seconds}");
    }
}
