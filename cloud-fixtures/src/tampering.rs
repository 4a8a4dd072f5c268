//! Alterations of accepted evidence, one at a time: signed again by the right authority, by another one, or not at all.
//!
//! If the right authority signs an altered document, the rules must refuse it. If another one signs it, or if it is not signed again,
//! signature verification must refuse it.

use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde_json::Value;

use crate::aws::{NitroDocument, RegionAuthority};
use crate::azure::AzureAuthority;
use crate::google::JwtSigner;
use crate::pkcs7::{Pkcs7Key, TestMessage, in_lines};

/// Returns the document once for each value in it, with that value altered, as path (a JSON pointer) and document. Texts, numbers and
/// booleans become others of their kind, null becomes a text.
#[must_use]
pub fn each_value(document: &Value) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    leaves(document, "", &mut paths);
    let altered = |path: String| {
        let mut altered = document.clone();
        let value = altered.pointer_mut(&path).unwrap();
        *value = other(value);
        (path, altered)
    };
    paths.into_iter().map(altered).collect()
}

/// Returns the document once for each member of each object in it, without that member.
#[must_use]
pub fn each_member_removed(document: &Value) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    members(document, "", &mut paths);
    let without = |path: String| {
        let mut altered = document.clone();
        let (parent, name) = path.rsplit_once('/').unwrap();
        altered.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        (path, altered)
    };
    paths.into_iter().map(without).collect()
}

fn leaves(value: &Value, path: &str, paths: &mut Vec<String>) {
    match value {
        Value::Object(object) => object
            .iter()
            .for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), paths)),
        Value::Array(array) if !array.is_empty() => {
            let elements = array.iter().enumerate();
            elements.for_each(|(index, value)| leaves(value, &format!("{path}/{index}"), paths));
        }
        _ => paths.push(path.to_owned()),
    }
}

fn members(value: &Value, path: &str, paths: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        members(value, &path, paths);
        paths.push(path);
    }
}

fn other(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(other_text(text)),
        Value::Number(number) => number.as_u64().map_or(Value::from(1), |number| Value::from(number + 1)),
        Value::Bool(flag) => Value::Bool(!flag),
        _ => Value::String("altered".to_owned()),
    }
}

/// Returns another text of the same length and kind of characters, so that only the meaning is wrong.
fn other_text(text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    match chars.iter().rposition(char::is_ascii_alphanumeric) {
        Some(last) => chars[last] = if matches!(chars[last], '0' | 'a') { '1' } else { '0' },
        None => chars.push('0'),
    }
    chars.into_iter().collect()
}

/// Returns the bytes once for each of them, with one of its bits flipped.
pub fn each_byte(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len()).map(|position| {
        let mut flipped = bytes.to_vec();
        flipped[position] ^= 1 << (position % 8);
        flipped
    })
}

/// Flips bits like [`each_byte`] in a message in Base64, with line breaks or without.
pub fn each_byte_of_base64(text: &str) -> impl Iterator<Item = String> {
    let joined: String = text.split_ascii_whitespace().collect();
    let flipped: Vec<Vec<u8>> = each_byte(&BASE64.decode(joined.as_bytes()).unwrap()).collect();
    flipped.into_iter().map(|bytes| BASE64.encode(&bytes))
}

/// Returns the claims of an identity token.
#[must_use]
pub fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64URL_NOPAD.decode(part.as_bytes()).unwrap()).unwrap()
}

/// Returns an identity token with altered claims, signed by this key.
#[must_use]
pub fn identity_token(token: &str, signer: &JwtSigner, alter: impl FnOnce(&mut Value)) -> String {
    let mut claims = claims(token);
    alter(&mut claims);
    signer.sign(&claims)
}

/// Returns an identity token with altered claims, and the signature of the unaltered ones.
#[must_use]
pub fn unsigned_identity_token(token: &str, alter: impl FnOnce(&mut Value)) -> String {
    let mut claims = claims(token);
    alter(&mut claims);
    let parts: Vec<&str> = token.split('.').collect();
    format!(
        "{}.{}.{}",
        parts[0],
        BASE64URL_NOPAD.encode(claims.to_string().as_bytes()),
        parts[2]
    )
}

/// Returns an AWS identity document with the signature of another one.
#[must_use]
pub fn unsigned_identity_document(authority: &RegionAuthority, signed: &Value, shown: &Value) -> String {
    let message = authority.message(RegionAuthority::text(signed).as_bytes());
    in_lines_text(&showing(message, RegionAuthority::text(shown)).sign(authority.key()))
}

/// Returns an AWS identity document that names the region's certificate, and is signed by another key.
#[must_use]
pub fn foreign_identity_document(authority: &RegionAuthority, key: &Pkcs7Key, document: &Value) -> String {
    in_lines_text(&authority.message(RegionAuthority::text(document).as_bytes()).sign(key))
}

/// Returns an Azure attested document with the signature of another one.
#[must_use]
pub fn unsigned_attested_document(authority: &AzureAuthority, signed: &Value, shown: &Value) -> String {
    let message = authority.message(signed.to_string().as_bytes());
    BASE64.encode(&showing(message, shown.to_string()).sign(authority.signer()))
}

/// Returns an Azure attested document that names the metadata service's certificate, and is signed by another key.
#[must_use]
pub fn foreign_attested_document(authority: &AzureAuthority, key: &Pkcs7Key, document: &Value) -> String {
    BASE64.encode(&authority.message(document.to_string().as_bytes()).sign(key))
}

fn showing(message: TestMessage, content: String) -> TestMessage {
    message.but(|message| message.shown = Some(content.into_bytes()))
}

fn in_lines_text(message: &[u8]) -> String {
    String::from_utf8(in_lines(message)).unwrap()
}

/// Returns a NitroTPM document whose payload was altered after it was signed.
#[must_use]
pub fn unsigned_nitro_document(mut document: NitroDocument, alter: impl FnOnce(&mut NitroDocument)) -> Vec<u8> {
    let key = document.levels.last().unwrap().key.clone();
    let signature = crate::aws::nitro_tpm::sign(&key, &document.protected, &document.payload());
    alter(&mut document);
    document.signature = Some(signature);
    document.document()
}

/// Returns a presigned request with one header altered, and its old signature.
#[must_use]
pub fn presigned_request(request: &Value, header: &str, value: &str) -> Value {
    let mut altered = request.clone();
    let headers = altered["headers"].as_array_mut().unwrap();
    let header = headers.iter_mut().find(|found| found["name"] == header).unwrap();
    header["value"] = value.into();
    altered
}
