//! Issuer URLs of a certificate, from which a chain can be completed: Authority Information Access (RFC 5280, 4.2.2.1).
//!
//! Nothing is fetched here. The sender of a document chooses these URLs, since they are read before anything is verified. So a URL is
//! allowed only on hosts, and in folders, where Microsoft and the CAs above Microsoft's publish certificates. Certificates fetched from
//! there are not trusted either; they only complete a chain to a configured root.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// Most URLs that are looked at. Real certificates have two.
pub const URLS_LIMIT: usize = 4;

/// Longest URL that is looked at. Microsoft's have about 90 bytes.
const URL_LIMIT_BYTES: usize = 512;

/// Object identifier of the access method `id-ad-caIssuers`.
const CA_ISSUERS: &str = "1.3.6.1.5.5.7.48.2";

/// Hosts where Microsoft says that the CAs of Azure publish certificates, and in which folder.
const PLACES: [(&str, &str); 6] = [
    ("www.microsoft.com", "/pkiops/certs/"),
    ("www.microsoft.com", "/pki/mscorp/"),
    ("caissuers.microsoft.com", "/pkiops/certs/"),
    ("cacerts.digicert.com", "/"),
    ("cacerts.digicert.cn", "/"),
    ("cacerts.geotrust.com", "/"),
];

/// A URL that the gateway may fetch a CA's certificate from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedUrl(String);

impl AllowedUrl {
    /// `None` for any URL that is not on the list: another host, scheme, port or folder, or with anything else in it.
    #[must_use]
    pub fn new(url: &str) -> Option<Self> {
        // Plain HTTP is what these hosts are asked with: what comes is verified by its signature.
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        let (host, _) = rest.split_once('/')?;
        let path = rest.get(host.len()..)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'%' | b'-' | b'.' | b'_');
        let allowed = url.len() <= URL_LIMIT_BYTES
            && path.bytes().all(plain)
            && path.split('/').all(|segment| !matches!(segment, "." | ".."))
            && !path.to_ascii_lowercase().contains("%2e")
            && !path.to_ascii_lowercase().contains("%2f")
            && PLACES
                .iter()
                .any(|(allowed, folder)| host.eq_ignore_ascii_case(allowed) && path.starts_with(folder));
        allowed.then(|| Self(url.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// URLs of the issuer's certificate, from a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IssuerUrls {
    /// URLs that may be fetched, in this order.
    pub allowed: Vec<AllowedUrl>,
    /// URLs that must not be fetched; the beginning of each, for the log.
    pub refused: Vec<String>,
}

impl IssuerUrls {
    /// Reads the URLs of a certificate (DER) that need not be verified. Empty if the bytes are not a certificate.
    #[must_use]
    pub fn from_certificate(der: &[u8]) -> Self {
        let mut urls = Self::default();
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return urls;
        };
        let descriptions = certificate
            .iter_extensions()
            .filter_map(|extension| match extension.parsed_extension() {
                ParsedExtension::AuthorityInfoAccess(access) => Some(&access.accessdescs),
                _ => None,
            });
        let issuers = descriptions
            .flatten()
            .filter(|access| access.access_method.to_id_string() == CA_ISSUERS);
        for issuer in issuers.take(URLS_LIMIT) {
            let GeneralName::URI(url) = issuer.access_location else { continue };
            match AllowedUrl::new(url) {
                Some(allowed) => urls.allowed.push(allowed),
                None => urls
                    .refused
                    .push(url.chars().take(URL_LIMIT_BYTES).flat_map(char::escape_default).collect()),
            }
        }
        urls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_microsofts_pki_are_allowed() {
        for url in [
            "http://www.microsoft.com/pkiops/certs/Microsoft%20TLS%20G2%20RSA%20CA%20OCSP%2002.crt",
            "http://caissuers.microsoft.com/pkiops/certs/Microsoft%20TLS%20RSA%20Root%20G2%20-%20xsign.crt",
            "http://WWW.Microsoft.com/pki/mscorp/Microsoft%20RSA%20TLS%20CA%2001.crt",
            "https://cacerts.digicert.com/DigiCertGlobalRootG2.crt",
        ] {
            assert_eq!(AllowedUrl::new(url).as_ref().map(AllowedUrl::as_str), Some(url));
        }
    }

    #[test]
    fn attack_19_other_aia_urls_are_rejected() {
        for url in [
            "",
            "http://",
            "http:///pkiops/certs/a.crt",
            "http://www.microsoft.com",
            "http://www.microsoft.com/",
            "http://www.microsoft.com/other/a.crt",
            "http://www.microsoft.com/pkiops/certs/../../other",
            "http://www.microsoft.com/pkiops/certs/%2e%2E/other",
            "http://www.microsoft.com/pkiops/certs/..%2Fother",
            "http://www.microsoft.com/pkiops/certs/a.crt?x=http://evil.example",
            "http://www.microsoft.com/pkiops/certs/a.crt#x",
            "http://www.microsoft.com/pkiops/certs/a b.crt",
            "http://www.microsoft.com/pkiops/certs/a\r\nHost: evil.example",
            "http://www.microsoft.com:8080/pkiops/certs/a.crt",
            "http://evil.example@www.microsoft.com/pkiops/certs/a.crt",
            "http://www.microsoft.com@evil.example/pkiops/certs/a.crt",
            "http://www.microsoft.com.evil.example/pkiops/certs/a.crt",
            "http://www.microsoft.com\\@evil.example/pkiops/certs/a.crt",
            "http://169.254.169.254/pkiops/certs/a.crt",
            "http://[::1]/pkiops/certs/a.crt",
            "http://localhost/pkiops/certs/a.crt",
            "ldap://www.microsoft.com/pkiops/certs/a.crt",
            "file:///pkiops/certs/a.crt",
            "HTTP://www.microsoft.com/pkiops/certs/a.crt",
        ] {
            assert_eq!(AllowedUrl::new(url), None, "{url}");
        }
        let long = format!("http://cacerts.digicert.com/{}", "a".repeat(URL_LIMIT_BYTES));
        assert_eq!(AllowedUrl::new(&long), None);
    }
}
