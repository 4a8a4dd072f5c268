//! Signature Version 4, as AWS describes it: for STS, which verifies it, and for tests that sign.

use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;

/// Name of the signature algorithm.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The signed parts of a request with the path `/` and no query.
#[derive(Debug, Clone, Copy)]
pub struct SigV4Request<'a> {
    /// HTTP method, such as `POST`.
    pub method: &'a str,
    /// Names in lower case, in alphabetical order.
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
    /// Time of signing, such as `20270115T080000Z`.
    pub date: &'a str,
    /// Region, such as `eu-central-1`.
    pub region: &'a str,
    /// Service, such as `sts`.
    pub service: &'a str,
}

impl SigV4Request<'_> {
    /// Returns the scope of the derived key: day, region, service.
    #[must_use]
    pub fn scope(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day(), self.region, self.service)
    }

    /// Returns the names of the headers, separated by semicolons.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.join(";")
    }

    fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    fn canonical(&self) -> String {
        let header = |(name, value): &(String, String)| {
            let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
            format!("{name}:{}\n", words.join(" "))
        };
        let headers: String = self.headers.iter().map(header).collect();
        format!("{}\n/\n\n{headers}\n{}\n{}", self.method, self.names(), sha256(self.body))
    }

    /// Returns the signature with this secret key, hexadecimal.
    #[must_use]
    pub fn signature(&self, secret_access_key: &str) -> String {
        let message = format!(
            "{ALGORITHM}\n{}\n{}\n{}",
            self.date,
            self.scope(),
            sha256(self.canonical().as_bytes())
        );
        let parts = [self.day(), self.region, self.service, "aws4_request", &message];
        let key = format!("AWS4{secret_access_key}").into_bytes();
        HEXLOWER.encode(&parts.iter().fold(key, |key, part| mac(&key, part)))
    }
}

fn mac(key: &[u8], message: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message.as_bytes())
        .as_ref()
        .to_vec()
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}
