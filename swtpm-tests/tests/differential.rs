//! attest held against the TPM software stack and a live TPM: credentials that the TPM activates, structures that both read alike.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;

use crate::bench::{sha256, with_password};
use attest::EkDigest;
use attest::tpm::ak::AkPublic;
use attest::tpm::credential::{self, Credential};
use attest::tpm::ek::EkPublic;
use attest::tpm::wire::{EncryptedSecret, HashAlg, IdObject, KeyParameters, Public, Quoted, Scheme, Signature, SymmetricCipher, WireError};
use attest_node::tpm::{AkKind, EkChoice, Tpm};
use swtpm_tests::{EkAuthority, Endorsement, Folder, TpmServer};
use tss_esapi::abstraction::ek::create_ek_public_from_default_template_2;
use tss_esapi::abstraction::{AsymmetricAlgorithmSelection, DefaultKey};
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, KeyHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Attest, AttestInfo, Data, EccPoint, EccScheme, HashScheme, KeyDerivationFunctionScheme, Public as TssPublic, PublicBuilder,
    PublicEccParametersBuilder, PublicKeyRsa, PublicRsaParametersBuilder, RsaExponent, RsaScheme, Signature as TssSignature,
    SignatureScheme, SymmetricDefinition, SymmetricDefinitionObject,
};
use tss_esapi::traits::{Marshall as _, UnMarshall};
use tss_esapi::tss2_esys::TPMA_OBJECT;

const SECRET: [u8; 32] = *b"what only the endorsed TPM knows";
/// Credentials are altered at every so-many-th byte: each try is a command of the TPM's.
const CREDENTIAL_STRIDE: usize = 11;

/// A TPM of a manufacturer's, switched on.
fn tpm() -> (Folder, TpmServer, Tpm) {
    let folder = Folder::new().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    let server = TpmServer::start(folder.path(), Endorsement::By(&authority)).unwrap();
    let tpm = Tpm::open(&server.tcti()).unwrap();
    (folder, server, tpm)
}

fn flush(tpm: &mut Tpm, key: KeyHandle) {
    tpm.context()
        .execute_without_session(|context| context.flush_context(key.into()))
        .unwrap();
}

/// A key made from any template; handle, TPMT_PUBLIC, and the Name that the TPM gives it.
fn create(tpm: &mut Tpm, template: TssPublic) -> (KeyHandle, Vec<u8>, Vec<u8>) {
    let created = with_password(tpm, |context| {
        context.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
    })
    .unwrap();
    let handle = created.key_handle;
    let (public, name, _) = tpm
        .context()
        .execute_without_session(|context| context.read_public(handle))
        .unwrap();
    (handle, public.marshall().unwrap(), name.value().to_vec())
}

