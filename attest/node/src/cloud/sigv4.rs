//! AWS Signature Version 4, as much of it as one request to STS needs.

use std::fmt;
use std::time::SystemTime;

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use zeroize::Zeroizing;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");

/// Formats the time of signing for the request: `20150830T123600Z`. `None` before 1970 and after 9999.
#[must_use]
pub fn date(now: SystemTime) -> Option<String> {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?)
        .ok()?
        .format(DATE)
        .ok()
}

/// Scope of a signature: time, region and service.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Time of signing, formatted by [`date`].
    pub date: &'a str,
    /// AWS region, such as `eu-central-1`.
    pub region: &'a str,
    /// AWS service, such as `sts`.
    pub service: &'a str,
}

impl Scope<'_> {
    fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }
}

impl fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/aws4_request", self.day(), self.region, self.service)
    }
}

/// A request to the path `/` in the form that is signed.
///
/// # Arguments
/// `query` is in canonical form. `headers` are all that are signed: names in lower case and in the alphabet's order, values without
/// blanks at the ends and without two in a row. The result holds the session token.
#[must_use]
pub fn canonical_request(method: &str, query: &str, headers: &[(&str, &str)], body: &[u8]) -> Zeroizing<String> {
    let mut canonical = Zeroizing::new(format!("{method}\n/\n{query}\n"));
    for (name, value) in headers {
        for part in [name, ":", value, "\n"] {
            canonical.push_str(part);
        }
    }
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    canonical.push_str(&format!("\n{}\n{}", names.join(";"), sha256(body)));
    canonical
}

#[must_use]
pub fn signature(secret_access_key: &str, scope: &Scope<'_>, canonical_request: &str) -> [u8; 32] {
    let text = format!("{ALGORITHM}\n{}\n{scope}\n{}", scope.date, sha256(canonical_request.as_bytes()));
    hmac_sha256(signing_key(secret_access_key, scope).as_slice(), text.as_bytes())
}

/// A key for one day, one region and one service.
fn signing_key(secret_access_key: &str, scope: &Scope<'_>) -> Zeroizing<[u8; 32]> {
    let secret = Zeroizing::new(format!("AWS4{secret_access_key}"));
    let day = Zeroizing::new(hmac_sha256(secret.as_bytes(), scope.day().as_bytes()));
    [scope.region, scope.service, "aws4_request"]
        .iter()
        .fold(day, |key, part| Zeroizing::new(hmac_sha256(key.as_slice(), part.as_bytes())))
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The key of all of AWS's published examples.
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn check(scope: &Scope<'_>, query: &str, headers: &[(&str, &str)], expect: &str) {
        let canonical = canonical_request("GET", query, headers, b"");
        assert_eq!(HEXLOWER.encode(&signature(SECRET, scope, &canonical)), expect);
    }

    #[test]
    fn signatures_match_the_published_sigv4_examples() {
        // The test suite's get-vanilla.
        check(
            &Scope {
                date: "20150830T123600Z",
                region: "us-east-1",
                service: "service",
            },
            "",
            &[("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")],
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        );
        // The walk-through of the General Reference: IAM's ListUsers.
        check(
            &Scope {
                date: "20150830T123600Z",
                region: "us-east-1",
                service: "iam",
            },
            "Action=ListUsers&Version=2010-05-08",
            &[
                ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
                ("host", "iam.amazonaws.com"),
                ("x-amz-date", "20150830T123600Z"),
            ],
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        );
    }

    #[test]
    fn the_published_signing_key_is_derived() {
        let scope = Scope {
            date: "20150830T123600Z",
            region: "us-east-1",
            service: "iam",
        };
        assert_eq!(
            HEXLOWER.encode(signing_key(SECRET, &scope).as_slice()),
            "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"
        );
        assert_eq!(scope.to_string(), "20150830/us-east-1/iam/aws4_request");
    }

    #[test]
    fn sigv4_dates_use_the_basic_iso_format() {
        let at = |seconds| date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(1_440_938_160).unwrap(), "20150830T123600Z");
        assert_eq!(at(0).unwrap(), "19700101T000000Z");
        assert_eq!(at(300_000_000_000), None);
        assert_eq!(date(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), None);
    }
}
