//! Description of the measuring machine.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns a description of this machine, of its tools, and of the build.
pub fn described() -> Vec<(String, String)> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let folder = std::env::temp_dir();
    let revision = command_output("git", &["describe", "--always", "--dirty", "--abbrev=12", "--match="]);
    [
        ("Processor", field(&cpus, "model name").to_owned()),
        ("Cores", cores.to_string()),
        ("Memory", mebibytes(field(&read("/proc/meminfo"), "MemTotal"))),
        ("Kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("Filesystem of the state", filesystem(&read("/proc/self/mounts"), &folder)),
        ("rustc", command_output("rustc", &["--version"])),
        ("Commit", revision),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}

/// Returns the first value of a field in a file of lines `name : value`.
pub fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.into_iter().find(|(field, _)| field.trim() == name);
    found.map_or("unknown", |(_, value)| value.trim())
}

/// Returns the filesystem under a folder, and its device, by the list of mounts.
pub fn filesystem(mounts: &str, folder: &Path) -> String {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?, words.next()?))
    });
    let under = mounts.filter(|(_, point, _)| folder.starts_with(point));
    // Of two at one place the later one covers the other.
    let found = under.max_by_key(|(_, point, _)| point.len());
    found.map_or_else(
        || "unknown".to_owned(),
        |(device, _, kind)| format!("{kind} on {device}, {}", folder.display()),
    )
}

/// Converts a text like `16384256 kB` to MiB.
fn mebibytes(kibibytes: &str) -> String {
    let number = kibibytes.trim_end_matches(" kB").parse::<u64>();
    number.map_or_else(|_| "unknown".to_owned(), |number| format!("{} MiB", number / 1024))
}

fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}