/// Attestation keys of every scheme that attest takes.
fn ak_templates() -> Vec<(&'static str, TssPublic)> {
    let public = |hash| {
        let attributes = ObjectAttributesBuilder::new()
            .with_fixed_tpm(true)
            .with_fixed_parent(true)
            .with_sensitive_data_origin(true)
            .with_user_with_auth(true)
            .with_restricted(true)
            .with_sign_encrypt(true)
            .build()
            .unwrap();
        PublicBuilder::new()
            .with_name_hashing_algorithm(hash)
            .with_object_attributes(attributes)
    };
    let ecc = |curve, hash| {
        let parameters = PublicEccParametersBuilder::new()
            .with_symmetric(SymmetricDefinitionObject::Null)
            .with_ecc_scheme(EccScheme::EcDsa(HashScheme::new(hash)))
            .with_curve(curve)
            .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
            .with_is_signing_key(true)
            .with_restricted(true)
            .build()
            .unwrap();
        let public = public(hash).with_public_algorithm(PublicAlgorithm::Ecc);
        public
            .with_ecc_parameters(parameters)
            .with_ecc_unique_identifier(EccPoint::default())
            .build()
            .unwrap()
    };
    let rsa = |scheme, name_hash| {
        let parameters = PublicRsaParametersBuilder::new()
            .with_symmetric(SymmetricDefinitionObject::Null)
            .with_scheme(scheme)
            .with_key_bits(RsaKeyBits::Rsa2048)
            .with_exponent(RsaExponent::default())
            .with_is_signing_key(true)
            .with_restricted(true)
            .build()
            .unwrap();
        let public = public(name_hash).with_public_algorithm(PublicAlgorithm::Rsa);
        public
            .with_rsa_parameters(parameters)
            .with_rsa_unique_identifier(PublicKeyRsa::default())
            .build()
            .unwrap()
    };
    use HashingAlgorithm::{Sha256, Sha384, Sha512};
    vec![
        ("P-256", ecc(EccCurve::NistP256, Sha256)),
        ("P-384", ecc(EccCurve::NistP384, Sha384)),
        ("RSASSA", rsa(RsaScheme::RsaSsa(HashScheme::new(Sha256)), Sha256)),
        ("RSAPSS", rsa(RsaScheme::RsaPss(HashScheme::new(Sha256)), Sha256)),
        ("RSASSA-384", rsa(RsaScheme::RsaSsa(HashScheme::new(Sha384)), Sha384)),
        ("RSAPSS-512", rsa(RsaScheme::RsaPss(HashScheme::new(Sha512)), Sha512)),
    ]
}

/// TPM2_ActivateCredential; the structures without their sizes, as tss-esapi has them.
fn activate(
    tpm: &mut Tpm,
    ek: KeyHandle,
    ek_public: &TssPublic,
    ak: KeyHandle,
    blob: &[u8],
    secret: &[u8],
) -> Result<Vec<u8>, tss_esapi::Error> {
    let (blob, secret) = (blob[2..].try_into()?, secret[2..].try_into()?);
    let run = |tpm: &mut Tpm, session: AuthSession| {
        let sessions = (Some(AuthSession::Password), Some(session), None);
        tpm.context()
            .execute_with_sessions(sessions, |context| context.activate_credential(ak, ek, blob, secret))
    };
    let activated = if ek_public.object_attributes().user_with_auth() {
        run(tpm, AuthSession::Password)
    } else {
        let hash = ek_public.name_hashing_algorithm();
        let session = tpm
            .context()
            .execute_without_session(|context| {
                context.start_auth_session(None, None, None, SessionType::Policy, SymmetricDefinition::AES_128_CFB, hash)
            })?
            .unwrap();
        let policy = PolicySession::try_from(session)?;
        let (none, nonce, reference) = Default::default();
        with_password(tpm, |context| {
            context.policy_secret(policy, AuthHandle::Endorsement, none, nonce, reference, None)
        })?;
        let activated = run(tpm, session);
        // The TPM ends the session itself only if the command succeeds.
        let _ = tpm
            .context()
            .execute_without_session(|context| context.flush_context(SessionHandle::from(session).into()));
        activated
    };
    activated.map(|secret| secret.to_vec())
}

fn bytes_of(credential: &Credential) -> (Vec<u8>, Vec<u8>) {
    (credential.blob.to_bytes(), credential.encrypted_secret.to_bytes())
}

/// What must not be activated: made for another AK, or altered in transit.
fn refused_credentials(ek: &EkPublic, ak: &AkPublic, other: &AkPublic, mut activates: impl FnMut(&[u8], &[u8]) -> bool) {
    let (blob, secret) = bytes_of(&credential::make(ek, other.name(), &SECRET).unwrap());
    assert!(!activates(&blob, &secret), "made for another AK");
    let (blob, secret) = bytes_of(&credential::make(ek, ak.name(), &SECRET).unwrap());
    assert!(activates(&blob, &secret));
    let (other_blob, other_secret) = bytes_of(&credential::make(ek, ak.name(), &SECRET).unwrap());
    assert!(
        !activates(&blob, &other_secret) && !activates(&other_blob, &secret),
        "halves of two credentials"
    );
    for at in (2..blob.len()).step_by(CREDENTIAL_STRIDE).chain([blob.len() - 1]) {
        let mut altered = blob.clone();
        altered[at] ^= 1;
        assert!(!activates(&altered, &secret), "blob, byte {at}");
    }
    for at in (2..secret.len()).step_by(CREDENTIAL_STRIDE).chain([secret.len() - 1]) {
        let mut altered = secret.clone();
        altered[at] ^= 1;
        assert!(!activates(&blob, &altered), "secret, byte {at}");
    }
}

