//! Proof of the machine's identity by its firmware.

use std::collections::BTreeMap;

use super::VmId;
use crate::tpm::event_log::{EventLog, OS_SEPARATOR};
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// The PCR into which Azure's firmware extends the vmId.
pub const VM_ID_PCR: u8 = 6;

/// Event that firmware of 2026 extends after the vmId: the processor's architecture. Firmware of 2025 does not.
const ARCHITECTURES: [&[u8]; 2] = [br#"{"MachineArchitecture": "X64"}"#, br#"{"MachineArchitecture": "AARCH64"}"#];

/// Bytes that an `EV_SEPARATOR` measures (TCG PC Client Platform Firmware Profile, 10.4.1), after which the firmware extends nothing.
const SEPARATOR: [u8; 4] = [0; 4];

/// Returns whether the firmware has extended a vmId, before anything else, into the quoted PCR. Either the value is that of known firmware,
/// or an event log that leads to the quoted value shows it.
#[must_use]
pub fn is_measured(vm_id: &VmId, bank: HashAlg, quoted: &BTreeMap<u8, HexDigest>, event_log: Option<&[u8]>) -> bool {
    let Some(value) = quoted.get(&VM_ID_PCR).map(HexDigest::as_bytes) else {
        return false;
    };
    values(vm_id, bank).iter().any(|known| known == value)
        || event_log.is_some_and(|log| is_first_in(vm_id, log, bank, quoted) == Some(true))
}

/// Returns the values that PCR 6 has on a machine with a vmId, by known firmware; each also after systemd's separator.
fn values(vm_id: &VmId, bank: HashAlg) -> Vec<Vec<u8>> {
    let uuid = text(vm_id);
    let mut values = Vec::new();
    for architecture in [None].into_iter().chain(ARCHITECTURES.map(Some)) {
        for end in [None, Some(OS_SEPARATOR)] {
            let measured = [Some(uuid.as_bytes()), architecture, Some(&SEPARATOR), end];
            values.push(extended(bank, measured.into_iter().flatten()));
        }
    }
    values
}

/// Returns whether the first event of PCR 6 is the vmId, in a log that the quote proves. The firmware decides what follows: a later
/// extension cannot be first.
fn is_first_in(vm_id: &VmId, event_log: &[u8], bank: HashAlg, quoted: &BTreeMap<u8, HexDigest>) -> Option<bool> {
    let log = EventLog::parse(event_log).ok()?;
    let first = log.check_against(bank, quoted).ok()?.events_of(VM_ID_PCR)?.next()?;
    Some(first.digest() == bank.digest(&[text(vm_id).as_bytes()]).as_ref())
}

/// Returns the bytes that the firmware measures: `UUID: ` and the UUID in upper case.
fn text(vm_id: &VmId) -> String {
    format!("UUID: {}", vm_id.as_str().to_ascii_uppercase())
}

/// A PCR that began with zeros, after these were hashed and extended into it.
fn extended<'a>(bank: HashAlg, measured: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    measured.fold(vec![0; bank.digest_bytes()], |value, text| {
        bank.digest(&[&value, bank.digest(&[text]).as_ref()]).as_ref().to_vec()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn vm_id(text: &str) -> VmId {
        VmId::try_from(text.to_owned()).unwrap()
    }

    fn measured(text: &str, pcr: &str) -> bool {
        let quoted = BTreeMap::from([(VM_ID_PCR, HexDigest::from_hex(pcr).unwrap())]);
        is_measured(&vm_id(text), HashAlg::Sha256, &quoted, None)
    }

    /// PCR 6 of two machines of Azure's, which quoted it with the AK of their vTPMs: of December 2025, and of June 2026 with the architecture.
    #[test]
    fn real_machines_have_their_vm_id_in_pcr_6() {
        let (older, newer) = ("bdd43904-dbf8-4337-8b91-3adba92c5ebd", "3c18c97a-0d2a-4565-969d-166cdcef26a3");
        let of_older = "b45a383be281d303ab9fb7e3d3c25c72d139fb0525132d3af45d790fd5970bbe";
        let of_newer = "11ab9a32491a3c7aacb9c5a5fc5d119da5ff6fc7290f6b5bfdb4f5cde1e83802";
        assert!(measured(older, of_older));
        assert!(measured(newer, of_newer));
        assert!(!measured(older, of_newer));
        assert!(!measured(newer, of_older));
        // The first three fields in the order in which SMBIOS has their bytes.
        assert!(!measured("0439d4bd-f8db-3743-8b91-3adba92c5ebd", of_older));
        // The separator alone: PCR 6 of firmware that measures no vmId.
        assert!(!measured(older, "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969"));
    }

    #[test]
    fn empty_pcrs_prove_no_vm_id() {
        let id = vm_id("bdd43904-dbf8-4337-8b91-3adba92c5ebd");
        assert!(!is_measured(&id, HashAlg::Sha256, &BTreeMap::new(), None));
    }
}
