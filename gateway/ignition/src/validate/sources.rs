//! Sources of contents: URLs, their hashes, their headers, proxies.

use super::Invalid;
use super::at::At;
use crate::data_url;

/// The functions that a hash may name, and the length of their sums in hex digits.
const HASHES: [(&str, usize); 2] = [("sha512", 128), ("sha256", 64)];
/// Top-level media types that a `data:` URL may name (RFC 2045), besides those with `x-`.
const MEDIA_TYPES: [&str; 7] = ["text", "image", "audio", "video", "application", "message", "multipart"];
const URL_EXPECTED: &str = "a URL with http, https, tftp, s3, gs, arn or data is expected";

pub(super) fn ignition(ignition: &At<'_>) -> Result<(), Invalid> {
    let config = ignition.get("config");
    for merged in config.each("merge") {
        required(&merged)?;
    }
    resource(&config.get("replace"))?;
    for authority in ignition.get("security").get("tls").each("certificateAuthorities") {
        required(&authority)?;
    }
    for field in ["httpProxy", "httpsProxy"] {
        let proxy = ignition.get("proxy").get(field);
        if let Some(url) = proxy.text() {
            proxy.must(is_http(url), "a URL with http or https is expected")?;
        }
    }
    Ok(())
}

fn required(resource_at: &At<'_>) -> Result<(), Invalid> {
    resource_at
        .get("source")
        .must(resource_at.get("source").says(), "a source is expected")?;
    resource(resource_at)
}

/// Checks a resource to fetch. Without a source, it may have neither a hash nor headers.
pub(super) fn resource(resource: &At<'_>) -> Result<(), Invalid> {
    let (source, hash) = (resource.get("source"), resource.get("verification").get("hash"));
    let compression = resource.get("compression");
    compression.must(matches!(compression.text_or_empty(), "" | "gzip"), "gzip is expected, or nothing")?;
    if let Some(text) = hash.text() {
        hash.must(source.is_set(), "a source to verify is expected")?;
        hash.must(is_hash(text), "sha512- and 128 hex digits, or sha256- and 64, are expected")?;
    }
    if source.says() {
        source.must(is_source(source.text_or_empty()), URL_EXPECTED)?;
    }
    for header in resource.each("httpHeaders") {
        source.must(
            is_http(source.text_or_empty()),
            "with HTTP headers, a URL with http or https is expected",
        )?;
        let (name, value) = (header.get("name"), header.get("value"));
        name.must(name.says(), "the name of a header is expected")?;
        value.must(!value.is_set() || value.says(), "the value of a header is expected")?;
    }
    Ok(())
}

fn is_hash(text: &str) -> bool {
    // Ignition counts the digits only: what is none never matches.
    text.split_once('-')
        .is_some_and(|(function, sum)| HASHES.contains(&(function, sum.len())))
}

/// Returns whether the URL is of a scheme that Ignition fetches from.
pub(super) fn is_source(url: &str) -> bool {
    // What is asked of any URL is asked of such a one once more, unless a fragment begins before what it carries.
    if let Some((kind, _)) = url.split_once(',')
        && kind.starts_with("data:")
        && !kind.contains('#')
    {
        return is_data(url);
    }
    is_other_source(url)
}

fn is_other_source(url: &str) -> bool {
    let Some(parts) = UrlParts::parse(url) else {
        return false;
    };
    match parts.scheme.as_str() {
        "http" | "https" | "tftp" | "gs" => true,
        "s3" => parts.has_no_empty_version(),
        "arn" => is_s3_resource(parts.after_scheme) && parts.has_no_empty_version(),
        "data" => is_data(url),
        _ => false,
    }
}

pub(super) fn is_http(url: &str) -> bool {
    UrlParts::parse(url).is_some_and(|parts| matches!(parts.scheme.as_str(), "http" | "https"))
}