#[test]
fn the_driver_activates_credentials_for_every_ek_and_ak() {
    let (_folder, _server, mut tpm) = tpm();
    let mut seen = BTreeSet::new();
    let other = AkPublic::parse(&ak_templates_first(&mut tpm)).unwrap();
    for choice in [EkChoice::Rsa, EkChoice::Ecc] {
        for ek in tpm.endorsement_keys(choice).unwrap() {
            let public = EkPublic::parse(&ek.public).unwrap();
            assert_eq!(public.digest(), ek.digest);
            let family = ek.label.split(" (").next().unwrap();
            seen.insert((family.to_owned(), ek.certificate.is_some()));
            for kind in [AkKind::EccP256, AkKind::EccP384, AkKind::Rsa2048] {
                let mut attester = tpm.attester(&ek, kind).unwrap();
                let ak = AkPublic::parse(attester.ak_public()).unwrap();
                let (blob, secret) = bytes_of(&credential::make(&public, ak.name(), &SECRET).unwrap());
                assert_eq!(*attester.activate(&blob, &secret).unwrap(), SECRET, "{} {kind:?}", ek.label);
                if kind == AkKind::EccP384 {
                    refused_credentials(&public, &ak, &other, |blob, secret| attester.activate(blob, secret).is_ok());
                }
            }
        }
    }
    for expected in [("RSA-2048", true), ("ECC P-384", true), ("ECC P-256", false)] {
        assert!(
            seen.contains(&(expected.0.to_owned(), expected.1)),
            "{expected:?} is not in {seen:?}"
        );
    }
}

/// The public area of an AK that is no longer there.
fn ak_templates_first(tpm: &mut Tpm) -> Vec<u8> {
    let (_, template) = ak_templates().into_iter().next().unwrap();
    let (handle, public, _) = create(tpm, template);
    flush(tpm, handle);
    public
}

/// EKs of the profile's templates that this TPM can make.
fn ek_templates() -> Vec<TssPublic> {
    use AsymmetricAlgorithmSelection::{Ecc, Rsa};
    [
        Rsa(RsaKeyBits::Rsa2048),
        Rsa(RsaKeyBits::Rsa3072),
        Ecc(EccCurve::NistP256),
        Ecc(EccCurve::NistP384),
    ]
    .into_iter()
    .map(|key| create_ek_public_from_default_template_2(key, DefaultKey).unwrap())
    .collect()
}

#[test]
fn every_ek_template_and_ak_scheme_fit_together() {
    let (_folder, _server, mut tpm) = tpm();
    for template in ek_templates() {
        let (ek, ek_bytes, ek_name) = create(&mut tpm, template);
        let area = TssPublic::unmarshall(&ek_bytes).unwrap();
        let public = EkPublic::parse(&ek_bytes).unwrap();
        for (scheme, template) in ak_templates() {
            let (ak, ak_bytes, ak_name) = create(&mut tpm, template);
            let ak_public = AkPublic::parse(&ak_bytes).unwrap();
            assert_eq!(ak_public.name().as_bytes(), ak_name, "{scheme}");
            assert_ne!(ak_name, ek_name);
            let (blob, secret) = bytes_of(&credential::make(&public, ak_public.name(), &SECRET).unwrap());
            let activated = activate(&mut tpm, ek, &area, ak, &blob, &secret).unwrap();
            assert_eq!(activated, SECRET, "{scheme}");
            // The other way around: what the TPM makes is read by attest.
            if scheme == "P-256" {
                made_by_the_tpm(&mut tpm, ek, &area, &ak_name);
            }
            flush(&mut tpm, ak);
        }
        flush(&mut tpm, ek);
    }
}

