//! The CAs that the pointer trusts: the only ones that this program trusts.

use aws_lc_rs::digest;
use data_encoding::HEXLOWER_PERMISSIVE;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

use super::data_url;
use super::{Pointer, PointerError};

/// Maximum number of certificates in a pointer. Two are usual while a CA is being replaced.
const CERTIFICATES_LIMIT: usize = 64;

impl Pointer {
    /// The certificates in `ignition.security.tls.certificateAuthorities`, which must be data URLs: to fetch a CA over the
    /// network one would have to trust that network already.
    ///
    /// # Errors
    /// [`PointerError::NoAuthority`]; [`PointerError::Authority`] for one that Ignition would refuse, too.
    pub fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, PointerError> {
        let mut certificates = Vec::new();
        for (index, authority) in self.listed_authorities().iter().enumerate() {
            let wrong = |problem: String| PointerError::Authority { index, problem };
            let Some(source) = authority.get("source").and_then(Value::as_str) else {
                continue;
            };
            if is_remote(source) {
                continue;
            }
            let pem = data_url::content(source, authority.get("compression").and_then(Value::as_str)).map_err(wrong)?;
            if let Some(hash) = authority.pointer("/verification/hash").and_then(Value::as_str) {
                verify(&pem, hash).map_err(wrong)?;
            }
            let before = certificates.len();
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                certificates.push(certificate.map_err(|error| wrong(format!("is not PEM: {error}")))?);
            }
            if certificates.len() == before {
                return Err(wrong("holds no PEM certificate".to_owned()));
            }
            if certificates.len() > CERTIFICATES_LIMIT {
                return Err(wrong(format!("makes more than {CERTIFICATES_LIMIT} certificates")));
            }
        }
        if certificates.is_empty() {
            Err(self.authority_left_out().unwrap_or(PointerError::NoAuthority))
        } else {
            Ok(certificates)
        }
    }

    /// The first of them that [`Pointer::authorities`] leaves out, and Ignition does not: it fetches it.
    #[must_use]
    pub fn authority_left_out(&self) -> Option<PointerError> {
        let sources = self.listed_authorities().iter().map(|authority| authority.get("source"));
        let index = sources
            .map(|source| source.and_then(Value::as_str))
            .position(|source| source.is_some_and(is_remote))?;
        let problem = "is not a data URL, and no other CA is available".to_owned();
        Some(PointerError::Authority { index, problem })
    }

    fn listed_authorities(&self) -> &[Value] {
        self.config
            .pointer("/ignition/security/tls/certificateAuthorities")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }
}

fn is_remote(source: &str) -> bool {
    !source.starts_with("data:")
}

/// `sha512-<hex>` or `sha256-<hex>`, of the content after decompression.
fn verify(content: &[u8], hash: &str) -> Result<(), String> {
    let (name, expected) = hash
        .split_once('-')
        .ok_or("has a verification.hash that is not <algorithm>-<hexadecimal>")?;
    let algorithm = match name {
        "sha512" => &digest::SHA512,
        "sha256" => &digest::SHA256,
        _ => return Err("has a verification.hash that is neither sha512 nor sha256".to_owned()),
    };
    let expected = HEXLOWER_PERMISSIVE
        .decode(expected.as_bytes())
        .map_err(|_| "has a verification.hash that is not hexadecimal".to_owned())?;
    if digest::digest(algorithm, content).as_ref() == expected {
        Ok(())
    } else {
        Err("does not match its verification.hash".to_owned())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use data_encoding::{BASE64, HEXLOWER};
    use serde_json::json;

    use super::*;

    fn pem() -> String {
        rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem()
    }

    fn check(authorities: &Value, expect: Result<usize, &str>) {
        let config = json!({ "ignition": { "version": "3.2.0", "security": { "tls": { "certificateAuthorities": authorities } } } });
        let found = Pointer::parse(config.to_string().as_bytes()).unwrap().authorities();
        assert_eq!(
            found.map(|certificates| certificates.len()).map_err(|error| error.to_string()),
            expect.map_err(str::to_owned),
            "{authorities}"
        );
    }

    fn data(pem: &str) -> String {
        format!("data:text/plain;charset=utf-8;base64,{}", BASE64.encode(pem.as_bytes()))
    }

    #[test]
    fn authorities_come_from_data_urls_only() {
        let one = data(&pem());
        let two = data(&format!("{}\n{}", pem(), pem()));
        let none = PointerError::NoAuthority.to_string();
        let wrong = |index, problem: &str| {
            PointerError::Authority {
                index,
                problem: problem.to_owned(),
            }
            .to_string()
        };
        check(&json!([{"source": one}]), Ok(1));
        check(&json!([{"source": one}, {"source": two}]), Ok(3));
        check(&json!([{"source": one}, {"source": "https://a/ca.pem"}]), Ok(1));
        check(&json!([{"source": one}, {"source": null}, {}, 7]), Ok(1));
        check(&json!([]), Err(&none));
        check(&json!(null), Err(&none));
        check(&json!({}), Err(&none));
        check(
            &json!([{"source": "https://a/ca.pem"}]),
            Err(&wrong(0, "is not a data URL, and no other CA is available")),
        );
        check(
            &json!([{"source": one}, {"source": "data:,nothing"}]),
            Err(&wrong(1, "holds no PEM certificate")),
        );
        check(
            &json!([{"source": one, "compression": "gzip"}]),
            Err(&wrong(0, "cannot be decompressed: invalid gzip header")),
        );
        check(
            &json!([{"source": data(&pem().repeat(65))}]),
            Err(&wrong(0, "makes more than 64 certificates")),
        );
    }

    #[test]
    fn verification_hashes_are_enforced() {
        let pem = pem();
        let (source, sha256) = (
            data(&pem),
            HEXLOWER.encode(digest::digest(&digest::SHA256, pem.as_bytes()).as_ref()),
        );
        let sha512 = HEXLOWER.encode(digest::digest(&digest::SHA512, pem.as_bytes()).as_ref());
        let with = |hash: String| json!([{"source": source, "verification": {"hash": hash}}]);
        let wrong = |problem: &str| {
            PointerError::Authority {
                index: 0,
                problem: problem.to_owned(),
            }
            .to_string()
        };
        check(&with(format!("sha256-{sha256}")), Ok(1));
        check(&with(format!("sha512-{sha512}")), Ok(1));
        check(
            &with(format!("sha512-{sha256}")),
            Err(&wrong("does not match its verification.hash")),
        );
        check(
            &with(format!("sha256-{}", "0".repeat(64))),
            Err(&wrong("does not match its verification.hash")),
        );
        check(
            &with(format!("md5-{sha256}")),
            Err(&wrong("has a verification.hash that is neither sha512 nor sha256")),
        );
        check(
            &with("sha256-zz".to_owned()),
            Err(&wrong("has a verification.hash that is not hexadecimal")),
        );
        check(
            &with(sha256),
            Err(&wrong("has a verification.hash that is not <algorithm>-<hexadecimal>")),
        );
    }
}
