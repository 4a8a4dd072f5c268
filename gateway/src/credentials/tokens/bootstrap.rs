//! Kubernetes' bootstrap tokens, by which kubelets join. Each is a Secret of a type of its own in `kube-system`, with the token's two
//! halves, its expiry and its purpose.

use std::collections::BTreeSet;

use attest_certificates::secret_manifest::reading;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use zeroize::Zeroizing;

/// The type of such a Secret.
const TYPE: &str = "bootstrap.kubernetes.io/token";
/// Says whether it is for showing to a server at all; others sign configuration only.
const USAGE: &str = "usage-bootstrap-authentication";
/// Lengths of the halves, in lower-case letters and digits.
const HALVES: [(&str, usize); 2] = [("token-id", 6), ("token-secret", 16)];
/// Fewest different characters of a half that is secret. Of 16 random ones fewer are different once in some hundred million tokens.
const FEWEST_DIFFERENT: usize = 6;

/// Content of a bootstrap token's Secret.
pub(super) struct Bootstrap {
    /// Token as nodes show it: both halves, with a dot between them.
    pub(super) text: Zeroizing<String>,
    /// Seconds since 1970; none: it does not expire there.
    pub(super) expires: Option<u64>,
}

/// Returns whether the text is the manifest of a bootstrap token.
pub(super) fn is_one(text: &str) -> bool {
    reading::type_of(text).is_some_and(|of_type| of_type == TYPE)
}

/// Reads a bootstrap token from its manifest.
///
/// # Errors
/// The problem with it; never any of its values.
pub(super) fn read(text: &str) -> Result<Bootstrap, String> {
    let usage = reading::optional(text, USAGE)?;
    if usage.as_deref().map(String::as_str) != Some("true") {
        return Err(format!(
            "the Secret is a bootstrap token that is not for authentication: {USAGE} is not \"true\""
        ));
    }
    let mut whole = Zeroizing::new(String::new());
    for (key, length) in HALVES {
        let half = reading::value(text, &[key])?;
        if half.len() != length || !half.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
            return Err(format!("the Secret's {key} is not {length} lower-case letters and digits"));
        }
        let different = half.bytes().collect::<BTreeSet<u8>>().len();
        if length > FEWEST_DIFFERENT && different < FEWEST_DIFFERENT {
            return Err(format!(
                "the Secret's {key} has only {different} different characters, so it is not random"
            ));
        }
        if !whole.is_empty() {
            whole.push('.');
        }
        whole.push_str(&half);
    }
    // As in the cluster, nothing is no end.
    let expires = reading::optional(text, "expiration")?.filter(|time| !time.is_empty());
    let expires = expires.map(|time| {
        let time = OffsetDateTime::parse(&time, &Rfc3339).ok();
        let seconds = time.and_then(|time| u64::try_from(time.unix_timestamp()).ok());
        seconds.ok_or("the Secret's expiration is not a time such as 2026-11-24T12:00:00Z")
    });
    Ok(Bootstrap {
        text: whole,
        expires: expires.transpose()?,
    })
}