/// TPM2_MakeCredential's structures.
fn made_by_the_tpm(tpm: &mut Tpm, ek: KeyHandle, area: &TssPublic, ak_name: &[u8]) {
    let (secret, name) = (SECRET.to_vec().try_into().unwrap(), ak_name.to_vec().try_into().unwrap());
    let (blob, secret) = tpm
        .context()
        .execute_without_session(|context| context.make_credential(ek, secret, name))
        .unwrap();
    let blob = sized(&blob);
    same_bytes(&blob, |bytes| IdObject::parse(bytes).map(|object| object.to_bytes()));
    let secret = sized(&secret);
    if matches!(area, TssPublic::Rsa { .. }) {
        same_bytes(&secret, |bytes| EncryptedSecret::parse_rsa(bytes).map(|secret| secret.to_bytes()));
    } else {
        same_bytes(&secret, |bytes| EncryptedSecret::parse_ecc(bytes).map(|secret| secret.to_bytes()));
    }
}

/// Parsed and written again they are the same; shorter or longer they are refused.
fn same_bytes(bytes: &[u8], rewritten: impl Fn(&[u8]) -> Result<Vec<u8>, WireError>) {
    assert_eq!(rewritten(bytes).unwrap(), bytes);
    for end in 0..bytes.len() {
        rewritten(&bytes[..end]).unwrap_err();
    }
    assert_eq!(rewritten(&[bytes, &[0]].concat()), Err(WireError::TrailingBytes { left: 1 }));
}

fn sized(content: &[u8]) -> Vec<u8> {
    let size = u16::try_from(content.len()).unwrap();
    [&size.to_be_bytes(), content].concat()
}

/// How often both sides said what of altered bytes.
#[derive(Debug, Default)]
struct Tally {
    both_read: usize,
    both_refused: usize,
    only_attest_refused: usize,
    only_attest_read: usize,
}

/// Every byte of `original` altered in many ways: attest reads what the TSS reads, and writes it alike, unless it is one of
/// those things that attest is strict about, or `tolerates`.
fn alike<T: UnMarshall>(
    original: &[u8],
    rewritten: impl Fn(&[u8]) -> Result<Vec<u8>, WireError>,
    again: impl Fn(&T) -> Vec<u8>,
    tolerates: impl Fn(&[u8]) -> bool,
    tally: &mut Tally,
) {
    same_bytes(original, &rewritten);
    assert_eq!(again(&T::unmarshall(original).unwrap()), original);
    for at in 0..original.len() {
        for xor in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
            let mut bytes = original.to_vec();
            bytes[at] ^= xor;
            match (rewritten(&bytes), T::unmarshall(&bytes)) {
                (Ok(ours), Ok(theirs)) => {
                    tally.both_read += 1;
                    assert_eq!(ours, bytes, "byte {at} ^ {xor:#x}");
                    assert_eq!(again(&theirs), bytes, "byte {at} ^ {xor:#x}");
                }
                (Err(_), Err(_)) => tally.both_refused += 1,
                (Err(error), Ok(_)) => {
                    tally.only_attest_refused += 1;
                    assert!(is_strictness(&error), "byte {at} ^ {xor:#x}: {error}");
                }
                (Ok(ours), Err(_)) if tolerates(&bytes) => {
                    tally.only_attest_read += 1;
                    assert_eq!(ours, bytes, "byte {at} ^ {xor:#x}");
                }
                (Ok(_), Err(error)) => panic!("byte {at} ^ {xor:#x}: only attest reads it: {error}"),
            }
        }
    }
}

