//! Comparison of attest with the TPM software stack and a live TPM: credentials that the TPM activates, structures that both read alike.

mod credentials;
mod structures;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;

use crate::bench::{sha256, with_password};
use attest::EkDigest;
use attest::tpm::ak::AkPublic;
use attest::tpm::credential::{self, EncryptedCredential};
use attest::tpm::ek::EkPublic;
use attest::tpm::wire::{
    EncryptedSecret, HashAlg, IdObject, KeyParameters, Public, QuoteAttest, SymmetricCipher, TpmScheme, TpmSignature, WireError,
};
use attest_node::tpm::{AkKind, EkChoice, TpmDevice};
use swtpm_tests::{EkAuthority, TestEndorsement, TestFolder, TpmServer};
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

/// Starts a TPM of a manufacturer.
fn tpm() -> (TestFolder, TpmServer, TpmDevice) {
    let folder = TestFolder::new().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    let server = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    let tpm = TpmDevice::open(&server.tcti()).unwrap();
    (folder, server, tpm)
}

fn flush(tpm: &mut TpmDevice, key: KeyHandle) {
    tpm.context()
        .execute_without_session(|context| context.flush_context(key.into()))
        .unwrap();
}

/// Creates a key from any template. Returns its handle, its `TPMT_PUBLIC`, and the name that the TPM gives it.
fn create(tpm: &mut TpmDevice, template: TssPublic) -> (KeyHandle, Vec<u8>, Vec<u8>) {
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

fn sized(content: &[u8]) -> Vec<u8> {
    let size = u16::try_from(content.len()).unwrap();
    [&size.to_be_bytes(), content].concat()
}

/// Verifies that parsed and rewritten bytes are the same, and that shorter or longer ones are refused.
fn same_bytes(bytes: &[u8], rewritten: impl Fn(&[u8]) -> Result<Vec<u8>, WireError>) {
    assert_eq!(rewritten(bytes).unwrap(), bytes);
    for end in 0..bytes.len() {
        rewritten(&bytes[..end]).unwrap_err();
    }
    assert_eq!(rewritten(&[bytes, &[0]].concat()), Err(WireError::TrailingBytes { left: 1 }));
}

fn rewrite_quote(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    QuoteAttest::parse(bytes).map(|quoted| quoted.to_bytes())
}

fn rewrite_signature(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    TpmSignature::parse(bytes).map(|signature| signature.to_bytes())
}

/// Returns the EK templates of the profile that this TPM can make.
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

/// Returns templates of attestation keys of every scheme that attest accepts.
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

/// Runs a program of tpm2-tools in `folder`, and removes the objects that it leaves in the TPM, which has no resource manager.
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
            let quoted = QuoteAttest::parse(signed.bytes()).unwrap();
            assert_eq!(quoted.extra_data, [0x00, 0x11]);
            assert_eq!(quoted.selection[0].pcrs().collect::<Vec<_>>(), [0, 7]);
        }
    }
}
