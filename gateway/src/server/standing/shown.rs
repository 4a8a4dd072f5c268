//! What may be shown of a setting. None is a secret; a URL may be given one by whoever does not read that.

use aws_lc_rs::hmac;
use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};
use url::Url;

/// Longest value of a setting that is shown as it is.
const VALUE_LIMIT_BYTES: usize = 1024;
const KEY_BYTES: usize = 32;

/// By which what is hidden is told from what was hidden before, and by nobody else guessed: this state's own.
pub(super) struct Hiding {
    /// None if the system's random generator fails: then what is hidden has no digest.
    key: Option<hmac::Key>,
    /// As it is kept.
    pub(super) text: Option<String>,
}

impl Hiding {
    /// By the key that was kept, or a new one.
    pub(super) fn of(kept: Option<&str>) -> Self {
        let kept = kept.and_then(|text| HEXLOWER.decode(text.as_bytes()).ok().filter(|key| key.len() == KEY_BYTES));
        let new = || {
            let mut key = vec![0; KEY_BYTES];
            rand::fill(&mut key).is_ok().then_some(key)
        };
        let key = kept.or_else(new);
        Self {
            text: key.as_ref().map(|key| HEXLOWER.encode(key)),
            key: key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key)),
        }
    }

    /// A setting's value: what is text or a number as it is, other values as their JSON; of a long one length and digest.
    pub(super) fn shown(&self, value: &Value) -> Value {
        let value = self.without_secrets(value);
        let text = value.to_string();
        if text.len() > VALUE_LIMIT_BYTES {
            return json!({ "bytes": text.len(), "sha256": super::sha256(text.as_bytes()) });
        }
        match value {
            Value::Object(_) | Value::String(_) => value,
            Value::Number(number) if number.is_u64() => Value::Number(number),
            _ => Value::from(text),
        }
    }

    /// String by string, so that all else is seen, and each change of what is not.
    fn without_secrets(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if text.contains("://") && text.contains(['@', '?', '#']) => self.hidden(text),
            Value::Array(all) => all.iter().map(|value| self.without_secrets(value)).collect(),
            Value::Object(all) => {
                let shown = all.iter().map(|(key, value)| (key.clone(), self.without_secrets(value)));
                Value::Object(shown.collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    fn hidden(&self, text: &str) -> Value {
        let bare = Url::parse(text).ok().filter(Url::has_host).map(|mut url| {
            // They fail for URLs that can have neither.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        });
        let digest = self
            .key
            .as_ref()
            .map(|key| HEXLOWER.encode(hmac::sign(key, text.as_bytes()).as_ref()));
        json!({ "redacted": bare.unwrap_or_default(), "bytes": text.len(), "hmac_sha256": digest })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_somebody_has_put_into_a_url_is_in_no_record() {
        let hiding = Hiding::of(None);
        for (value, shown) in [
            (json!("https://u:secret@proxy.example"), false),
            (json!("https://secret@proxy.example"), false),
            (json!("https://proxy.example/#secret"), false),
            (json!("a://secret?secret"), true),
            (json!("x y://?secret"), false),
            (json!(["https://a.example", "https://b.example?token=secret"]), false),
            (json!([{"name": "siem", "to": "https://b.example?token=secret"}]), false),
            (json!({"a": {"b": "https://b.example?token=secret"}}), false),
            (json!("secret".repeat(1000)), false),
            (json!("not-secret"), true),
        ] {
            let hidden = !hiding.shown(&value).to_string().contains("secret");
            assert_eq!(hidden, !shown, "{value}");
        }
        assert_eq!(hiding.shown(&json!(7)), json!(7));
        assert_eq!(hiding.shown(&json!(true)), json!("true"));
        assert_eq!(hiding.shown(&json!(["a", "b"])), json!("[\"a\",\"b\"]"));
    }

    #[test]
    fn a_secret_that_is_changed_is_another_and_all_else_is_shown() {
        let hiding = Hiding::of(None);
        let of = |hiding: &Hiding, secret: &str| {
            hiding.shown(&json!([{"name": "siem", "to": format!("https://u:p@a.example/in?key={secret}")}]))
        };
        let shown = of(&hiding, "aaaa").as_str().unwrap().to_owned();
        assert!(shown.contains("\"siem\"") && shown.contains("\"https://a.example/in\""), "{shown}");
        assert_ne!(of(&hiding, "aaaa"), of(&hiding, "bbbb"));
        // The same key, as it is kept, has the same digests; another one has others, so that who reads them cannot try what it might be.
        let (again, other) = (Hiding::of(hiding.text.as_deref()), Hiding::of(None));
        assert_eq!(of(&hiding, "aaaa"), of(&again, "aaaa"));
        assert_ne!(of(&hiding, "aaaa"), of(&other, "aaaa"));
        for odd in ["", "zz", "00"] {
            assert_eq!(Hiding::of(Some(odd)).text.unwrap().len(), 2 * KEY_BYTES, "{odd:?}");
        }
        // Also of what is too long to be shown.
        let long = |secret: &str| hiding.shown(&json!(["x".repeat(2000), format!("https://a.example/in?key={secret}")]));
        assert_ne!(long("aaaa"), long("bbbb"));
    }
}