/// What attest refuses and the TSS reads: bytes behind the structure, weak hashes, algorithms and kinds of attestation that the
/// verifier does not handle, sizes beyond what those algorithms need.
fn is_strictness(error: &WireError) -> bool {
    matches!(
        error,
        WireError::TrailingBytes { .. }
            | WireError::HashRefused { .. }
            | WireError::Unsupported { .. }
            | WireError::NotAQuote { .. }
            | WireError::TooLarge { .. }
    )
}

/// A bank that nobody knows: attest reads it, so that the refusal can say which bank was signed.
fn has_unknown_bank(quote: &[u8]) -> bool {
    let quoted = Quoted::parse(quote).unwrap();
    quoted.selection.iter().any(|selected| HashAlg::from_id(selected.bank).is_none())
}

/// A key size that no key has, say: read, and refused one step later with a code of its own.
fn is_neither_ek_nor_ak(area: &[u8]) -> bool {
    EkPublic::parse(area).is_err() && AkPublic::parse(area).is_err()
}

/// The fields of a public area, one by one.
fn same_public(ours: &Public, theirs: &TssPublic) {
    assert_eq!(hash_id(theirs.name_hashing_algorithm()), ours.name_alg.id());
    assert_eq!(TPMA_OBJECT::from(theirs.object_attributes()), ours.attributes.0);
    let symmetric = |theirs: SymmetricDefinitionObject| match theirs {
        SymmetricDefinitionObject::Null => SymmetricCipher::Null,
        SymmetricDefinitionObject::AES_128_CFB => SymmetricCipher::Aes128Cfb,
        SymmetricDefinitionObject::AES_256_CFB => SymmetricCipher::Aes256Cfb,
        other => panic!("{other:?}"),
    };
    match (theirs, &ours.key) {
        (
            TssPublic::Rsa {
                auth_policy,
                parameters,
                unique,
                ..
            },
            KeyParameters::Rsa {
                key_bits,
                exponent,
                modulus,
            },
        ) => {
            assert_eq!(auth_policy.value(), ours.auth_policy);
            assert_eq!(symmetric(parameters.symmetric_definition_object()), ours.symmetric);
            assert_eq!(u16::from(parameters.key_bits()), *key_bits);
            assert_eq!(parameters.exponent().value(), *exponent);
            assert_eq!(unique.value(), modulus);
            let scheme = match parameters.rsa_scheme() {
                RsaScheme::Null => Scheme::Null,
                RsaScheme::RsaSsa(hash) => Scheme::RsaSsa(our_hash(hash.hashing_algorithm())),
                RsaScheme::RsaPss(hash) => Scheme::RsaPss(our_hash(hash.hashing_algorithm())),
                other => panic!("{other:?}"),
            };
            assert_eq!(scheme, ours.scheme);
        }
        (
            TssPublic::Ecc {
                auth_policy,
                parameters,
                unique,
                ..
            },
            KeyParameters::Ecc { curve, x, y },
        ) => {
            assert_eq!(auth_policy.value(), ours.auth_policy);
            assert_eq!(symmetric(parameters.symmetric_definition_object()), ours.symmetric);
            assert_eq!((unique.x().value(), unique.y().value()), (x.as_slice(), y.as_slice()));
            let coordinate_bytes = match parameters.ecc_curve() {
                EccCurve::NistP256 => 32,
                EccCurve::NistP384 => 48,
                other => panic!("{other:?}"),
            };
            assert_eq!(coordinate_bytes, curve.coordinate_bytes());
            let scheme = match parameters.ecc_scheme() {
                EccScheme::Null => Scheme::Null,
                EccScheme::EcDsa(hash) => Scheme::Ecdsa(our_hash(hash.hashing_algorithm())),
                other => panic!("{other:?}"),
            };
            assert_eq!(scheme, ours.scheme);
        }
        other => panic!("{other:?}"),
    }
}

fn our_hash(theirs: HashingAlgorithm) -> HashAlg {
    HashAlg::from_id(hash_id(theirs)).unwrap()
}

