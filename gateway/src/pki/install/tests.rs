//! Each step leaves files that load, and each command can be repeated.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;

use super::*;
use crate::pki::authority_keys::ca_key_path;
use crate::pki::issue::Algorithm;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

struct Folder {
    _folder: tempfile::TempDir,
    files: TlsSettings,
}

fn folder() -> Folder {
    let folder = tempfile::tempdir().unwrap();
    let files = TlsSettings {
        ca: folder.path().join("mcs-ca.crt"),
        certificate: folder.path().join("mcs.crt"),
        key: folder.path().join("mcs.key"),
        previous_keys: Vec::new(),
        client_ca: None,
        client_ca_of_cluster: false,
        serving_of_cluster: false,
    };
    let names = GatewayNames {
        hosts: vec!["localhost".to_owned()],
        addresses: Vec::new(),
    };
    crate::pki::create(&files, &names, at(NOW)).unwrap();
    Folder { _folder: folder, files }
}

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.files.ca.with_file_name(name)
    }

    fn today(&self) -> Today {
        today(&self.files).unwrap()
    }

    fn introduce(&self) -> Certificate {
        let installation = Installation::open(&self.files).unwrap();
        installation
            .introduce("next", &CertificateRequest::default(), None, at(NOW))
            .unwrap()
            .0
    }

    fn switch(&self) {
        let today = self.today();
        let newest = today.authorities.last().unwrap();
        let names = GatewayNames::from_certificate(&today.certificate);
        let installation = Installation::open(&self.files).unwrap();
        installation
            .renew(newest, None, &names, &CertificateRequest::default(), at(NOW))
            .unwrap();
    }
}

fn copy(from: &Folder, to: &Folder) {
    for entry in fs::read_dir(from.files.ca.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.path(entry.file_name().to_str().unwrap())).unwrap();
    }
}

#[test]
fn each_renewal_step_leaves_a_matching_key_pair() {
    let folder = folder();
    let before = folder.today();
    let key = find_authority_key(&folder.files, &before.authority, None).unwrap();
    let made = issue::serving(
        &before.authority,
        &key,
        &GatewayNames::from_certificate(&before.certificate),
        &CertificateRequest::default(),
        at(NOW),
    )
    .unwrap();
    let installation = Installation::open(&folder.files).unwrap();
    let chain = [made.certificate.clone()];
    let steps = installation.steps(&chain, &made.key.pem(), at(NOW)).unwrap();
    let served = |expected: &Certificate, keys: usize| {
        let serving = ServingCertificate::load(&folder.files, at(NOW)).unwrap();
        assert_eq!(serving.certificate(), Some(expected));
        assert_eq!(source::keys(&folder.files.key).unwrap().len(), keys);
    };
    let expected = [(&before.certificate, 2), (&made.certificate, 2), (&made.certificate, 1)];
    assert_eq!(steps.len(), expected.len());
    for (step, (certificate, keys)) in steps.iter().zip(expected) {
        files::replace(&step.path, step.mode, &step.text).unwrap();
        served(certificate, keys);
        // Whoever is interrupted here may begin anew.
        let again = folder_with(&folder);
        let today = again.today();
        let installation = Installation::open(&again.files).unwrap();
        let names = GatewayNames::from_certificate(&today.certificate);
        installation
            .renew(&today.authority, None, &names, &CertificateRequest::default(), at(NOW))
            .unwrap();
        assert_eq!(source::keys(&again.files.key).unwrap().len(), 1);
        ServingCertificate::load(&again.files, at(NOW)).unwrap();
    }
}

fn folder_with(other: &Folder) -> Folder {
    let new = folder();
    copy(other, &new);
    new
}

#[test]
fn a_completed_rotation_leaves_one_ca_and_key() {
    let folder = folder();
    let old = folder.today().authority;
    let new = folder.introduce();
    assert_eq!(folder.today().authorities, [old.clone(), new.clone()]);
    assert_eq!(folder.today().authority, old);
    assert_eq!(ca_key_path(&folder.files, &new), Some(folder.path("mcs-ca-next.key")));
    folder.switch();
    assert_eq!(folder.today().authority, new);
    assert_eq!(folder.today().authorities.len(), 2);
    // A crash before the last step: the keys have moved, the bundle has not.
    let bundle = fs::read(&folder.files.ca).unwrap();
    let retire = |discard: bool| Installation::open(&folder.files).unwrap().retire(discard, at(NOW)).unwrap();
    let retired = retire(false);
    assert_eq!(retired.dropped, std::slice::from_ref(&old));
    assert_eq!(retired.old_key, Some(folder.path("mcs-ca-old.key")));
    fs::write(&folder.files.ca, bundle).unwrap();
    let retired = retire(false);
    assert_eq!((retired.dropped, retired.old_key, retired.key), (vec![old.clone()], None, None));
    // A crash between the keys.
    fs::rename(folder.path("mcs-ca.key"), folder.path("mcs-ca-next.key")).unwrap();
    assert_eq!(retire(false).key, Some(folder.path("mcs-ca.key")));
    assert_eq!(folder.today().authorities, std::slice::from_ref(&new));
    assert_eq!(ca_key_path(&folder.files, &new), Some(folder.path("mcs-ca.key")));
    assert_eq!(ca_key_path(&folder.files, &old), Some(folder.path("mcs-ca-old.key")));
    // The next rotation does not overwrite the key of the one before.
    folder.introduce();
    folder.switch();
    let retired = retire(false);
    assert_eq!(retired.old_key, Some(folder.path(&format!("mcs-ca-old-{NOW}.key"))));
    assert_eq!(ca_key_path(&folder.files, &old), Some(folder.path("mcs-ca-old.key")));
    folder.introduce();
    folder.switch();
    let discarded = Installation::open(&folder.files).unwrap().retire(true, at(NOW + 1)).unwrap();
    assert_eq!((discarded.dropped.len(), discarded.old_key), (1, None));
    assert!(!folder.path(&format!("mcs-ca-old-{}.key", NOW + 1)).exists());
    assert!(!folder.path("mcs-ca-next.key").exists());
    ServingCertificate::load(&folder.files, at(NOW)).unwrap();
}

