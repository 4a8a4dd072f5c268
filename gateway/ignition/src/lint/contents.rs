//! Looks into contents: text, what is encoded in it, what is compressed.

use std::collections::BTreeSet;
use std::io::Read as _;

use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL_NOPAD};
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use url::Url;

use super::patterns::Patterns;
use super::{SecretKind, assignment, structure};
use crate::data_url;

/// Maximum decompressed size of one content, in bytes: a node's largest files have a hundredth of that.
const DECOMPRESSED_LIMIT_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum number of bytes searched for one config, with everything decoded from it. It is four times the largest config, so only contents
/// that expand endlessly reach it.
const TOTAL_LIMIT_BYTES: usize = 256 * 1024 * 1024;
/// Encodings within encodings that are followed. Three: a data URL, in it a Secret, in it a kubeconfig's keys.
const ENCODING_DEPTH_LIMIT: usize = 3;
/// Shortest run of base64 that is decoded. Keys are longer, and words and paths are base64 too.
const BASE64_MIN_BYTES: usize = 40;
/// Shortest bearer token: shorter is a word.
const BEARER_MIN_BYTES: usize = 16;
/// Magic bytes of contents that are not read: compressed as zip, xz, zstd or bzip2, or text in UTF-16.
const UNREADABLE: [&[u8]; 6] = [b"PK\x03\x04", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh", b"\xff\xfe", b"\xfe\xff"];
/// Magic bytes of gzip (RFC 1952).
const GZIP: &[u8] = b"\x1f\x8b\x08";

/// Looks at contents, as long as its budget lasts.
pub(super) struct ContentScan<'a> {
    patterns: &'a Patterns,
    left: usize,
}

impl<'a> ContentScan<'a> {
    pub(super) const fn new(patterns: &'a Patterns) -> Self {
        Self {
            patterns,
            left: TOTAL_LIMIT_BYTES,
        }
    }

    /// Leaves that much of the budget.
    #[cfg(test)]
    pub(super) const fn spend_all_but(&mut self, left: usize) {
        self.left = left;
    }

    /// Returns the kinds of secrets in the contents of a file.
    pub(super) fn contents(&mut self, bytes: &[u8]) -> BTreeSet<SecretKind> {
        let mut kinds = BTreeSet::new();
        if bytes.starts_with(GZIP) {
            match gunzip(bytes) {
                Some(inside) => self.any(&inside, 1, &mut kinds),
                None => _ = kinds.insert(SecretKind::Unreadable),
            }
        } else if UNREADABLE.iter().any(|magic| bytes.starts_with(magic)) {
            kinds.insert(SecretKind::Unreadable);
        } else {
            self.in_text(bytes, 0, &mut kinds);
        }
        kinds
    }

    /// Returns the kinds of secrets in a text.
    pub(super) fn text(&mut self, text: &[u8]) -> BTreeSet<SecretKind> {
        let mut kinds = BTreeSet::new();
        self.in_text(text, 0, &mut kinds);
        kinds
    }

    /// Returns the kinds of secrets in a URL that is not a `data:` URL.
    pub(super) fn url(&mut self, text: &str) -> BTreeSet<SecretKind> {
        let mut kinds = BTreeSet::new();
        self.strong(text.as_bytes(), &mut kinds);
        if let Ok(url) = Url::parse(text) {
            if url.password().is_some_and(|password| !password.is_empty()) {
                kinds.insert(SecretKind::UrlPassword);
            }
            if url
                .query_pairs()
                .any(|(key, value)| !value.is_empty() && assignment::is_credential_parameter(&key))
            {
                kinds.insert(SecretKind::UrlToken);
            }
        } else {
            self.in_text(text.as_bytes(), 0, &mut kinds);
        }
        kinds
    }

    /// Searches decoded bytes: as text, as gzip, or for strong patterns only if they are neither and so were probably not encoded.
    fn any(&mut self, bytes: &[u8], depth: usize, kinds: &mut BTreeSet<SecretKind>) {
        if depth > ENCODING_DEPTH_LIMIT {
            self.strong(bytes, kinds);
        } else if bytes.starts_with(GZIP) {
            if let Some(inside) = gunzip(bytes) {
                self.any(&inside, depth + 1, kinds);
            }
        } else if is_text(bytes) {
            self.in_text(bytes, depth, kinds);
        } else {
            self.strong(bytes, kinds);
        }
    }