fn hash_id(theirs: HashingAlgorithm) -> u16 {
    tss_esapi::constants::AlgorithmIdentifier::from(theirs).into()
}

/// The fields of a quote, one by one.
fn same_quote(ours: &Quoted, theirs: &Attest) {
    let AttestInfo::Quote { info } = theirs.attested() else {
        panic!("a quote")
    };
    let clock = theirs.clock_info();
    assert_eq!(theirs.qualified_signer().value(), ours.qualified_signer);
    assert_eq!(theirs.extra_data().value(), ours.extra_data);
    assert_eq!(
        (clock.clock(), clock.reset_count(), clock.restart_count(), clock.safe()),
        (
            ours.clock.clock_ms,
            ours.clock.reset_count,
            ours.clock.restart_count,
            ours.clock.safe
        )
    );
    assert_eq!(theirs.firmware_version(), ours.firmware_version);
    assert_eq!(info.pcr_digest().value(), ours.pcr_digest);
    let selections = info.pcr_selection().get_selections();
    assert_eq!(selections.len(), ours.selection.len());
    for (theirs, ours) in selections.iter().zip(&ours.selection) {
        assert_eq!(hash_id(theirs.hashing_algorithm()), ours.bank);
        let pcrs: Vec<u32> = theirs.selected().into_iter().map(|slot| u32::from(slot).trailing_zeros()).collect();
        assert_eq!(pcrs, ours.pcrs().map(u32::from).collect::<Vec<_>>());
    }
}

/// The fields of a signature, one by one.
fn same_signature(ours: &Signature<'_>, theirs: &TssSignature) {
    match (theirs, ours) {
        (TssSignature::RsaSsa(theirs), Signature::Rsa { scheme, signature }) => {
            assert_eq!(*scheme, Scheme::RsaSsa(our_hash(theirs.hashing_algorithm())));
            assert_eq!(theirs.signature().value(), *signature);
        }
        (TssSignature::RsaPss(theirs), Signature::Rsa { scheme, signature }) => {
            assert_eq!(*scheme, Scheme::RsaPss(our_hash(theirs.hashing_algorithm())));
            assert_eq!(theirs.signature().value(), *signature);
        }
        (TssSignature::EcDsa(theirs), Signature::Ecdsa { scheme, r, s }) => {
            assert_eq!(*scheme, Scheme::Ecdsa(our_hash(theirs.hashing_algorithm())));
            assert_eq!((theirs.signature_r().value(), theirs.signature_s().value()), (*r, *s));
        }
        other => panic!("{other:?}"),
    }
}

fn rewrite_public(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    Public::parse(bytes).map(|public| public.to_bytes())
}

fn rewrite_quote(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    Quoted::parse(bytes).map(|quoted| quoted.to_bytes())
}

fn rewrite_signature(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    Signature::parse(bytes).map(|signature| signature.to_bytes())
}

