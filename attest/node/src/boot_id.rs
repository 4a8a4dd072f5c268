//! Id of the current boot.

use std::{env, fs};

use attest_wire::protocol::is_boot_id;

/// File with the id (proc_sys_kernel(5)). journald's field `_BOOT_ID` has the same, without hyphens.
const FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Variable that systemd sets for each unit (systemd.exec(5)).
const OF_A_UNIT: &str = "INVOCATION_ID";

/// Returns the id that the kernel has given this boot; it is the same in the initramfs and in the booted system.
#[must_use]
pub fn read() -> Option<String> {
    let id = fs::read_to_string(FILE).ok()?;
    Some(id.trim_end().to_owned()).filter(|id| is_boot_id(id))
}

/// Returns the id, if a unit of systemd runs this program: whoever runs it by hand is in no boot of its own.
#[must_use]
pub fn of_unit() -> Option<String> {
    env::var_os(OF_A_UNIT)?;
    read()
}
