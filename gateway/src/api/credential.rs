//! Credential of a config request: a ticket, a token, a client certificate, or nothing. Anything else is refused: an unreadable credential
//! never counts as none.

use attest::protocol::{CLAIMANT_HEADER, TICKET_PREFIX};
use attest_certificates::kubelet::PresentedCertificate;
use axum::http::{HeaderMap, Uri, header};
use zeroize::Zeroizing;

use super::problem::Refusal;
use crate::credentials::tokens::Claimant;

/// Longest credential: a ticket is a few hundred characters.
const CREDENTIAL_LIMIT_BYTES: usize = 4096;

/// The one credential of a request.
pub(super) enum RequestCredential {
    Ticket(Zeroizing<String>),
    Token(Zeroizing<String>, Option<Claimant>),
    Certificate(PresentedCertificate),
    Nothing,
}

impl RequestCredential {
    /// Reads the credential from `Authorization: Bearer …` or `?token=…`, or takes what was presented in the handshake.
    pub(super) fn read(headers: &HeaderMap, uri: &Uri, presented: Option<&PresentedCertificate>) -> Result<Self, Refusal> {
        let mut shown: Vec<Zeroizing<String>> = Vec::new();
        for value in headers.get_all(header::AUTHORIZATION) {
            let text = value
                .to_str()
                .map_err(|_| Refusal::credential_malformed("the Authorization header is not text"))?;
            let (scheme, credential) = text.split_once(' ').unwrap_or((text, ""));
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(Refusal::credential_malformed("the Authorization header's scheme is not Bearer"));
            }
            shown.push(Zeroizing::new(credential.to_owned()));
        }
        // A `+` in a URL is a `+` (RFC 3986), and one of Base64's characters: only forms take it for a space, which no credential has.
        let query = Zeroizing::new(uri.query().unwrap_or_default().replace('+', "%2B"));
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if key == "token" {
                shown.push(Zeroizing::new(value.into_owned()));
            }
        }
        let mut shown = shown.into_iter();
        let Some(text) = shown.next() else {
            return Ok(presented.map_or(Self::Nothing, |presented| Self::Certificate(presented.clone())));
        };
        if shown.next().is_some() || presented.is_some() {
            return Err(Refusal::credential_ambiguous());
        }
        if text.is_empty() || text.len() > CREDENTIAL_LIMIT_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Refusal::credential_malformed(
                "the credential is empty, too long, or holds other than printable characters",
            ));
        }
        Ok(if text.starts_with(TICKET_PREFIX) {
            Self::Ticket(text)
        } else {
            Self::Token(text, claimant(headers)?)
        })
    }
}