#[test]
fn attest_and_the_tss_read_the_tpms_structures_alike() {
    let (_folder, _server, mut tpm) = tpm();
    let mut tally = Tally::default();
    let mut publics = Vec::new();
    for template in ek_templates() {
        let (ek, bytes, _) = create(&mut tpm, template);
        flush(&mut tpm, ek);
        publics.push(bytes);
    }
    for (scheme, template) in ak_templates() {
        let (ak, bytes, name) = create(&mut tpm, template);
        let public = AkPublic::parse(&bytes).unwrap();
        assert_eq!(public.name().as_bytes(), name, "{scheme}");
        publics.push(bytes);

        let selection = tss_esapi::structures::PcrSelectionListBuilder::new()
            .with_selection(
                HashingAlgorithm::Sha256,
                &[tss_esapi::structures::PcrSlot::Slot0, tss_esapi::structures::PcrSlot::Slot7],
            )
            .build()
            .unwrap();
        let data = Data::try_from(sha256(b"nonce").to_vec()).unwrap();
        let quote = |context: &mut tss_esapi::Context| context.quote(ak, data, SignatureScheme::Null, selection);
        let (attest, signature) = with_password(&mut tpm, quote).unwrap();
        flush(&mut tpm, ak);
        let (quoted, signed) = (attest.marshall().unwrap(), signature.marshall().unwrap());
        public.verify(&quoted, &signed).unwrap();
        same_quote(&Quoted::parse(&quoted).unwrap(), &attest);
        same_signature(&Signature::parse(&signed).unwrap(), &signature);
        alike::<Attest>(
            &quoted,
            rewrite_quote,
            |attest| attest.marshall().unwrap(),
            has_unknown_bank,
            &mut tally,
        );
        alike::<TssSignature>(
            &signed,
            rewrite_signature,
            |signature| signature.marshall().unwrap(),
            |_| false,
            &mut tally,
        );
        // Whatever is altered, it is no longer what the AK signed.
        for at in 0..quoted.len() {
            let mut altered = quoted.clone();
            altered[at] ^= 1;
            public.verify(&altered, &signed).unwrap_err();
        }
    }
    for bytes in publics {
        same_public(&Public::parse(&bytes).unwrap(), &TssPublic::unmarshall(&bytes).unwrap());
        let with_size = sized(&bytes);
        assert_eq!(Public::parse_sized(&with_size).unwrap().to_bytes(), bytes);
        alike::<TssPublic>(
            &bytes,
            rewrite_public,
            |public| public.marshall().unwrap(),
            is_neither_ek_nor_ak,
            &mut tally,
        );
    }
    println!("{tally:?}");
}

/// Runs one of tpm2-tools in `folder`, and removes what it leaves in the TPM: there is no resource manager.
fn tool(server: &TpmServer, folder: &Path, line: &str) {
    for line in [line, "tpm2_flushcontext -t", "tpm2_flushcontext -l", "tpm2_flushcontext -s"] {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap())
            .args(words)
            .current_dir(folder)
            .env("TPM2TOOLS_TCTI", server.tcti())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn files_of_tpm2_tools_are_read() {
    let (folder, server, tpm) = tpm();
    drop(tpm);
    let folder = folder.path();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    for ek in ["rsa", "ecc"] {
        tool(&server, folder, &format!("tpm2_createek -Q -c ek.ctx -G {ek} -u ek.pub"));
        EkDigest::from_public_area(&read("ek.pub")).unwrap();
        for (key, hash, scheme) in [
            ("ecc", "sha256", "ecdsa"),
            ("ecc384", "sha384", "ecdsa"),
            ("rsa", "sha256", "rsassa"),
            ("rsa", "sha256", "rsapss"),
        ] {
            let make = format!("tpm2_createak -Q -C ek.ctx -c ak.ctx -u ak.pub -n ak.name -G {key} -g {hash} -s {scheme}");
            tool(&server, folder, &make);
            let area = Public::parse_sized(&read("ak.pub")).unwrap().to_bytes();
            assert_eq!(sized(&area), read("ak.pub"));
            let ak = AkPublic::parse(&area).unwrap();
            assert_eq!(ak.name().as_bytes(), read("ak.name"));
            let files = "-m quote.msg -s quote.sig -o quote.pcrs -f tss";
            let quote = format!("tpm2_quote -Q -c ak.ctx -l sha256:0,7 -q 0011 {files} -g {hash} --scheme {scheme}");
            tool(&server, folder, &quote);
            let (message, signature) = (read("quote.msg"), read("quote.sig"));
            assert_eq!(rewrite_quote(&message).unwrap(), message);
            assert_eq!(rewrite_signature(&signature).unwrap(), signature);
            let signed = ak.verify(&message, &signature).unwrap();
            let quoted = Quoted::parse(signed.bytes()).unwrap();
            assert_eq!(quoted.extra_data, [0x00, 0x11]);
            assert_eq!(quoted.selection[0].pcrs().collect::<Vec<_>>(), [0, 7]);
        }
    }
}
