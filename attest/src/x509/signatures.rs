//! Signature algorithms as certificates name them.

use rustls_pki_types::SignatureVerificationAlgorithm;

/// AlgorithmIdentifiers (their contents) that mean the same: without parameters, and with NULL.
///
/// Issuers have to write one of the two, and RFC 4055 (5) has receivers take both for RSA (PKCS #1). For ECDSA RFC 5758 (3.2) has no parameters;
/// Intel's CA for on-die TPMs is signed with NULL, and OpenSSL takes it. Nothing depends on them: NULL has no content. Algorithms whose
/// parameters do say something (RSASSA-PSS) have one form, and so has Ed25519 (RFC 8410, 3).
static FORMS: [(&[u8], &[u8]); 6] = [
    // ecdsa-with-SHA256, ecdsa-with-SHA384, ecdsa-with-SHA512 (RFC 5758).
    (
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02",
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02\x05\x00",
    ),
    (
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03",
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03\x05\x00",
    ),
    (
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x04",
        b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x04\x05\x00",
    ),
    // sha256WithRSAEncryption, sha384WithRSAEncryption, sha512WithRSAEncryption (RFC 4055).
    (
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b",
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00",
    ),
    (
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c",
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c\x05\x00",
    ),
    (
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d",
        b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d\x05\x00",
    ),
];

/// The other form of the content of an AlgorithmIdentifier, if it has one.
pub(super) fn other_form(content: &[u8]) -> Option<&'static [u8]> {
    FORMS.iter().find_map(|&(absent, null)| match content {
        _ if content == absent => Some(null),
        _ if content == null => Some(absent),
        _ => None,
    })
}

/// Returns whether a certificate signed with `named`, the content of its AlgorithmIdentifier, is signed with this algorithm.
pub(crate) fn is_named(algorithm: &dyn SignatureVerificationAlgorithm, named: &[u8]) -> bool {
    let own = algorithm.signature_alg_id();
    own.as_ref() == named || other_form(own.as_ref()) == Some(named)
}

#[cfg(test)]
mod tests {
    use webpki::aws_lc_rs as algorithms;

    use super::*;

    #[test]
    fn algorithm_identifiers_accept_null_or_absent_parameters() {
        let name = |algorithm: &dyn SignatureVerificationAlgorithm| algorithm.signature_alg_id().as_ref().to_vec();
        for algorithm in [
            algorithms::ECDSA_P256_SHA256,
            algorithms::ECDSA_P384_SHA384,
            algorithms::ECDSA_P521_SHA512,
            algorithms::RSA_PKCS1_2048_8192_SHA256,
            algorithms::RSA_PKCS1_2048_8192_SHA384,
            algorithms::RSA_PKCS1_2048_8192_SHA512,
        ] {
            let own = name(algorithm);
            let absent = own.strip_suffix(b"\x05\x00").unwrap_or(&own);
            assert!(is_named(algorithm, absent));
            assert!(is_named(algorithm, &[absent, b"\x05\x00"].concat()));
            // Parameters of any other kind, twice NULL, and another algorithm.
            for parameters in [b"\x05\x01\x00".as_slice(), b"\x30\x00", b"\x05\x00\x05\x00", b"\x05"] {
                assert!(!is_named(algorithm, &[absent, parameters].concat()), "{algorithm:?} {parameters:?}");
            }
            assert!(!is_named(algorithm, &name(algorithms::ED25519)));
        }
        assert!(!is_named(algorithms::ECDSA_P256_SHA256, &name(algorithms::ECDSA_P256_SHA384)));
        for algorithm in [algorithms::ED25519, algorithms::RSA_PSS_2048_8192_SHA256_LEGACY_KEY] {
            assert!(is_named(algorithm, &name(algorithm)));
            assert!(!is_named(algorithm, &[name(algorithm), b"\x05\x00".to_vec()].concat()));
        }
    }
}