    /// Searches bytes of any kind for patterns that cannot occur by chance. Returns `false` if the budget is spent.
    fn strong(&mut self, bytes: &[u8], kinds: &mut BTreeSet<SecretKind>) -> bool {
        let Some(left) = self.left.checked_sub(bytes.len()) else {
            kinds.insert(SecretKind::Unreadable);
            return false;
        };
        self.left = left;
        kinds.extend(self.patterns.plain(bytes));
        if self
            .patterns
            .jwt
            .captures_iter(bytes)
            .filter_map(|found| found.get(1))
            .any(|header| is_jwt_header(header.as_bytes()))
        {
            kinds.insert(SecretKind::Token);
        }
        if is_private_key(bytes) {
            kinds.insert(SecretKind::PrivateKey);
        }
        true
    }

    fn in_text(&mut self, text: &[u8], depth: usize, kinds: &mut BTreeSet<SecretKind>) {
        if !self.strong(text, kinds) {
            return;
        }
        let captured = |pattern: &regex::bytes::Regex, check: &dyn Fn(&[u8]) -> bool| {
            pattern
                .captures_iter(text)
                .filter_map(|found| found.get(1))
                .any(|found| check(found.as_bytes()))
        };
        if captured(&self.patterns.bearer, &|token| {
            token.len() >= BEARER_MIN_BYTES && token.iter().any(u8::is_ascii_digit)
        }) {
            kinds.insert(SecretKind::Token);
        }
        if captured(&self.patterns.userinfo, &|password| {
            assignment::is_literal(&String::from_utf8_lossy(password))
        }) {
            kinds.insert(SecretKind::UrlPassword);
        }
        if captured(&self.patterns.auth, &is_user_and_password) {
            kinds.insert(SecretKind::RegistryPassword);
        }
        let mut assigned = assignment::in_text(text, &self.patterns.credential_word);
        let credentials = [SecretKind::Token, SecretKind::Password, SecretKind::PrivateKey];
        if credentials.iter().any(|kind| assigned.contains(kind)) && self.patterns.kubeconfig.is_match(text) {
            assigned.retain(|kind| !credentials.contains(kind));
            assigned.insert(SecretKind::KubeconfigCredential);
        }
        kinds.extend(assigned);
        self.in_structure(text, depth, kinds);
        self.in_encoded(text, depth, kinds);
    }

    /// Searches for secrets that single lines do not show: values over several lines, and objects that are secret as a whole.
    fn in_structure(&mut self, text: &[u8], depth: usize, kinds: &mut BTreeSet<SecretKind>) {
        if !self.patterns.structured.is_match(text) {
            return;
        }
        let Some(documents) = structure::read(text) else {
            // The words of a Secret, but not to be read as one.
            if self.patterns.secret_manifest.is_match(text) && structure::has_data_line(text) {
                kinds.insert(SecretKind::SecretManifest);
            }
            return;
        };
        let mut texts = Vec::new();
        for document in &documents {
            structure::scan(document, kinds, &mut texts);
        }
        for text in texts {
            // A text in a document is a document of its own: a file in a ConfigMap, for one.
            if text.contains(['\n', '"']) && depth < ENCODING_DEPTH_LIMIT {
                self.in_text(text.as_bytes(), depth + 1, kinds);
            }
        }
    }

