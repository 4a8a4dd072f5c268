//! CoRIM (draft-ietf-rats-corim), as far as reference values need it: one unsigned CoRIM for a generation, with one CoMID, without a profile.
//!
//! `corim-rs` is not used: some hundred of its lines panic if a value is not as expected, and it has a single maintainer. This module has
//! the part of the draft's CDDL that a PCR or the digest of an event needs. That is `reference-triples` (key 0) of `measurement-map`s, with
//! `integrity-registers` (14) for PCRs, `digests` (2) for events, whose `mkey` (0) names the list, and `name` (11). Nothing signs it: the
//! administrator who imports a CoRIM vouches for it.

use std::collections::{BTreeMap, BTreeSet};

use attest_wire::HashAlg;
use ciborium::Value;

use super::{Digests, EventValue, Generation, PcrValue, ReferenceSetError, SET_LIMIT_BYTES, SectionValue, Time, ValueOrigin, Values};
use crate::values::HexDigest;

/// CBOR tag of a `tagged-unsigned-corim-map`.
const CORIM_TAG: u64 = 501;
/// CBOR tag of a `tagged-concise-mid-tag`.
const COMID_TAG: u64 = 506;
/// Epoch-based time (RFC 8949, 3.4.2).
const TIME_TAG: u64 = 1;
/// Maximum depth of nested values.
const DEPTH_LIMIT: usize = 24;
/// The class of the environment that is written: `vendor` (1) and `model` (2).
const CLASS: [(u8, &str); 2] = [(1, "attest-gateway"), (2, "measured boot")];

