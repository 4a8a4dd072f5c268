//! Id of the current boot.

use std::fs;

use attest_wire::protocol::is_boot_id;

/// File with the id (proc_sys_kernel(5)). journald's field `_BOOT_ID` has the same, without hyphens.
const FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the id that the kernel has given this boot; it is the same in the initramfs and in the booted system.
#[must_use]
pub fn read() -> Option<String> {
    let id = fs::read_to_string(FILE).ok()?;
    Some(id.trim_end().to_owned()).filter(|id| is_boot_id(id))
}