    fn in_encoded(&mut self, text: &[u8], depth: usize, kinds: &mut BTreeSet<SecretKind>) {
        let standard = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        let url_safe = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        for run in text.split(|byte| !standard(byte)).filter(|run| run.len() >= BASE64_MIN_BYTES) {
            self.decoded(run, depth, kinds);
        }
        let special = |run: &&[u8]| run.len() >= BASE64_MIN_BYTES && run.iter().any(|byte| matches!(byte, b'-' | b'_'));
        for run in text.split(|byte| !url_safe(byte)).filter(special) {
            if let Ok(bytes) = BASE64URL_NOPAD.decode(whole_quanta(run)) {
                self.any(&bytes, depth + 1, kinds);
            }
        }
        // Wrapped over lines, as `base64` writes it.
        let mut wrapped: Vec<u8> = Vec::new();
        let mut lines = 0_usize;
        for line in text.split(|byte| *byte == b'\n').chain([b"".as_slice()]) {
            let line = line.trim_ascii();
            let data = line.split(|byte| *byte == b'=').next().unwrap_or_default();
            let continues = !data.is_empty() && data.iter().all(standard) && (lines > 0 || data.len() >= BASE64_MIN_BYTES);
            if continues {
                wrapped.extend_from_slice(data);
                lines += 1;
            }
            if !continues || data.len() < line.len() {
                if lines > 1 {
                    self.decoded(&wrapped, depth, kinds);
                }
                wrapped.clear();
                lines = 0;
            }
        }
        // In base64 they were found above.
        let patterns = self.patterns;
        for url in patterns.data_url.find_iter(text) {
            if let Some(bytes) = std::str::from_utf8(url.as_bytes()).ok().and_then(data_url::decode) {
                self.any(&bytes, depth + 1, kinds);
            }
        }
    }

    fn decoded(&mut self, run: &[u8], depth: usize, kinds: &mut BTreeSet<SecretKind>) {
        if let Ok(bytes) = BASE64_NOPAD.decode(whole_quanta(run)) {
            self.any(&bytes, depth + 1, kinds);
        }
    }
}

/// Returns the decompressed bytes; `None` if they are damaged or too many.
pub(super) fn gunzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut inside = Vec::new();
    let mut reader = MultiGzDecoder::new(bytes).take(DECOMPRESSED_LIMIT_BYTES + 1);
    reader.read_to_end(&mut inside).ok()?;
    u64::try_from(inside.len())
        .is_ok_and(|length| length <= DECOMPRESSED_LIMIT_BYTES)
        .then_some(inside)
}

/// Returns Base64 without its last, incomplete group: two bytes more or less do not hide a secret.
fn whole_quanta(run: &[u8]) -> &[u8] {
    run.get(..run.len() / 4 * 4).unwrap_or_default()
}

fn is_text(bytes: &[u8]) -> bool {
    // What is cut off may end within a character.
    let end = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return false,
    };
    let control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    end > 0 && !bytes.iter().any(control)
}

/// Returns whether this is a header by RFC 7515, 4: a JSON object with `alg`. One with `enc` is encrypted (RFC 7516).
fn is_jwt_header(header: &[u8]) -> bool {
    BASE64URL_NOPAD
        .decode(header)
        .ok()
        .and_then(|json| serde_json::from_slice::<Value>(&json).ok())
        .is_some_and(|json| json.get("alg").is_some() && json.get("enc").is_none())
}

/// Returns whether the text is `user:password` in base64.
fn is_user_and_password(text: &[u8]) -> bool {
    let decoded = BASE64.decode(text).or_else(|_| BASE64_NOPAD.decode(text));
    decoded.is_ok_and(|bytes| bytes.contains(&b':') && is_text(&bytes))
}

/// Returns whether the bytes begin like a private key in DER: PKCS#8 (RFC 5958), PKCS#1 (RFC 8017), SEC 1 (RFC 5915), encrypted PKCS#8,
/// PKCS#12 (RFC 7292), or OpenSSH's form. Certificates and public keys begin differently.
fn is_private_key(bytes: &[u8]) -> bool {
    fn within(bytes: &[u8]) -> Option<&[u8]> {
        match bytes {
            [0x30, 0x81, _, rest @ ..] | [0x30, 0x82, _, _, rest @ ..] | [0x30, 0x83, _, _, _, rest @ ..] => Some(rest),
            [0x30, length, rest @ ..] if *length < 0x80 => Some(rest),
            _ => None,
        }
    }
    // PKCS#5 and PKCS#12 encryption: 1.2.840.113549.1.5 and 1.2.840.113549.1.12.
    let encrypted = |inner: &[u8]| matches!(inner, [0x06, _, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05 | 0x0c, ..]);
    bytes.starts_with(b"openssh-key-v1\0")
        || within(bytes).is_some_and(|inner| {
            matches!(
                inner,
                [0x02, 0x01, 0x00, 0x02 | 0x30, ..] | [0x02, 0x01, 0x01, 0x04 | 0x30, ..] | [0x02, 0x01, 0x03, 0x30, ..]
            ) || within(inner).is_some_and(encrypted)
        })
}
