//! The textual encoding of keys and certificates, PEM (RFC 7468).

/// Characters of Base64 in a line of PEM (RFC 7468, 2).
const LINE_CHARACTERS: usize = 64;

/// Encodes DER as a PEM block with this label.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let base64 = zeroize::Zeroizing::new(data_encoding::BASE64.encode(der));
    // Room for all of it at once: it may be a secret, of which no copy is to stay.
    let mut out = String::with_capacity(base64.len() + base64.len() / LINE_CHARACTERS + 2 * label.len() + 64);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in base64.as_bytes().chunks(LINE_CHARACTERS) {
        out.push_str(std::str::from_utf8(line).unwrap_or_default());
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_has_lines_of_64_characters() {
        let text = pem("X", &[0; 49]);
        assert_eq!(text, format!("-----BEGIN X-----\n{}\nAA==\n-----END X-----\n", "A".repeat(64)));
        assert_eq!(pem("X", &[]), "-----BEGIN X-----\n-----END X-----\n");
    }
}