/// A URL, as far as Go's `net/url` looks at it: that is the parser which has to take it.
struct UrlParts<'a> {
    /// The scheme in lower case.
    scheme: String,
    /// Between the scheme's colon and the query.
    after_scheme: &'a str,
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    fn parse(url: &'a str) -> Option<Self> {
        let (url, fragment) = url.split_once('#').unwrap_or((url, ""));
        if url.bytes().any(|c| c.is_ascii_control()) || !is_escaped(fragment) || fragment.bytes().any(|c| c.is_ascii_control()) {
            return None;
        }
        let (scheme, rest) = url.split_once(':')?;
        let mut letters = scheme.chars();
        if !letters.next()?.is_ascii_alphabetic() || !letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
            return None;
        }
        let (after_scheme, query) = rest.split_once('?').unwrap_or((rest, ""));
        if let Some(hierarchical) = after_scheme.strip_prefix("//") {
            let end = hierarchical.find('/').unwrap_or(hierarchical.len());
            let (authority, path) = hierarchical.split_at_checked(end)?;
            if !is_authority(authority) || !is_escaped(path) {
                return None;
            }
        } else if after_scheme.starts_with('/') && !is_escaped(after_scheme) {
            return None;
        }
        Some(Self {
            scheme: scheme.to_ascii_lowercase(),
            after_scheme,
            query,
        })
    }

    /// Returns whether the URL has no empty version; S3 objects have versions.
    fn has_no_empty_version(&self) -> bool {
        // A pair with a semicolon or a bad escape is none to Go.
        let mut pairs = self.query.split('&').filter(|pair| !pair.contains(';') && is_escaped(pair));
        let version = pairs.find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == "versionId").then_some(value)
        });
        version != Some("")
    }
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user_is_good = is_escaped(user) && user.chars().all(|c| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c));
    let (name, port) = if host.starts_with('[') {
        let Some((name, port)) = host.rsplit_once(']') else {
            return false;
        };
        (name, port)
    } else {
        match host.rfind(':') {
            Some(colon) => host.split_at(colon),
            None => (host, ""),
        }
    };
    let port_is_good = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|c| c.is_ascii_digit()));
    // An address may carry a zone, `%25eth0`; a name may escape what is not ASCII.
    let name_is_good = is_escaped(name)
        && name
            .chars()
            .all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c))
        && name
            .split('%')
            .skip(1)
            .all(|escape| escape.starts_with("25") || escape.starts_with(|c: char| c.is_ascii_hexdigit() && c > '7'));
    user_is_good && port_is_good && name_is_good
}

/// Returns whether each `%` is followed by two hexadecimal digits.
fn is_escaped(text: &str) -> bool {
    text.split('%').skip(1).all(|escape| {
        let mut digits = escape.bytes();
        [digits.next(), digits.next()]
            .iter()
            .all(|digit| digit.is_some_and(|digit| digit.is_ascii_hexdigit()))
    })
}

/// Returns whether the rest of an `arn:` URL names something in S3: `partition:s3:region:account:bucket/object`, or
/// `...:accesspoint/name/object/key`.
fn is_s3_resource(name: &str) -> bool {
    let mut parts = name.splitn(5, ':');
    let (_partition, service, _region, _account) = (parts.next(), parts.next(), parts.next(), parts.next());
    let Some(resource) = parts.next() else {
        return false;
    };
    let slashes = name.matches('/').count();
    service == Some("s3") && slashes >= if resource.starts_with("accesspoint/") { 2 } else { 1 }
}

/// Returns whether a URL may contain the byte unescaped; `true` for `%` too.
const fn is_of_url(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(
            byte,
            b'<' | b'>' | b'#' | b'"' | b'{' | b'}' | b'|' | b'\\' | b'^' | b'[' | b']' | b'`'
        )
}

