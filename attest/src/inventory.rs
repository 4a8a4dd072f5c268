//! Inventories: which machines may join a pool, one by one.
//!
//! A cloud says which account an instance belongs to, and the rules for the cloud say what it must look like. Only the administrator who
//! created the machines knows which of the account's machines are the cluster's, and which of those are control plane.

use std::collections::BTreeMap;

use crate::claims::{Claims, NodeIdentity};
use crate::kinds::{IdentityForm, Kind, Verifier, of_room};
use crate::reject::Reject;
use crate::tpm::{EndorsedBy, ek};
use crate::withheld::Withheld;

/// Most machines of an inventory: ten times what a Kubernetes cluster may have.
pub const INVENTORY_LIMIT_MACHINES: usize = 50_000;
/// Longest line, in bytes: the longest identity followed by a TPM has about 160.
const LINE_LIMIT_BYTES: usize = 512;

/// The machines of a pool, by their identities ([`crate::NodeIdentity`]), each perhaps with its TPM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    machines: BTreeMap<String, Option<String>>,
}

/// A line that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// The line does not name a machine.
    #[error("line {line}: {found:?} is not a machine: {problem}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The line's text, or its beginning.
        found: String,
        /// The problem with the line, in words.
        problem: String,
    },
    /// A machine is listed twice.
    #[error("line {line}: {machine} is named twice")]
    Repeated {
        /// The second line's number, from 1.
        line: usize,
        machine: String,
    },
    #[error("more than {INVENTORY_LIMIT_MACHINES} machines")]
    TooMany,
}

impl Inventory {
    /// Reads one machine for each line, as the attestation log has it: `aws:<account>/<instance>`, `aws-nitrotpm:<instance>`,
    /// `gcp:<project>/<instance id>`, or `azure:<subscription>/<vmId>`. A machine that is not in a cloud is `tpm:<EkDigest>`. After an
    /// instance, `tpm:<EkDigest>` may name its TPM. Blank lines, and the text after a `#`, are for people.
    ///
    /// # Errors
    /// [`InventoryError`].
    pub fn parse(text: &str) -> Result<Self, InventoryError> {
        let mut machines = BTreeMap::new();
        for (index, whole) in text.lines().enumerate() {
            let line = index + 1;
            let said = whole.split('#').next().unwrap_or_default();
            let wrong = |problem: String| InventoryError::Line {
                line,
                found: said.trim().chars().take(LINE_LIMIT_BYTES).collect(),
                problem,
            };
            let mut words = said.split_ascii_whitespace();
            let Some(machine) = words.next() else { continue };
            if said.len() > LINE_LIMIT_BYTES {
                return Err(wrong("it is too long".to_owned()));
            }
            let tpm = words.next();
            if words.next().is_some() {
                return Err(wrong("a line has an identity, and optionally a TPM after it".to_owned()));
            }
            check_identity(machine).map_err(wrong)?;
            if tpm.is_some_and(|tpm| !is_tpm(tpm) || is_tpm(machine)) {
                return Err(wrong(
                    "after an instance, only its TPM may follow, such as tpm:<64 hexadecimal digits>".to_owned(),
                ));
            }
            if machines.len() == INVENTORY_LIMIT_MACHINES {
                return Err(InventoryError::TooMany);
            }
            if machines.insert(machine.to_owned(), tpm.map(str::to_owned)).is_some() {
                return Err(InventoryError::Repeated {
                    line,
                    machine: machine.to_owned(),
                });
            }
        }
        Ok(Self { machines })
    }

    /// Returns whether one of the machines has this identity.
    #[must_use]
    pub fn names(&self, machine: &NodeIdentity) -> bool {
        self.machines.contains_key(machine.as_str())
    }

    /// The machines, and the TPMs that they have, as far as the inventory says.
    pub fn machines(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.machines.iter().map(|(machine, tpm)| (machine.as_str(), tpm.as_deref()))
    }

    /// Returns whether the inventory names no TPM at all. Then a TPM that only its manufacturer vouches for could be shown with any
    /// instance's evidence.
    #[must_use]
    pub fn names_no_tpm(&self) -> bool {
        self.machines.values().all(Option::is_none)
    }

    /// Checks that the machine is one of these: the instance, if a cloud has identified one, or else the TPM. A TPM shown with an instance
    /// must be the one that the inventory names, if it names one. If only the TPM's manufacturer vouches for it, the inventory must name
    /// one: nothing else proves that both belong to one machine.
    ///
    /// # Errors
    /// [`Reject::NotInInventory`] and [`Reject::InventoryTpm`].
    pub fn admit(&self, claims: &Claims) -> Result<(), Reject> {
        let machine = claims.instance().unwrap_or_else(|| claims.identity());
        let Some(named) = self.machines.get(machine.as_str()) else {
            return Err(Reject::NotInInventory {
                machine: machine.to_string(),
            });
        };
        let shown = claims.tpm().filter(|_| claims.instance().is_some());
        let by_maker = shown.is_some_and(|tpm| matches!(tpm.endorsed_by, EndorsedBy::Root { .. }));
        let ek = shown.map(|tpm| format!("tpm:{}", tpm.ek_digest));
        if fits(named.as_deref(), ek.as_deref(), by_maker) {
            return Ok(());
        }
        Err(Reject::InventoryTpm {
            machine: machine.to_string(),
            found: ek.unwrap_or_else(|| "none".to_owned()),
            accepted: Withheld::from_text(
                named
                    .as_deref()
                    .unwrap_or("no TPM, because its inventory lists none for that instance"),
            ),
        })
    }