/// Returns the claimant of a token, if the request names one.
fn claimant(headers: &HeaderMap) -> Result<Option<Claimant>, Refusal> {
    let mut values = headers.get_all(CLAIMANT_HEADER).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::claimant_ambiguous());
    }
    let claimant = Claimant::read(value.as_bytes());
    claimant.map(Some).ok_or_else(Refusal::claimant_malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(authorization: &[&str], uri: &str) -> Result<String, &'static str> {
        read_with(authorization, uri, None)
    }

    fn read_with(authorization: &[&str], uri: &str, presented: Option<&PresentedCertificate>) -> Result<String, &'static str> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        match RequestCredential::read(&headers, &uri.parse().unwrap(), presented) {
            Ok(RequestCredential::Ticket(text)) => Ok(format!("ticket {}", *text)),
            Ok(RequestCredential::Token(text, _)) => Ok(format!("token {}", *text)),
            Ok(RequestCredential::Certificate(_)) => Ok("certificate".to_owned()),
            Ok(RequestCredential::Nothing) => Ok("nothing".to_owned()),
            Err(refusal) => Err(refusal.code()),
        }
    }

    #[test]
    fn attack_09_refuses_malformed_credentials() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(read(&[], "/config/worker"), ok("nothing"));
        assert_eq!(read(&[], "/config/worker?role=x"), ok("nothing"));
        assert_eq!(read(&["Bearer ticket.abc"], "/config/worker"), ok("ticket ticket.abc"));
        assert_eq!(read(&["bearer abc"], "/config/worker"), ok("token abc"));
        assert_eq!(read(&[], "/config/worker?token=abc"), ok("token abc"));
        assert_eq!(read(&[], "/config/worker?%74oken=abc"), ok("token abc"));
        // As `base64` prints, whether its characters were encoded or not.
        for query in ["a+b/c==", "a%2Bb%2Fc%3D%3D", "a%2bb/c%3d="] {
            assert_eq!(read(&[], &format!("/config/worker?token={query}")), ok("token a+b/c=="), "{query}");
        }
        assert_eq!(read(&["Bearer a+b/c=="], "/config/worker"), ok("token a+b/c=="));
        assert_eq!(read(&[], "/config/worker?token=a%20b"), Err("credential-malformed"));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Basic abc",
            "Bearer  abc",
            "Bearer a b",
            "Bearer\tabc",
            "abc",
            "Bearer=abc",
        ] {
            assert_eq!(read(&[bad], "/config/worker"), Err("credential-malformed"), "{bad:?}");
        }
        assert_eq!(
            read(&[&format!("Bearer {}", "x".repeat(5000))], "/config/worker"),
            Err("credential-malformed")
        );
        assert_eq!(read(&[], "/config/worker?token="), Err("credential-malformed"));
        assert_eq!(read(&[], "/config/worker?token"), Err("credential-malformed"));
        assert_eq!(read(&["Bearer abc", "Bearer def"], "/config/worker"), Err("credential-ambiguous"));
        assert_eq!(read(&["Bearer abc"], "/config/worker?token=abc"), Err("credential-ambiguous"));
        assert_eq!(read(&[], "/config/worker?token=abc&token=abc"), Err("credential-ambiguous"));
        assert_eq!(read(&["Basic abc"], "/config/worker?token=abc"), Err("credential-malformed"));
    }

    #[test]
    fn attack_09_refuses_a_token_with_a_malformed_claim() {
        let good = "A".repeat(43);
        let read = |claimants: &[&str], authorization: Option<&str>| {
            let mut headers = HeaderMap::new();
            for claimant in claimants {
                headers.append(CLAIMANT_HEADER, claimant.parse().unwrap());
            }
            if let Some(authorization) = authorization {
                headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
            }
            match RequestCredential::read(&headers, &"/config/worker".parse().unwrap(), None) {
                Ok(RequestCredential::Token(_, claimant)) => Ok(claimant.is_some()),
                Ok(_) => Ok(false),
                Err(refusal) => Err(refusal.code()),
            }
        };
        assert_eq!(read(&[&good], Some("Bearer token")), Ok(true));
        assert_eq!(read(&[], Some("Bearer token")), Ok(false));
        for bad in ["", "x", "\u{e4}", &"A".repeat(42), &"A".repeat(44)] {
            assert_eq!(read(&[bad], Some("Bearer token")), Err("credential-malformed"), "{bad}");
            // It says nothing about anything else.
            assert_eq!(read(&[bad, &good], Some("Bearer ticket.abc")), Ok(false));
            assert_eq!(read(&[bad], None), Ok(false));
        }
        for two in [[good.as_str(), &good], [&good, "x"], ["x", &good]] {
            assert_eq!(read(&two, Some("Bearer token")), Err("credential-ambiguous"));
        }
    }

    #[test]
    fn attack_09_refuses_a_client_certificate_with_another_credential() {
        for presented in [
            PresentedCertificate::new(&[b"garbage".as_slice().into()]),
            PresentedCertificate::new(&[]),
        ] {
            let read = |authorization: &[&str], uri| read_with(authorization, uri, Some(&presented));
            assert_eq!(
                read(&[], "/config/worker"),
                Ok("certificate".to_owned()),
                "unreadable or empty, it is not nothing"
            );
            for (authorization, uri) in [
                (&["Bearer ticket.abc"][..], "/config/worker"),
                (&["Bearer abc"], "/config/worker"),
                (&[], "/config/worker?token=abc"),
            ] {
                assert_eq!(read(authorization, uri), Err("credential-ambiguous"), "{authorization:?} {uri}");
            }
            assert_eq!(read(&["Bearer "], "/config/worker"), Err("credential-ambiguous"));
            assert_eq!(read(&["Basic abc"], "/config/worker"), Err("credential-malformed"));
        }
    }
}