/// Returns whether both Ignition and the gateway can read the `data:` URL: RFC 2397, with the media types of RFC 2045.
fn is_data(url: &str) -> bool {
    let Some((kind, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
        return false;
    };
    let (kind, base64) = kind.strip_suffix(";base64").map_or((kind, false), |kind| (kind, true));
    let data_is_good = if base64 {
        // Not with escapes: Ignition decodes none there.
        data_url::is_base64(data.as_bytes())
    } else {
        data_url::all(data.as_bytes(), |byte| is_of_url(*byte)) && data_url::is_escaped(data.as_bytes())
    };
    let mut words = kind.split(';');
    let media_type = words.next().unwrap_or_default();
    let type_is_good = media_type.is_empty()
        || media_type.split_once('/').is_some_and(|(kind, sub)| {
            let known = MEDIA_TYPES.iter().any(|known| kind.starts_with(known)) || kind.starts_with("x-") || kind.starts_with("X-");
            known && is_token(kind) && is_token(sub)
        });
    let parameters_are_good = words.all(|word| {
        word.split_once('=').is_some_and(|(name, value)| {
            let value = value
                .strip_prefix('"')
                .map_or(value, |quoted| quoted.strip_suffix('"').unwrap_or_default());
            !name.is_empty() && is_token(name) && !value.is_empty() && is_token(value) && is_escaped(value)
        })
    });
    type_is_good && parameters_are_good && data_is_good
}

/// Returns whether the text is a token by RFC 2045, or empty.
fn is_token(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&c))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{refused, taken};
    use super::*;

    #[test]
    fn validates_source_urls() {
        for good in [
            "http://a",
            "HTTPS://a:8080/b?c=%zz#d",
            "http://u:p%40@a/",
            "http://[fe80::1%25eth0]:80/",
            "tftp://a/b",
            "gs://b/o",
            "s3://b/o",
            "s3://b/o?versionId=1",
            "arn:aws:s3:::b/o",
            "arn:aws:s3:r:1:accesspoint/n/object/k",
            "http:/a",
            "http:a",
            "http://a:",
            "data:,",
            "data:,a%20b",
            "data:;base64,YSBi",
            "data:text/plain;charset=utf-8;base64,YSBi",
            "data:x-a/b,",
            "data:text/,",
            "data:text/plain;a=\"b\",",
        ] {
            assert!(is_source(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "/a",
            "://a",
            "1http://a",
            "ftp://a",
            "oem:///a",
            "file:///a",
            "http://a b/",
            "http://a:b/",
            "http://a/%zz",
            "http://a/#%zz",
            "http://%41/",
            "http://[::1/",
            "http://a\n",
            "s3://b/o?versionId",
            "s3://b/o?versionId=&versionId=1",
            "arn:aws:s3:::b",
            "arn:aws:ec2:::b/o",
            "arn:aws:s3:b/o",
            "arn:aws:s3:r:1:accesspoint/n",
            "DATA:,",
            "data:",
            "data:a b",
            "data:,a b",
            "data:,a#b",
            "data:,%4",
            "data:,ä",
            "data:;base64,YSB",
            "data:;base64,YSB%69",
            "data:;base65,YSBi",
            "data:foo/bar,",
            "data:text,",
            "data:;,",
            "data:;a=,",
            "data:text/plain;a=\"b,",
        ] {
            assert!(!is_source(bad), "{bad}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::default() })]

        #[test]
        fn data_url_check_agrees_with_the_url_rules(kind in "[a-z/;=,#%\" ?0]{0,8}|text/[a#%0/?]{0,4}|;base64|;a=%?[#a0?]{1,3}", data in "[YSBi=%2#, /?\n]{0,9}") {
            for url in [format!("data:{kind},{data}"), format!("data:{kind}")] {
                let carried = is_data(&url);
                assert_eq!(is_source(&url), is_other_source(&url), "{url:?}");
                assert!(!carried || data_url::decode(&url).is_some(), "{url:?}");
            }
        }
    }

    fn contents(contents: Value) -> Value {
        json!({"storage": {"files": [{"path": "/a", "contents": contents}]}})
    }

    #[test]
    fn validates_compression_source_and_hash() {
        let at = |field: &str| format!("storage.files.0.contents.{field}");
        let hash = |hash: &str| contents(json!({"source": "data:,", "verification": {"hash": hash}}));
        taken(contents(json!({"source": ""})));
        taken(contents(json!({"source": "data:,", "compression": ""})));
        taken(contents(json!({"source": "data:,", "compression": "gzip"})));
        refused(contents(json!({"source": "data:,", "compression": "xz"})), &at("compression"));
        refused(contents(json!({"source": "ftp://a/"})), &at("source"));
        taken(hash(&format!("sha512-{}", "0".repeat(128))));
        taken(hash(&format!("sha256-{}", "0".repeat(64))));
        refused(hash(&format!("sha256-{}", "0".repeat(128))), &at("verification.hash"));
        refused(hash(&format!("md5-{}", "0".repeat(32))), &at("verification.hash"));
        refused(hash(""), &at("verification.hash"));
        let hash = format!("sha256-{}", "0".repeat(64));
        refused(contents(json!({"verification": {"hash": hash}})), &at("verification.hash"));
    }

    #[test]
    fn validates_http_headers() {
        let with = |source: &str, header: Value| contents(json!({"source": source, "httpHeaders": [header]}));
        let at = |field: &str| format!("storage.files.0.contents.{field}");
        taken(with("https://a/", json!({"name": "a", "value": "b"})));
        taken(with("https://a/", json!({"name": "a"})));
        refused(with("https://a/", json!({"name": "", "value": "b"})), &at("httpHeaders.0.name"));
        refused(with("https://a/", json!({"name": "a", "value": ""})), &at("httpHeaders.0.value"));
        refused(with("data:,", json!({"name": "a", "value": "b"})), &at("source"));
        refused(contents(json!({"httpHeaders": [{"name": "a", "value": "b"}]})), &at("source"));
    }

    #[test]
    fn validates_merged_configs_and_certificate_authorities() {
        taken(json!({"ignition": {"config": {"merge": [{"source": "http://a/"}], "replace": {"source": "http://a/"}}}}));
        refused(
            json!({"ignition": {"config": {"merge": [{"compression": "gzip"}]}}}),
            "ignition.config.merge.0.source",
        );
        refused(
            json!({"ignition": {"config": {"replace": {"source": "a"}}}}),
            "ignition.config.replace.source",
        );
        let authority = |source: &str| json!({"ignition": {"security": {"tls": {"certificateAuthorities": [{"source": source}]}}}});
        taken(authority("data:,a"));
        refused(authority(""), "ignition.security.tls.certificateAuthorities.0.source");
        taken(json!({"ignition": {"proxy": {"httpProxy": "http://a", "httpsProxy": "https://a"}}}));
        refused(
            json!({"ignition": {"proxy": {"httpProxy": "socks://a"}}}),
            "ignition.proxy.httpProxy",
        );
        refused(json!({"ignition": {"proxy": {"httpsProxy": ""}}}), "ignition.proxy.httpsProxy");
    }
}