/// Reason why bytes are not a CoRIM that can be imported, or a generation cannot be written as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorimError {
    #[error("{found} bytes, at most {SET_LIMIT_BYTES} are read")]
    TooLarge { found: usize },
    /// No CBOR, or something behind it.
    #[error("no CBOR: {0}")]
    Cbor(String),
    /// Not as the draft has it, or something that is not read.
    #[error("{0}")]
    Form(&'static str),
    /// An `mkey` that names no list.
    #[error("a measurement is of {0:?}, which is not a known list of reference values")]
    Element(String),
    #[error(transparent)]
    Values(#[from] ReferenceSetError),
}

/// Writes a generation as an unsigned CoRIM.
///
/// # Errors
/// [`CorimError`].
pub fn to_corim(generation: &Generation) -> Result<Vec<u8>, CorimError> {
    generation.check()?;
    let values = &generation.values;
    let mut claims = Vec::new();
    // A map has no PCR twice: a measurement ends where one comes again.
    let mut registers: Vec<(u8, Value)> = Vec::new();
    for value in &values.pcrs {
        if registers.iter().any(|(pcr, _)| *pcr == value.pcr) {
            claims.push(registers_value(std::mem::take(&mut registers)));
        }
        registers.push((value.pcr, digests(&value.digests)));
    }
    if !registers.is_empty() {
        claims.push(registers_value(registers));
    }
    for (list, events) in values.named_lists() {
        let written = |event: &EventValue| measurement(list, vec![(2, digests(&event.digests))], event.name.as_deref());
        claims.extend(events.iter().map(written));
    }
    for hash in &values.dbx {
        let digest = [(HashAlg::Sha256, hash.clone())].into();
        claims.push(measurement("dbx", vec![(2, digests(&digest))], None));
    }
    for value in &values.uki_sections {
        claims.push(measurement(
            "uki_sections",
            vec![(2, digests(&value.digests))],
            Some(&value.section),
        ));
    }
    for version in &values.firmware_versions {
        let version = map([(0, Value::from(version.as_str()))]);
        claims.push(measurement("firmware_versions", vec![(0, version)], None));
    }
    let class = map(CLASS.map(|(key, text)| (key, Value::from(text))));
    let triple = Value::Array(vec![map([(0, class)]), Value::Array(claims)]);
    let triples = map([(0, Value::Array(vec![triple]))]);
    let comid = map([(1, map([(0, Value::from(generation.name.as_str()))])), (4, triples)]);
    let comid = Value::Tag(COMID_TAG, Box::new(Value::Bytes(encoded(&comid)?)));
    let mut corim = vec![(0, Value::from(generation.name.as_str())), (1, Value::Array(vec![comid]))];
    if let Some(expires) = generation.expires {
        let time = |time: Time| Value::Tag(TIME_TAG, Box::new(Value::from(time.at)));
        corim.push((4, map([(0, time(generation.added)), (1, time(expires))])));
    }
    encoded(&Value::Tag(CORIM_TAG, Box::new(map(corim))))
}

/// Reads a generation, with the time of its addition, the administrator who adds it, and the name of the file.
///
/// # Errors
/// [`CorimError`].
pub fn from_corim(bytes: &[u8], added: Time, by: &str, file: &str) -> Result<Generation, CorimError> {
    if bytes.len() > SET_LIMIT_BYTES {
        return Err(CorimError::TooLarge { found: bytes.len() });
    }
    let Value::Tag(CORIM_TAG, corim) = decoded(bytes)? else {
        return Err(CorimError::Form(
            "it is not an unsigned CoRIM (tag 501): verify the signature, then extract the signed payload",
        ));
    };
    let corim = members(&corim, &[0, 1, 4, 5], "the CoRIM has a profile, or other members that are not read")?;
    let name = text(corim.get(&0), "the CoRIM has no name of text")?;
    let mut values = Values::default();
    for tag in array(corim.get(&1).copied(), "the CoRIM has no tags")? {
        let Value::Tag(COMID_TAG, comid) = tag else {
            return Err(CorimError::Form("a tag of the CoRIM is not a CoMID (tag 506)"));
        };
        let Value::Bytes(comid) = comid.as_ref() else {
            return Err(CorimError::Form("a CoMID is not a byte string"));
        };
        comid_values(&decoded(comid)?, &mut values)?;
    }
    let generation = Generation {
        name,
        added,
        by: by.to_owned(),
        from: ValueOrigin::Imported { file: file.to_owned() },
        expires: corim.get(&4).map(|validity| expires(validity)).transpose()?,
        values,
    };
    generation.check()?;
    Ok(generation)
}

fn comid_values(comid: &Value, values: &mut Values) -> Result<(), CorimError> {
    let comid = members(comid, &[0, 1, 2, 4], "a CoMID has links, or other members that are not read")?;
    let triples = comid.get(&4).ok_or(CorimError::Form("a CoMID has no triples"))?;
    let triples = members(triples, &[0], "a CoMID has other triples than reference values")?;
    for triple in array(triples.get(&0).copied(), "a CoMID has no reference values")? {
        let [_environment, claims] = array(Some(triple), "a triple is not a pair")? else {
            return Err(CorimError::Form("a triple is not a pair"));
        };
        for claim in array(Some(claims), "a triple has no measurements")? {
            let claim = members(
                claim,
                &[0, 1],
                "a measurement has an authorization or other members that are not read",
            )?;
            let measured = claim.get(&1).ok_or(CorimError::Form("a measurement has no values"))?;
            let measured = members(measured, &[0, 2, 11, 14], "a measurement has values that are not read")?;
            let element = claim.get(&0).and_then(|element| element.as_text()).unwrap_or_default();
            add(values, element, &measured)?;
        }
    }
    Ok(())
}

fn add(values: &mut Values, element: &str, measured: &BTreeMap<u64, &Value>) -> Result<(), CorimError> {
    let name = measured.get(&11).map(|name| text(Some(name), "a name is not a text")).transpose()?;
    if let Some(registers) = measured.get(&14) {
        if measured.contains_key(&0) || measured.contains_key(&2) {
            return Err(CorimError::Form("a measurement has integrity registers and other values"));
        }
        let mut read = BTreeSet::new();
        for (register, value) in registers.as_map().ok_or(CorimError::Form("integrity registers are not a map"))? {
            let pcr = register.as_integer().and_then(|register| u8::try_from(register).ok());
            let pcr = pcr.ok_or(CorimError::Form("an integrity register is not a PCR"))?;
            if !read.insert(pcr) {
                return Err(CorimError::Form("a PCR is there twice in a measurement"));
            }
            values.pcrs.push(PcrValue {
                pcr,
                digests: read_digests(value)?,
            });
        }
        return Ok(());
    }
    if element == "firmware_versions" {
        let version = measured.get(&0).ok_or(CorimError::Form("a version is missing"))?;
        let version = members(version, &[0, 1], "a version has other members")?;
        values.firmware_versions.push(text(version.get(&0), "a version is not a text")?);
        return Ok(());
    }
    let digests = read_digests(measured.get(&2).ok_or(CorimError::Form("a measurement has no digests"))?)?;
    match element {
        "dbx" => values.dbx.extend(digests.into_values()),
        "uki_sections" => values.uki_sections.push(SectionValue {
            section: name.ok_or(CorimError::Form("a section has no name"))?,
            digests,
        }),
        element => {
            let list = values
                .list_named(element)
                .ok_or_else(|| CorimError::Element(crate::values::printable(element, 64)))?;
            list.push(EventValue { digests, name });
        }
    }
    Ok(())
}

fn expires(validity: &Value) -> Result<Time, CorimError> {
    let validity = members(validity, &[0, 1], "the validity has other members")?;
    let Some(Value::Tag(TIME_TAG, until)) = validity.get(&1) else {
        return Err(CorimError::Form("the validity has no time until when"));
    };
    let until = until.as_integer().and_then(|until| u64::try_from(until).ok());
    until
        .map(|at| Time { at })
        .ok_or(CorimError::Form("the validity's time is not a number of seconds"))
}

fn registers_value(registers: Vec<(u8, Value)>) -> Value {
    measurement("pcrs", vec![(14, map(registers))], None)
}

fn measurement(element: &str, mut values: Vec<(u8, Value)>, name: Option<&str>) -> Value {
    values.extend(name.map(|name| (11, Value::from(name))));
    map([(0, Value::from(element)), (1, map(values))])
}

/// `digests-type`, by the numbers of IANA's registry of named information.
fn digests(digests: &Digests) -> Value {
    let one = |(bank, digest): (&HashAlg, &HexDigest)| {
        let algorithm: u8 = match bank {
            HashAlg::Sha256 => 1,
            HashAlg::Sha384 => 7,
            HashAlg::Sha512 => 8,
        };
        Value::Array(vec![algorithm.into(), Value::Bytes(digest.as_bytes().to_vec())])
    };
    Value::Array(digests.iter().map(one).collect())
}

fn read_digests(value: &Value) -> Result<Digests, CorimError> {
    let mut digests = Digests::new();
    for digest in array(Some(value), "digests are not a list")? {
        let [algorithm, Value::Bytes(bytes)] = array(Some(digest), "a digest is not a pair")? else {
            return Err(CorimError::Form("a digest is not a pair"));
        };
        let number = algorithm.as_integer().and_then(|number| u8::try_from(number).ok());
        let bank = match (number, algorithm.as_text()) {
            (Some(1), _) | (_, Some("sha-256")) => HashAlg::Sha256,
            (Some(7), _) | (_, Some("sha-384")) => HashAlg::Sha384,
            (Some(8), _) | (_, Some("sha-512")) => HashAlg::Sha512,
            _ => {
                return Err(CorimError::Form(
                    "a digest is of another algorithm than SHA-256, SHA-384 or SHA-512",
                ));
            }
        };
        let digest = HexDigest::new(bytes).ok_or(CorimError::Form("a digest has a length that no digest has"))?;
        if digests.insert(bank, digest).is_some() {
            return Err(CorimError::Form("a value has two digests of one algorithm"));
        }
    }
    Ok(digests)
}

fn map(members: impl IntoIterator<Item = (u8, Value)>) -> Value {
    Value::Map(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// The members of a map, each once, of which there may be these.
fn members<'v>(value: &'v Value, known: &[u64], otherwise: &'static str) -> Result<BTreeMap<u64, &'v Value>, CorimError> {
    let mut found = BTreeMap::new();
    for (key, member) in value.as_map().ok_or(CorimError::Form(otherwise))? {
        let key = key.as_integer().and_then(|key| u64::try_from(key).ok());
        let key = key.filter(|key| known.contains(key)).ok_or(CorimError::Form(otherwise))?;
        if found.insert(key, member).is_some() {
            return Err(CorimError::Form("a member is there twice"));
        }
    }
    Ok(found)
}

fn array<'v>(value: Option<&'v Value>, otherwise: &'static str) -> Result<&'v [Value], CorimError> {
    value
        .and_then(|value| value.as_array())
        .map(Vec::as_slice)
        .ok_or(CorimError::Form(otherwise))
}

fn text(value: Option<&&Value>, otherwise: &'static str) -> Result<String, CorimError> {
    value
        .and_then(|value| value.as_text())
        .map(str::to_owned)
        .ok_or(CorimError::Form(otherwise))
}

fn encoded(value: &Value) -> Result<Vec<u8>, CorimError> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).map_err(|error| CorimError::Cbor(error.to_string()))?;
    Ok(bytes)
}

fn decoded(mut bytes: &[u8]) -> Result<Value, CorimError> {
    let value =
        ciborium::de::from_reader_with_recursion_limit(&mut bytes, DEPTH_LIMIT).map_err(|error| CorimError::Cbor(error.to_string()))?;
    match bytes.is_empty() {
        true => Ok(value),
        false => Err(CorimError::Cbor(format!("{} bytes are behind it", bytes.len()))),
    }
}
