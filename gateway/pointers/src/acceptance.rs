//! Verification of the gateway's certificate as a node does it: by the CAs in its pointer, and by nothing else.

use std::sync::Arc;

use attest::UnixTime;
use attest_certificates::Certificate;
use attest_system::clock::rfc3339;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use url::Host;

/// Reason why a node would refuse the gateway.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAccepted {
    /// The pointer has no CA.
    #[error("the pointer has no CA: a node cannot trust any gateway")]
    NoAuthority,
    /// None of its CAs is valid at that time. Verifiers in Go, such as Ignition, check a CA's dates too.
    #[error("no CA in the pointer is valid at {}", rfc3339(*.now))]
    NoCurrentAuthority { now: u64 },
    /// The host cannot be named by a certificate.
    #[error("{0:?} cannot be the name of a server")]
    Host(String),
    /// It trusts other CAs than the one that signed the certificate.
    #[error("none of the pointer's CAs has signed it")]
    OtherAuthority,
    /// The certificate does not hold for this node.
    #[error("{0}")]
    Certificate(String),
}

/// Checks that a node that trusts exactly these CAs accepts the chain for a host at `now`.
///
/// # Errors
/// [`NotAccepted`].
pub fn accepts<'a>(
    authorities: impl Iterator<Item = &'a Certificate>,
    chain: &[Certificate],
    host: &Host<&str>,
    now: UnixTime,
) -> Result<(), NotAccepted> {
    let refused = |error: &dyn ToString| NotAccepted::Certificate(error.to_string());
    let mut any = false;
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        any = true;
        if authority.is_current(now) {
            // One that is no CA at all is none that anything chains to.
            drop(roots.add(authority.der.clone()));
        }
    }
    match (any, roots.is_empty()) {
        (false, _) => return Err(NotAccepted::NoAuthority),
        (true, true) => return Err(NotAccepted::NoCurrentAuthority { now: now.as_secs() }),
        (true, false) => {}
    }
    let server = match host {
        Host::Domain(name) => ServerName::try_from(*name).map_err(|_| NotAccepted::Host((*name).to_owned()))?,
        Host::Ipv4(address) => ServerName::from(std::net::IpAddr::from(*address)),
        Host::Ipv6(address) => ServerName::from(std::net::IpAddr::from(*address)),
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(aws_lc_rs::default_provider()))
        .build()
        .map_err(|error| refused(&error))?;
    let (leaf, intermediates) = chain.split_first().ok_or_else(|| refused(&"there is no certificate"))?;
    let intermediates: Vec<CertificateDer<'_>> = intermediates.iter().map(|certificate| certificate.der.clone()).collect();
    verifier
        .verify_server_cert(&leaf.der, &intermediates, &server, &[], now)
        .map(drop)
        .map_err(|error| match error {
            // The second of a CA of the same name.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => NotAccepted::OtherAuthority,
            error => refused(&error),
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use time::OffsetDateTime;

    use super::*;

    const NOW: i64 = 2_000_000_000;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    fn params(names: &[&str], common_name: &str, from: i64, until: i64) -> CertificateParams {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = at(from);
        params.not_after = at(until);
        params
    }

    /// A CA that is valid for that time, and a certificate by it.
    fn made(common_name: &str, from: i64, until: i64, names: &[&str]) -> (Certificate, Certificate) {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = params(&[], common_name, from, until);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let mut leaf = params(names, "leaf", NOW - 100, NOW + 100);
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key)).unwrap();
        let parse = |certificate: &rcgen::Certificate| Certificate::parse(certificate.der().clone()).unwrap();
        (parse(&ca.self_signed(&ca_key).unwrap()), parse(&leaf))
    }

    #[test]
    fn node_trusts_only_the_authorities_in_its_pointer() {
        let (ca, leaf) = made("one", NOW - 1000, NOW + 1000, &["a.example", "192.0.2.1", "2001:db8::1"]);
        let (other, _) = made("two", NOW - 1000, NOW + 1000, &["a.example"]);
        let (expired, by_expired) = made("three", NOW - 1000, NOW - 1, &["a.example"]);
        let check = |authorities: &[&Certificate], leaf: &Certificate, url: &str, now: i64, expected: Result<(), &str>| {
            let url = url::Url::parse(url).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
            let found = accepts(authorities.iter().copied(), std::slice::from_ref(leaf), &url.host().unwrap(), now);
            match (&found, expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                _ => panic!("{url}: {found:?}"),
            }
        };
        let good = "https://a.example:1/";
        for url in [good, "https://A.EXAMPLE/", "https://192.0.2.1:1", "https://[2001:db8::1]/"] {
            check(&[&ca], &leaf, url, NOW, Ok(()));
        }
        check(&[&other, &ca], &leaf, good, NOW, Ok(()));
        check(&[&expired, &ca], &leaf, good, NOW, Ok(()));
        check(&[], &leaf, good, NOW, Err("no CA"));
        check(&[&other], &leaf, good, NOW, Err("none of the pointer's CAs"));
        let (namesake, _) = made("one", NOW - 1000, NOW + 1000, &["a.example"]);
        check(&[&namesake], &leaf, good, NOW, Err("none of the pointer's CAs"));
        check(&[&namesake, &ca], &leaf, good, NOW, Ok(()));
        check(&[&expired], &by_expired, good, NOW, Err("no CA in the pointer is valid at 2033-"));
        check(&[&ca], &leaf, "https://b.example", NOW, Err("b.example"));
        check(&[&ca], &leaf, "https://192.0.2.2", NOW, Err("192.0.2.2"));
        check(&[&ca], &leaf, "https://[2001:db8::2]", NOW, Err("2001:db8::2"));
        check(&[&ca], &leaf, "https://-_-", NOW, Err(""));
        check(&[&ca], &leaf, good, NOW + 101, Err("expired"));
        check(&[&ca], &leaf, good, NOW - 101, Err("not valid yet"));
        check(&[&ca], &ca, good, NOW, Err(""));
    }
}
