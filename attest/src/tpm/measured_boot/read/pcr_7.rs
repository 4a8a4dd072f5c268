//! PCR 7: Secure Boot's variables, each in its place, and what has authorised what was booted.

use super::{EventReader, covered_data, other_variable, printable, unknown};
use crate::tpm::event_log::TrustedEvent;
use crate::tpm::measured_boot::event::{DatabaseName, Meaning, Proof, SecureBootVariable};
use crate::tpm::measured_boot::guid::Guid;
use crate::tpm::measured_boot::signatures::{AuthorisedBy, ImageAuthority, SignatureDatabase};
use crate::tpm::measured_boot::text::LogText;
use crate::tpm::measured_boot::variable::{GLOBAL, IMAGE_SECURITY, SHIM, VariableData};

/// Secure Boot's variables in the order that PCR 7 has to begin with (PFP 1.06, 3.3.4.8). `None` is SecureBoot itself.
const SECURE_BOOT: [(&str, Guid, Option<DatabaseName>); 5] = [
    ("SecureBoot", GLOBAL, None),
    ("PK", GLOBAL, Some(DatabaseName::PK)),
    ("KEK", GLOBAL, Some(DatabaseName::KEK)),
    ("db", IMAGE_SECURITY, Some(DatabaseName::Db)),
    ("dbx", IMAGE_SECURITY, Some(DatabaseName::Dbx)),
];

/// Variables that firmware may measure after these, before the separator.
const SECURE_BOOT_OPTIONAL: [(&str, Guid, Option<DatabaseName>); 2] = [
    ("dbt", IMAGE_SECURITY, Some(DatabaseName::Dbt)),
    ("dbr", IMAGE_SECURITY, Some(DatabaseName::Dbr)),
];

/// Number of variables that PCR 7 has to begin with.
pub(in crate::tpm::measured_boot) const SECURE_BOOT_VARIABLES: usize = SECURE_BOOT.len();

impl EventReader {
    /// Reads an event of PCR 7. An event that is not as required is not a variable of Secure Boot, regardless of its type in the log. Other
    /// events may come between the variables: the facts decide whether anything is proven then.
    pub(super) fn secure_boot(&mut self, event: &TrustedEvent<'_>) -> (Meaning, Proof) {
        let data = event.untrusted_data();
        // shim before 15.3 logged one byte more than it measured, and measured five that are nothing behind the variable (a recorded log).
        let shorter = || {
            data.split_last()
                .map(|(_, shorter)| shorter)
                .filter(|shorter| self.is_hash(event, shorter))
        };
        let (covered, padding) = match self.covered(event) {
            Some(data) => (data, 0),
            None => match shorter() {
                Some(data) => (data, 5),
                None => return unknown(event),
            },
        };
        let Some(variable) = VariableData::read(covered).filter(|variable| variable.padding <= padding) else {
            return (vendor_value(covered).unwrap_or_else(|| covered_data(covered)), Proof::Content);
        };
        if !self.authorities
            && padding == 0
            && let Some((name, vendor, database)) = SECURE_BOOT.get(self.secure_boot)
        {
            if variable.is_named(name)
                && variable.vendor == *vendor
                && let Some(variable) = prescribed(*database, variable.value)
            {
                self.secure_boot += 1;
                return (Meaning::SecureBootVariable { variable }, Proof::Content);
            }
            // Out of order: nothing that follows is in its place.
            self.authorities = true;
        }
        if !self.authorities && padding == 0 {
            for (place, (name, vendor, database)) in SECURE_BOOT_OPTIONAL.iter().enumerate().skip(self.optional) {
                if variable.is_named(name)
                    && variable.vendor == *vendor
                    && let Some(variable) = prescribed(*database, variable.value)
                {
                    self.optional = place + 1;
                    return (Meaning::SecureBootVariable { variable }, Proof::Content);
                }
            }
        }
        (authority(&variable), Proof::Content)
    }
}

/// Fewest bytes that a variable, an entry of a database, or the GUID that both begin with can have.
const GUID_BYTES: usize = 16;

/// A value that can be neither a variable, nor an entry of a database, nor a sentence.
fn vendor_value(data: &[u8]) -> Option<Meaning> {
    let is_known = data.len() < GUID_BYTES && (data.len() <= 1 || !is_text(data));
    is_known.then(|| Meaning::VendorValue {
        value: data_encoding::HEXLOWER.encode(data),
    })
}

/// Returns true for readable characters, in UTF-8 or ASCII of two bytes each, up to zeros at their end.
fn is_text(data: &[u8]) -> bool {
    let end = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let (narrow, _) = data.split_at(end);
    let wide: Vec<u8> = narrow.iter().step_by(2).copied().collect();
    let is_wide = narrow.iter().skip(1).step_by(2).all(|byte| *byte == 0) && narrow.len() > 1;
    printable(narrow).is_some() || (is_wide && printable(&wide).is_some())
}

/// A variable in its prescribed place.
fn prescribed(database: Option<DatabaseName>, value: &[u8]) -> Option<SecureBootVariable> {
    match database {
        None => Some(SecureBootVariable::SecureBoot {
            on: match value {
                // A variable that is not there is measured with a value of length 0 (PFP 1.06, 3.3.4.8).
                [0] | [] => Some(false),
                [1] => Some(true),
                _ => None,
            },
        }),
        Some(name) => Some(SecureBootVariable::Signatures {
            name,
            database: SignatureDatabase::read(value)?,
        }),
    }
}

/// Reads a variable of PCR 7 after those of Secure Boot. An authority has the name of the database in which it was found, and the form of
/// one entry.
fn authority(variable: &VariableData<'_>) -> Meaning {
    let mut all = SECURE_BOOT.iter().chain(&SECURE_BOOT_OPTIONAL);
    let named = all.find(|(name, vendor, _)| variable.vendor == *vendor && variable.is_named(name));
    if let Some((_, _, database)) = named
        && let Some(variable) = prescribed(*database, variable.value)
    {
        return Meaning::MisplacedVariable { variable };
    }
    if variable.vendor == SHIM && variable.is_named("SbatLevel") {
        return Meaning::SbatLevel {
            level: LogText::utf8(variable.value),
        };
    }
    match AuthorisedBy::read(variable.value) {
        Some(by) => Meaning::Authority {
            authority: ImageAuthority {
                variable: LogText::utf16(variable.name),
                vendor: variable.vendor,
                by,
            },
        },
        None => other_variable(variable),
    }
}
