//! Incremental SHA-256, with a small buffer.

use std::io;

use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use serde::Serialize;

use crate::data_url;

/// Bytes that wait until there are enough of them to be worth hashing.
const WAITING_BYTES: usize = 4096;

/// A SHA-256 of bytes that are written, or put, one part after another.
pub struct Hashed {
    context: Context,
    waiting: Vec<u8>,
}

impl Default for Hashed {
    fn default() -> Self {
        Self {
            context: Context::new(&SHA256),
            waiting: Vec::with_capacity(WAITING_BYTES),
        }
    }
}

impl Hashed {
    /// Hashes a value, as compact JSON; returns the digest in hexadecimal.
    pub fn json(value: &impl Serialize) -> Result<String, serde_json::Error> {
        let mut hashed = Self::default();
        serde_json::to_writer(&mut hashed, value)?;
        Ok(hashed.hex())
    }

    pub fn put(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() > WAITING_BYTES {
            self.context.update(&self.waiting);
            self.waiting.clear();
        }
        if bytes.len() > WAITING_BYTES {
            self.context.update(bytes);
        } else {
            self.waiting.extend_from_slice(bytes);
        }
    }

    /// Adds what follows [`data_url::ESCAPED`] in the URL of these contents.
    pub fn put_escaped(&mut self, contents: &[u8]) {
        data_url::escape(contents, |escaped| self.put(escaped));
    }

    /// Returns the digest, in hexadecimal.
    pub fn hex(mut self) -> String {
        self.context.update(&self.waiting);
        HEXLOWER.encode(self.context.finish().as_ref())
    }
}

impl io::Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn chunked_writes_yield_the_digest_of_the_whole() {
        let digest = |bytes: &[u8]| HEXLOWER.encode(aws_lc_rs::digest::digest(&SHA256, bytes).as_ref());
        let all: Vec<u8> = (0..=255).cycle().take(3 * WAITING_BYTES).collect();
        for parts in [1, 7, 64, WAITING_BYTES - 1, WAITING_BYTES, WAITING_BYTES + 1, 2 * WAITING_BYTES + 5] {
            let mut hashed = Hashed::default();
            all.chunks(parts).for_each(|part| hashed.put(part));
            assert_eq!(hashed.hex(), digest(&all), "{parts}");
        }
        let mut hashed = Hashed::default();
        hashed.put(data_url::ESCAPED.as_bytes());
        hashed.put_escaped(&all);
        assert_eq!(hashed.hex(), digest(data_url::encode(&all).as_bytes()));
        let value = serde_json::json!({"a": ["b", 1]});
        assert_eq!(Hashed::json(&value).unwrap(), digest(value.to_string().as_bytes()));
    }
}
