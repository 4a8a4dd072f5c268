//! Disks that were altered, or are damaged: reported, within a bound of time and memory, or read all the same. Never a panic.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::disks::coreos;
use super::*;

/// Alterations of each disk.
const ALTERED: u64 = 60;
/// A disk as small as this takes a tenth of a second; a loaded machine may need a hundred times that.
const SECONDS_LIMIT: &str = "60";
/// Address space of the process: the disk's files come to less than a tenth of it.
const MEMORY_LIMIT: &str = "--as=1073741824";

/// The next of numbers that are always the same (an LCG by Knuth's factors).
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

impl Files {
    /// Alters some bytes in one of these ranges of the disk at a time, and restores them after the command has run.
    fn survives(&self, ranges: &[(u64, u64)]) {
        let disk = File::options().read(true).write(true).open(self.path("disk.raw")).unwrap();
        let (mut state, mut read) = (1, 0);
        for (round, (first, length)) in (0..ALTERED).zip(ranges.iter().cycle()) {
            let place = first + next(&mut state) % length;
            let mut before = vec![0; 1 + usize::try_from(next(&mut state) % 8).unwrap()];
            disk.read_exact_at(&mut before, place).unwrap();
            let value = [0, 0xff, 0x80, 1][usize::try_from(round % 4).unwrap()];
            let altered: Vec<u8> = before
                .iter()
                .map(|byte| if round % 3 == 0 { byte ^ value } else { value })
                .collect();
            disk.write_all_at(&altered, place).unwrap();
            let output = Command::new("prlimit")
                .args([MEMORY_LIMIT, "timeout", "--signal=KILL", SECONDS_LIMIT])
                .arg(program().get_program())
                .args(["reference-values", "predict", "--secure-boot", "on", "--disk"])
                .arg(self.path("disk.raw"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_refused = output.status.code() == Some(1) && said.contains("disk.raw");
            assert!(
                (output.status.success() || is_refused) && !said.contains("panicked"),
                "{altered:x?} at {place}: {:?} {said}",
                output.status
            );
            read += usize::from(output.status.success());
            disk.write_all_at(&before, place).unwrap();
        }
        assert!(self.run("--secure-boot on --disk disk.raw").0 == Some(0) && read > 0);
    }
}

#[test]
fn attack_23_altered_disk_structures_never_panic() {
    let files = Files::new();
    let (system, boot) = coreos(&files);
    let [system, boot] = files.disk(&system, Some(&boot));
    let length = fs::metadata(files.path("disk.raw")).unwrap().len();
    files.survives(&[
        // Partition tables: a header, 128 entries of 128 bytes; at the end again.
        (512, 512 + 2 * 128),
        (length - 512, 92),
        // FAT: its parameters, tables and first folders.
        (system, 62),
        (system + 512, 16 * 1024),
        // ext4: the superblock, group descriptors, bitmaps and inodes.
        (boot + 1024, 1024),
        (boot + 2048, 64 * 1024),
    ]);
}
