//! Verification of a server's certificate as Go does it, which Ignition is written in, in cases that webpki judges differently
//! (`Certificate.Verify` and `isValid`, in `src/crypto/x509/verify.go` of golang/go). Go checks dates and name first, then looks for the
//! issuer, and checks basicConstraints of issuers only. A certificate that is trusted itself needs no issuer (`opts.Roots.contains` there).

use attest_tls::ServerChain;
use rustls::CertificateError;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, IpAddr, ServerName, UnixTime};
use x509_parser::der_parser::Oid;
use x509_parser::oid_registry::{
    OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER, OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_CRL_DISTRIBUTION_POINTS, OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE, OID_X509_EXT_NAME_CONSTRAINTS,
    OID_X509_EXT_SUBJECT_ALT_NAME, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate, X509Version};

/// Maximum number of certificates considered among those that a server sends with its own.
const SENT_LIMIT: usize = 8;
/// Extensions that Go knows, and may be critical (`processExtensions` in `src/crypto/x509/parser.go`): key usage, alternative names, basic
/// constraints, name constraints, CRL distribution points, policies, authority key identifier, extended key usage, subject key identifier.
/// Newer releases know some more.
const KNOWN_TO_GO: [Oid<'static>; 9] = [
    OID_X509_EXT_KEY_USAGE,
    OID_X509_EXT_SUBJECT_ALT_NAME,
    OID_X509_EXT_BASIC_CONSTRAINTS,
    OID_X509_EXT_NAME_CONSTRAINTS,
    OID_X509_EXT_CRL_DISTRIBUTION_POINTS,
    OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER,
    OID_X509_EXT_EXTENDED_KEY_USAGE,
    OID_X509_EXT_SUBJECT_KEY_IDENTIFIER,
];

/// Server certificate that webpki has refused, with the context of its verification.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedChain<'a> {
    leaf: &'a CertificateDer<'a>,
    sent: &'a [CertificateDer<'a>],
    name: &'a ServerName<'a>,
    now: UnixTime,
}

impl<'a> RefusedChain<'a> {
    pub(super) const fn new(shown: &ServerChain<'a>) -> Self {
        Self {
            leaf: shown.certificate,
            sent: shown.intermediates,
            name: shown.name,
            now: shown.now,
        }
    }
}

impl RefusedChain<'_> {
    /// Returns whether Go may accept it with trust in these authorities or, unless `are_all`, in others that are not known here. webpki
    /// checks much of a certificate before it looks for the issuer. So its error for a certificate of an unknown issuer says nothing about
    /// Go.
    pub(super) fn may_be_taken(&self, error: &CertificateError, authorities: &[CertificateDer<'_>], are_all: bool) -> bool {
        !self.is_refused_by_itself()
            && match error {
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
                | CertificateError::Expired
                | CertificateError::ExpiredContext { .. } => false,
                CertificateError::UnknownIssuer | CertificateError::BadSignature => !are_all,
                _ => !are_all || self.leads_to(authorities),
            }
    }

    /// Returns whether Go refuses the leaf itself, regardless of its issuer.
    fn is_refused_by_itself(&self) -> bool {
        let Ok((_, leaf)) = X509Certificate::from_der(self.leaf) else {
            return true;
        };
        !has_name(&leaf, self.name) || !is_read_by_go(&leaf) || check_dates(&leaf, self.now).is_err() || !is_for_servers(&leaf)
    }

    /// Returns whether the leaf itself is among these authorities.
    pub(super) fn is_one_of(&self, authorities: &[CertificateDer<'_>]) -> bool {
        authorities.iter().any(|authority| authority == self.leaf)
    }

    /// Performs the remaining checks of a certificate that is trusted itself: dates, name, purpose.
    pub(super) fn verify_trusted(&self) -> Result<(), rustls::Error> {
        let parsed = ParsedCertificate::try_from(self.leaf)?;
        let (_, leaf) = X509Certificate::from_der(self.leaf).map_err(|_| CertificateError::BadEncoding)?;
        check_dates(&leaf, self.now)?;
        verify_server_name(&parsed, self.name)?;
        match is_for_servers(&leaf) {
            true => Ok(()),
            false => Err(CertificateError::InvalidPurpose.into()),
        }
    }

    /// Returns whether one of these authorities is the leaf, or has issued it, directly or through the certificates that were sent with it.
    fn leads_to(&self, authorities: &[CertificateDer<'_>]) -> bool {
        let mut left: Vec<_> = self.sent.iter().take(SENT_LIMIT).collect();
        let mut last = self.leaf;
        loop {
            let Ok((_, parsed)) = X509Certificate::from_der(last) else {
                return false;
            };
            let has_issued = |other: &CertificateDer<'_>, rank| has_issued(other, &parsed, rank, self.now);
            if authorities
                .iter()
                .any(|authority| authority == last || has_issued(authority, IssuerPosition::Authority))
            {
                return true;
            }
            match left.iter().position(|other| has_issued(other, IssuerPosition::Between)) {
                Some(position) => last = left.swap_remove(position),
                None => return false,
            }
        }
    }
}

fn check_dates(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let validity = certificate.validity();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet);
    }
    match now > validity.not_after.timestamp() {
        true => Err(CertificateError::Expired),
        false => Ok(()),
    }
}

