//! Programs of e2fsprogs, mtools, util-linux and QEMU, which know the formats of disks.

use std::env;
use std::io::{self, ErrorKind};
use std::process::{Command, Stdio};

use crate::failure::printable;

/// End of the search path: Debian's users do not have the folders of sfdisk and debugfs in theirs.
const SYSTEM_PATH: &str = ":/usr/sbin:/sbin";

/// Runs a program, and returns what it wrote to stdout.
///
/// # Errors
/// The program is missing, with the name of its Debian package, or its first line on stderr, which names the cause.
pub(super) fn run(command: &mut Command) -> io::Result<Vec<u8>> {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(SYSTEM_PATH);
    let output = command
        .env("LC_ALL", "C")
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| missing(command, error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let lines = [output.stderr, output.stdout].map(|text| String::from_utf8_lossy(&text).into_owned());
    let first = lines
        .iter()
        .find_map(|text| text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned));
    let why = first.unwrap_or_else(|| output.status.to_string());
    let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
    Err(io::Error::other(format!("{name}: {}", printable(why))))
}

fn missing(command: &Command, error: io::Error) -> io::Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let package = match name.as_str() {
        "sfdisk" => "fdisk",
        "blkid" | "mount" | "umount" => "util-linux",
        "qemu-img" => "qemu-utils",
        "debugfs" | "e2fsck" => "e2fsprogs",
        "cp" => "coreutils",
        _ => "mtools",
    };
    io::Error::new(
        ErrorKind::NotFound,
        format!("the program {name} is missing: install the package {package}"),
    )
}