#[test]
fn reuses_a_leftover_key_and_overwrites_none() {
    let folder = folder();
    let left = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
    files::create(&folder.path("mcs-ca-next.key"), PRIVATE, &left.pem()).unwrap();
    let introduce = |wanted: &CertificateRequest, out: Option<&Path>| {
        let installation = Installation::open(&folder.files).unwrap();
        installation.introduce("next", wanted, out, at(NOW))
    };
    let rsa = CertificateRequest {
        algorithm: Algorithm::Rsa2048,
        ..CertificateRequest::default()
    };
    assert!(
        introduce(&rsa, None)
            .unwrap_err()
            .to_string()
            .contains("another command left this file")
    );
    let taken = folder.path("mcs-ca.key");
    assert!(
        introduce(&CertificateRequest::default(), Some(&taken))
            .unwrap_err()
            .to_string()
            .contains("exists")
    );
    let (ca, _) = introduce(&CertificateRequest::default(), None).unwrap();
    assert_eq!(ca.key, left.public());
    assert!(
        introduce(&CertificateRequest::default(), None)
            .unwrap_err()
            .to_string()
            .contains("was not changed")
    );
}

#[test]
fn renews_an_expired_certificate_and_ca() {
    let folder = folder();
    let later = at(NOW + 3651 * DAY);
    assert!(ServingCertificate::load(&folder.files, later).is_err());
    let today = folder.today();
    let installation = Installation::open(&folder.files).unwrap();
    let names = GatewayNames::from_certificate(&today.certificate);
    // Not by a CA that has ended with it.
    let refused = installation.renew(&today.authority, None, &names, &CertificateRequest::default(), later);
    assert!(refused.unwrap_err().to_string().contains("is valid from"));
    let (new, _) = installation.introduce("next", &CertificateRequest::default(), None, later).unwrap();
    installation
        .renew(&new, None, &names, &CertificateRequest::default(), later)
        .unwrap();
    assert_eq!(ServingCertificate::load(&folder.files, later).unwrap().authority(), &new);
}

#[test]
fn replaces_a_lost_or_mismatched_serving_key() {
    let check = |change: &dyn Fn(&Path)| {
        let folder = folder();
        change(&folder.files.key);
        assert!(ServingCertificate::load(&folder.files, at(NOW)).is_err());
        folder.switch();
        ServingCertificate::load(&folder.files, at(NOW)).unwrap();
        assert_eq!(source::exposed(&folder.files.key), None);
    };
    check(&|key| fs::remove_file(key).unwrap());
    check(&|key| fs::write(key, "garbage").unwrap());
    check(&|key| {
        let other = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
        fs::write(key, other.pem().as_bytes()).unwrap();
    });
}

#[test]
fn refuses_to_replace_manifests_and_shared_files() {
    let refused = |change: &dyn Fn(&mut Folder), expected: &str| {
        let mut folder = folder();
        change(&mut folder);
        let error = Installation::open(&folder.files).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let manifest = "apiVersion: v1\nkind: ConfigMap\ndata: {}\n";
    refused(&|folder| fs::write(&folder.files.ca, manifest).unwrap(), "mcs-ca.crt is a manifest");
    refused(
        &|folder| fs::write(&folder.files.certificate, manifest).unwrap(),
        "mcs.crt is a manifest",
    );
    refused(
        &|folder| folder.files.key.clone_from(&folder.files.certificate),
        "holds both certificate and key",
    );
    refused(&|folder| fs::remove_file(&folder.files.certificate).unwrap(), "mcs.crt");
    let folder = folder();
    let _one = Installation::open(&folder.files).unwrap();
    assert!(matches!(Installation::open(&folder.files), Err(InstallError::Busy(_))));
}