/// Returns whether its extended key usage is absent, or allows servers or any use.
fn is_for_servers(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.extended_key_usage().ok().flatten();
    usage.is_none_or(|usage| usage.value.any || usage.value.server_auth)
}

/// Returns whether one of its subject alternative names matches. The subject's common name does not count.
fn has_name(certificate: &X509Certificate<'_>, name: &ServerName<'_>) -> bool {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    names.value.general_names.iter().any(|found| match (found, name) {
        (GeneralName::DNSName(found), ServerName::DnsName(name)) => is_dns_name(found, name.as_ref()),
        (GeneralName::IPAddress(found), ServerName::IpAddress(IpAddr::V4(address))) => *found == address.as_ref(),
        (GeneralName::IPAddress(found), ServerName::IpAddress(IpAddr::V6(address))) => *found == address.as_ref(),
        _ => false,
    })
}

/// Matches a DNS name. `*` stands for one whole label, the first.
fn is_dns_name(found: &str, name: &str) -> bool {
    let (found, name) = (found.trim_end_matches('.'), name.trim_end_matches('.'));
    let below = |name: &str| name.split_once('.').map(|(_, below)| below.to_owned());
    match found.strip_prefix("*.") {
        Some(found) => below(name).is_some_and(|name| name.eq_ignore_ascii_case(found)),
        None => found.eq_ignore_ascii_case(name),
    }
}

/// Returns whether Go can read it: Go refuses unknown critical extensions.
fn is_read_by_go(certificate: &X509Certificate<'_>) -> bool {
    certificate
        .extensions()
        .iter()
        .all(|extension| !extension.critical || KNOWN_TO_GO.contains(&extension.oid))
}

/// Position of an issuer in the chain.
#[derive(Clone, Copy)]
enum IssuerPosition {
    Authority,
    Between,
}

/// Returns whether it may issue certificates now: it is a CA's certificate. An authority of version 1 does not say so.
fn may_issue(issuer: &X509Certificate<'_>, rank: IssuerPosition, now: UnixTime) -> bool {
    let is_ca = match (issuer.basic_constraints(), rank) {
        (Ok(Some(constraints)), _) => constraints.value.ca,
        (Ok(None), IssuerPosition::Authority) => issuer.version() != X509Version::V3,
        _ => false,
    };
    let signs = issuer
        .key_usage()
        .ok()
        .is_some_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    is_ca && signs && is_read_by_go(issuer) && is_for_servers(issuer) && check_dates(issuer, now).is_ok()
}