    /// Returns whether a machine that was admitted once would still be admitted: one with this identity, as this instance, if that differs.
    /// `by_maker`: only the TPM's manufacturer has vouched for the TPM.
    #[must_use]
    pub fn still_admits(&self, identity: &NodeIdentity, instance: Option<&NodeIdentity>, by_maker: bool) -> bool {
        let named = self.machines.get(instance.unwrap_or(identity).as_str());
        let ek = instance.map(|_| identity.as_str());
        named.is_some_and(|named| fits(named.as_deref(), ek, by_maker))
    }
}

/// Returns whether a TPM shown together with an instance fits the inventory.
fn fits(named: Option<&str>, shown: Option<&str>, by_maker: bool) -> bool {
    match named {
        Some(_) => named == shown,
        None => shown.is_none() || !by_maker,
    }
}

/// Checks that a text is an identity in the spelling of the evidence kinds. An inventory with another spelling would admit no machine.
fn check_identity(text: &str) -> Result<(), String> {
    let (prefix, _) = text.split_once(':').unwrap_or((text, ""));
    if forms().any(|form| form.is_of(text)) {
        return Ok(());
    }
    Err(if forms().any(|form| form.prefix == prefix) {
        let known: Vec<&str> = forms().map(|form| form.form).collect();
        format!("identities are {}", known.join(", "))
    } else {
        let known: Vec<String> = forms().map(|form| format!("{}:", form.prefix)).collect();
        format!("an identity begins with {}", known.join(", "))
    })
}

fn forms() -> impl Iterator<Item = &'static IdentityForm> {
    Kind::ALL.into_iter().flat_map(|kind| of_room!(kind, Verifier::IDENTITIES))
}

fn is_tpm(text: &str) -> bool {
    text.strip_prefix("tpm:").is_some_and(ek::is_digest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<usize, &str>) {
        match (Inventory::parse(text), expect) {
            (Ok(inventory), Ok(machines)) => assert_eq!(inventory.machines().count(), machines, "{text}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text:?}: {error}"),
            (found, _) => unreachable!("{text:?}: {found:?}"),
        }
    }

    #[test]
    fn attack_30_inventory_admits_a_listed_machine_and_its_tpm() {
        let [tpm, other] = ["ab", "cd"].map(|digits| NodeIdentity::from_evidence(format!("tpm:{}", digits.repeat(32))));
        let instance = NodeIdentity::from_evidence("gcp:p/1".to_owned());
        let check = |text: &str, identity: &NodeIdentity, instance: Option<&NodeIdentity>, expect: [bool; 2]| {
            let inventory = Inventory::parse(text).unwrap();
            let found = [false, true].map(|by_maker| inventory.still_admits(identity, instance, by_maker));
            assert_eq!(found, expect, "{text:?}");
        };
        let with_tpm = format!("gcp:p/1 {tpm}");
        check("", &instance, None, [false; 2]);
        check("gcp:p/2", &instance, None, [false; 2]);
        check("gcp:p/1", &instance, None, [true; 2]);
        check(&with_tpm, &instance, None, [false; 2]);
        check(tpm.as_str(), &tpm, None, [true; 2]);
        check(other.as_str(), &tpm, None, [false; 2]);
        check("gcp:p/1", &tpm, Some(&instance), [true, false]);
        check(&with_tpm, &tpm, Some(&instance), [true; 2]);
        check(&with_tpm, &other, Some(&instance), [false; 2]);
        check(tpm.as_str(), &tpm, Some(&instance), [false; 2]);
    }

    #[test]
    fn inventory_line_is_an_identity_with_optional_tpm() {
        let (ek, uuid) = ("ab".repeat(32), "8a205152-b25a-417f-a676-80465535a6c9");
        check("", Ok(0));
        check("# all of them\n\n  \n", Ok(0));
        check(
            "aws:123456789012/i-0123456789abcdef0 # the first\r\ngcp:my-project/152986662232938449\n",
            Ok(2),
        );
        check("gcp:example.com:my-project/1\naws-nitrotpm:i-0123456789abcdef0", Ok(2));
        check(&format!("azure:{uuid}/{uuid}\ttpm:{ek}\ntpm:{ek}"), Ok(2));
        check(
            "aws:123456789012/i-1\naws:123456789012/i-1 # again",
            Err("line 2: aws:123456789012/i-1 is named twice"),
        );
        for wrong in [
            "worker-7",
            "aws:i-0123456789abcdef0",
            "aws:12345678901/i-1",
            "aws:123456789012/i-",
            "aws:123456789012/I-1",
            "aws-nitrotpm:123456789012/i-1",
            "aws-enclave:i-1",
            "gcp:my-project",
            "gcp:my-project/worker-7",
            "gcp:/1",
            &format!("azure:{uuid}"),
            &format!("azure:{uuid}/{}", uuid.to_uppercase()),
            "tpm:ab",
            &format!("tpm:{}", ek.to_uppercase()),
            &format!("tpm:{ek} tpm:{ek}"),
            "gcp:p/1 tpm:ab",
            "gcp:p/1 gcp:p/2",
            "gcp:p/1, gcp:p/2",
            &format!("gcp:p/1 tpm:{ek} tpm:{ek}"),
            &format!("gcp:{}/1", "p".repeat(600)),
        ] {
            check(&format!("\n{wrong}"), Err("line 2: "));
        }
        let many = |count: usize| -> String { (0..count).map(|id| format!("gcp:p/{id}\n")).collect() };
        check(&many(INVENTORY_LIMIT_MACHINES), Ok(INVENTORY_LIMIT_MACHINES));
        check(&many(INVENTORY_LIMIT_MACHINES + 1), Err("more than 50000 machines"));
    }
}
