//! The form of AWS's names: regions, accounts, instances, roles. A pool's rules decide which of them are accepted. Also texts from AWS and
//! names in its certificates, fit for a log.

use x509_parser::x509::X509Name;

use crate::values::{self, is_lower_hex};

/// Longest name of a region, in characters: twice the longest of today, `ap-southeast-7`, and some.
const REGION_LIMIT_CHARS: usize = 32;

/// Longest name of a role, in characters: IAM's limit.
const ROLE_LIMIT_CHARS: usize = 64;

/// Returns whether a text has the form of a region: `eu-central-1`, `us-gov-west-1`, `eusc-de-east-1`.
pub(super) fn is_region(text: &str) -> bool {
    let mut parts = text.split('-');
    let letters = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
    let number = |part: &str| matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
    let ends = parts.next_back().is_some_and(number) && parts.next().is_some_and(|part| matches!(part.len(), 2 | 4) && letters(part));
    text.len() <= REGION_LIMIT_CHARS && ends && parts.clone().count() >= 1 && parts.all(letters)
}

/// Returns whether a text has the form of an account: twelve digits.
#[must_use]
pub fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a text has the form of an instance: `i-` and 17 hexadecimal digits, or 8 for those from before 2016.
pub(super) fn is_instance(text: &str) -> bool {
    text.strip_prefix("i-")
        .is_some_and(|id| matches!(id.len(), 8 | 17) && is_lower_hex(id))
}

/// Returns whether a text may be an instance id of any length, as AWS may issue later: for texts that people write.
pub(super) fn is_any_instance(text: &str) -> bool {
    text.strip_prefix("i-").is_some_and(|id| !id.is_empty() && is_lower_hex(id))
}

/// Returns whether a text has the form of a role's name, without its path.
#[must_use]
pub fn is_role(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@_-".contains(&byte);
    (1..=ROLE_LIMIT_CHARS).contains(&text.len()) && text.bytes().all(allowed)
}

/// A text from outside, fit for a log: bounded, without control characters.
pub(super) fn printable(text: &str) -> String {
    const TEXT_LIMIT_CHARS: usize = 200;
    values::printable(text, TEXT_LIMIT_CHARS)
}

/// Formats a name of a certificate, fit for a log.
pub(super) fn name_text(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_names_are_validated() {
        for region in [
            "eu-central-1",
            "us-gov-west-1",
            "ap-southeast-7",
            "us-isob-east-1",
            "eu-west-10",
            "eusc-de-east-1",
        ] {
            assert!(is_region(region), "{region}");
        }
        let none = [
            "",
            "-",
            "eu",
            "eu-1",
            "eu-central",
            "eu-central-",
            "eu-central-100",
            "EU-central-1",
            "eu--1",
            "e-central-1",
            "eur-central-1",
            "europ-central-1",
            "eu-central-1.evil.example",
            "eu-central-1a",
            "eu-c\u{e9}ntral-1",
            "eu-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-1",
        ];
        for other in none {
            assert!(!is_region(other), "{other}");
        }
    }

    #[test]
    fn account_and_instance_ids_are_validated() {
        assert!(is_account("123456789012") && !is_account("12345678901") && !is_account("12345678901x"));
        assert!(is_instance("i-0918f6c55e3b61d89") && is_instance("i-1a2b3c4d"));
        for other in [
            "i-0918f6c55e3b61d8",
            "i-0918f6c55e3b61d8G",
            "i-0918F6c55e3b61d89",
            "0918f6c55e3b61d89",
            "i-",
        ] {
            assert!(!is_instance(other), "{other}");
        }
    }
}