/// Returns whether the issuer has signed the certificate, and may. The key's algorithm is found by trying.
fn has_issued(issuer: &CertificateDer<'_>, certificate: &X509Certificate<'_>, rank: IssuerPosition, now: UnixTime) -> bool {
    let Ok((_, issuer)) = X509Certificate::from_der(issuer) else {
        return false;
    };
    if !may_issue(&issuer, rank, now) {
        return false;
    }
    let key = &issuer.public_key().subject_public_key.data;
    let (signed, signature) = (certificate.tbs_certificate.as_ref(), &certificate.signature_value.data);
    issuer.subject().as_raw() == certificate.issuer().as_raw()
        && attest_tls::provider()
            .signature_verification_algorithms
            .all
            .iter()
            .any(|algorithm| algorithm.verify_signature(key, signed, signature).is_ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    };

    use super::*;

    struct Ca {
        issuer: Issuer<'static, KeyPair>,
        der: CertificateDer<'static>,
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// A CA by itself or by another one.
    fn ca(name: &str, by: Option<&Ca>) -> Ca {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = match by {
            Some(by) => params.signed_by(&key, &by.issuer).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        Ca {
            der: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    fn leaf(by: &Ca) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        params("leaf").signed_by(&key, &by.issuer).unwrap().der().clone()
    }

    /// webpki's error for a CA certificate that is presented by a server.
    const OTHER: CertificateError = CertificateError::InvalidPurpose;

    fn may_be_taken(leaf: &CertificateDer<'_>, sent: &[&Ca], authorities: &[&Ca], name: &str, error: &CertificateError) -> bool {
        let ders = |all: &[&Ca]| all.iter().map(|ca| ca.der.clone()).collect::<Vec<_>>();
        let presented = RefusedChain {
            leaf,
            sent: &ders(sent),
            name: &ServerName::try_from(name).unwrap(),
            now: UnixTime::now(),
        };
        presented.may_be_taken(error, &ders(authorities), true)
    }

    #[test]
    fn chain_without_a_trusted_root_is_never_accepted() {
        let (root, other) = (ca("root", None), ca("other", None));
        let (between, namesake) = (ca("between", Some(&root)), ca("root", None));
        let check = |leaf: &CertificateDer<'_>, sent: &[&Ca], authorities: &[&Ca], expect: bool| {
            assert_eq!(may_be_taken(leaf, sent, authorities, "a.example", &OTHER), expect);
        };
        check(&leaf(&root), &[], &[&other, &root], true);
        check(&root.der, &[], &[&root], true);
        check(&between.der, &[], &[&root], true);
        check(&leaf(&between), &[&other, &between], &[&root], true);
        check(&leaf(&between), &[], &[&root], false);
        check(&leaf(&root), &[], &[&other], false);
        check(&leaf(&root), &[&root], &[&other], false);
        // What stands in a certificate says nothing of who has signed it.
        check(&leaf(&namesake), &[], &[&root], false);
        check(&leaf(&namesake), &[&root], &[&root], false);
        check(&leaf(&namesake), &[&namesake], &[&root], false);
        check(&other.der, &[&root], &[&root], false);
        for garbage in [&[][..], &[0x30], b"garbage", &[0x30, 0x82, 0xff, 0xff]] {
            check(&CertificateDer::from(garbage), &[&root], &[&root], false);
        }
        let mut cut = leaf(&root).to_vec();
        cut.pop();
        check(&cut.into(), &[], &[&root], false);
    }

    #[test]
    fn non_ca_intermediates_cannot_issue() {
        let root = ca("root", None);
        // Somebody with a certificate for another name signs one for this.
        let issued_by = |alter: &dyn Fn(&mut CertificateParams), expect: bool| {
            let mut of_between = params("between");
            of_between.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            alter(&mut of_between);
            let key = KeyPair::generate().unwrap();
            let der = of_between.signed_by(&key, &root.issuer).unwrap().der().clone();
            let between = Ca {
                issuer: Issuer::new(of_between, key),
                der,
            };
            assert_eq!(may_be_taken(&leaf(&between), &[&between], &[&root], "a.example", &OTHER), expect);
        };
        issued_by(&|_| {}, true);
        issued_by(&|params| params.is_ca = IsCa::NoCa, false);
        issued_by(&|params| params.is_ca = IsCa::ExplicitNoCa, false);
        issued_by(&|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature], false);
        issued_by(&|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign], true);
        issued_by(
            &|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
            false,
        );
        issued_by(&|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1), false);
        issued_by(&|params| params.not_before = rcgen::date_time_ymd(2090, 1, 1), false);
        issued_by(&|params| params.custom_extensions.push(unknown()), false);
    }

    /// Returns a critical extension that is not registered.
    fn unknown() -> CustomExtension {
        let mut unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
        unknown.set_criticality(true);
        unknown
    }

    #[test]
    fn names_are_read_from_certificates_webpki_rejects() {
        let root = ca("root", None);
        let with = |names: &[&str], extension: Option<CustomExtension>| {
            let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
            params.custom_extensions.extend(extension);
            let key = KeyPair::generate().unwrap();
            params.signed_by(&key, &root.issuer).unwrap().der().clone()
        };
        // webpki refuses policies that are critical, and Go reads them.
        let policies = || {
            let any_policy = vec![0x30, 0x08, 0x30, 0x06, 0x06, 0x04, 0x55, 0x1d, 0x20, 0x00];
            let mut policies = CustomExtension::from_oid_content(&[2, 5, 29, 32], any_policy);
            policies.set_criticality(true);
            policies
        };
        let check = |names: &[&str], extension: Option<CustomExtension>, name: &str, expect: bool| {
            assert_eq!(
                may_be_taken(&with(names, extension), &[], &[&root], name, &OTHER),
                expect,
                "{names:?} {name}"
            );
        };
        for (names, name, expect) in [
            (["a.example"].as_slice(), "a.example", true),
            (&["A.Example"], "a.example", true),
            (&["b.example"], "a.example", false),
            (&["b.example", "*.example"], "a.example", true),
            (&["*.example"], "a.b.example", false),
            (&["*.example"], "example", false),
            (&["192.0.2.1"], "192.0.2.1", true),
            (&["192.0.2.1"], "192.0.2.2", false),
            (&["2001:db8::1"], "2001:db8::1", true),
            (&[], "a.example", false),
        ] {
            check(names, Some(policies()), name, expect);
            check(names, None, name, expect);
            check(names, Some(unknown()), name, false);
        }
    }

    #[test]
    fn trusted_issuer_does_not_excuse_leaf_defects() {
        let root = ca("root", None);
        let leaf = leaf(&root);
        assert!(may_be_taken(&leaf, &[], &[&root], "a.example", &OTHER));
        assert!(!may_be_taken(&leaf, &[], &[&root], "b.example", &OTHER));
        for error in [
            CertificateError::Expired,
            CertificateError::NotValidYet,
            CertificateError::NotValidForName,
            CertificateError::UnknownIssuer,
            CertificateError::BadSignature,
        ] {
            assert!(!may_be_taken(&leaf, &[], &[&root], "a.example", &error), "{error:?}");
        }
    }

    #[test]
    fn trusted_leaf_is_checked_for_dates_name_usage() {
        let root = ca("root", None);
        let verify = |name: &str, now: u64| {
            let presented = RefusedChain {
                leaf: &root.der,
                sent: &[],
                name: &ServerName::try_from(name).unwrap(),
                now: UnixTime::since_unix_epoch(std::time::Duration::from_secs(now)),
            };
            presented.verify_trusted()
        };
        let refused = |name: &str, now: u64| match verify(name, now) {
            Err(rustls::Error::InvalidCertificate(error)) => Some(error),
            _ => None,
        };
        assert_eq!(verify("a.example", 1_800_000_000), Ok(()));
        assert_eq!(refused("a.example", 1), Some(CertificateError::NotValidYet));
        assert_eq!(refused("a.example", 100_000_000_000), Some(CertificateError::Expired));
        assert!(matches!(
            refused("b.example", 1_800_000_000),
            Some(CertificateError::NotValidForNameContext { .. })
        ));
    }
}
