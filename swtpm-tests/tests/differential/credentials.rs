//! MakeCredential in software, and ActivateCredential in a TPM.

use super::*;

/// Distance between altered bytes of a credential: each attempt is a command of the TPM.
const CREDENTIAL_STRIDE: usize = 11;

/// Executes `TPM2_ActivateCredential`; the structures are without their sizes, as tss-esapi has them.
fn activate(
    tpm: &mut TpmDevice,
    ek: KeyHandle,
    ek_public: &TssPublic,
    ak: KeyHandle,
    blob: &[u8],
    secret: &[u8],
) -> Result<Vec<u8>, tss_esapi::Error> {
    let (blob, secret) = (blob[2..].try_into()?, secret[2..].try_into()?);
    let run = |tpm: &mut TpmDevice, session: AuthSession| {
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

fn bytes_of(credential: &EncryptedCredential) -> (Vec<u8>, Vec<u8>) {
    (credential.blob.to_bytes(), credential.encrypted_secret.to_bytes())
}

/// Verifies that no credential is activated that was made for another AK or altered in transit.
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
fn attest_node_activates_credentials_for_every_key_kind() {
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

/// Returns the public area of an AK that has been flushed from the TPM.
fn ak_templates_first(tpm: &mut TpmDevice) -> Vec<u8> {
    let (_, template) = ak_templates().into_iter().next().unwrap();
    let (handle, public, _) = create(tpm, template);
    flush(tpm, handle);
    public
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

/// Verifies both implementations on the structures of `TPM2_MakeCredential`.
fn made_by_the_tpm(tpm: &mut TpmDevice, ek: KeyHandle, area: &TssPublic, ak_name: &[u8]) {
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
