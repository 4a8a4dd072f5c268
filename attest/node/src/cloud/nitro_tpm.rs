//! The NitroTPM's attestation document, by AWS's own program `nitro-tpm-attest`.
//!
//! The document comes by a vendor command that tss-esapi cannot send: it wants a salted session of its own, an NV index as a buffer
//! for CBOR, and a persistent EK. AWS's program does that, and is what AWS keeps working.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use attest_wire::aws::nitro_tpm::DOCUMENT_LIMIT_BYTES;

use crate::deadline::Deadline;
use crate::failure::printable;

use super::CloudError;

/// The program's name, looked for in `PATH`.
pub const PROGRAM: &str = "nitro-tpm-attest";
/// Time limit for a run. It needs a handful of TPM commands, one of which makes a key.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// Maximum length of the program's messages that is read.
const MESSAGE_LIMIT_BYTES: usize = 4096;

/// The program, if this node has it: a path as it is, a name in the folders of `path` (the variable `PATH`).
#[must_use]
pub fn find(program: &Path, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    std::env::split_paths(path?)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A document with this nonce and this user data.
///
/// # Arguments
/// `folder` is made for the program's input, and removed.
///
/// # Errors
/// [`CloudError::NitroTpm`].
pub fn document(program: &Path, folder: &Path, nonce: &[u8], user_data: &[u8], deadline: Deadline) -> Result<Vec<u8>, CloudError> {
    let failed = |problem: String| CloudError::NitroTpm {
        program: program.display().to_string(),
        problem,
    };
    let input = Input::write(folder, nonce, user_data).map_err(|error| failed(format!("{}: {error}", folder.display())))?;
    let mut child = Command::new(program)
        .arg("--nonce")
        .arg(input.file(NONCE))
        .arg("--user-data")
        .arg(input.file(USER_DATA))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("it cannot be started: {error}")))?;
    let result = run(&mut child, deadline.at_most(RUN_LIMIT));
    // Whatever came of it, it does not stay. Both fail only for a process that has ended.
    let _ = child.kill();
    let _ = child.wait();
    result.map_err(failed)
}

fn run(child: &mut Child, deadline: Deadline) -> Result<Vec<u8>, String> {
    let document = child.stdout.take().map(|output| read(output, DOCUMENT_LIMIT_BYTES));
    let messages = child.stderr.take().map(|output| read(output, MESSAGE_LIMIT_BYTES));
    let (Some(Ok(document)), Some(Ok(messages))) = (document, messages) else {
        return Err("its output cannot be read".to_owned());
    };
    let late = |_| "it took too long".to_owned();
    let document = document.recv_timeout(deadline.remaining()).map_err(late)?;
    if document.len() > DOCUMENT_LIMIT_BYTES {
        return Err(format!("it writes more than {DOCUMENT_LIMIT_BYTES} bytes"));
    }
    let messages = messages.recv_timeout(deadline.remaining()).map_err(late)?;
    // Its outputs are closed, so it has ended or is about to.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if deadline.remaining().is_zero() => return Err("it took too long".to_owned()),
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.to_string()),
        }
    };
    if !status.success() {
        let messages = printable(String::from_utf8_lossy(&messages).trim());
        return Err(format!("it ends with {status}: {messages}"));
    }
    if document.is_empty() {
        return Err("it writes nothing".to_owned());
    }
    Ok(document)
}

/// Reads an output in a thread of its own, so that the wait for it has an end. Reads one byte more than the limit, and then no more.
fn read(output: impl Read + Send + 'static, limit_bytes: usize) -> io::Result<Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX).saturating_add(1);
        let _ = output.take(limit).read_to_end(&mut bytes);
        // Nobody waits any more if it took too long.
        let _ = sender.send(bytes);
    })?;
    Ok(receiver)
}

const NONCE: &str = "nonce";
const USER_DATA: &str = "user-data";

/// Input files of the program; removed when dropped.
struct Input(PathBuf);

impl Input {
    fn write(folder: &Path, nonce: &[u8], user_data: &[u8]) -> io::Result<Self> {
        // What a killed run left behind.
        let _ = fs::remove_dir_all(folder);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let input = Self(folder.to_owned());
        for (name, bytes) in [(NONCE, nonce), (USER_DATA, user_data)] {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(input.file(name))?;
            file.write_all(bytes)?;
        }
        Ok(input)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Written by another process: a file that this one has open for writing, or a child that it forks meanwhile, cannot be executed.
    fn install(program: &Path, script: &str) {
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let script = format!("#!/bin/sh\n{script}\n");
        install.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(install.wait().unwrap().success());
    }

    /// Runs a shell script in the program's place; `$2` is the nonce's file, `$4` the user data's.
    fn check(script: &str, time: Duration, expect: Result<&[u8], &str>) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        install(&program, script);
        let input = folder.path().join("input");
        let result = document(&program, &input, b"NONCE", b"USER", Deadline::after(time));
        match expect {
            Ok(bytes) => assert_eq!(result.unwrap(), bytes, "{script}"),
            Err(part) => {
                let message = result.unwrap_err().to_string();
                assert!(message.contains(part), "{script}: {message}");
            }
        }
        assert!(!input.exists());
    }

    #[test]
    fn program_output_becomes_the_attestation_document() {
        let long = Duration::from_secs(60);
        check(
            r#"test "$1 $3 $#" = "--nonce --user-data 4" && cat "$2" "$4""#,
            long,
            Ok(b"NONCEUSER"),
        );
        check("echo note >&2; printf document", long, Ok(b"document"));
        check("printf part; echo 'no TPM' >&2; exit 3", long, Err("exit status: 3: no TPM"));
        check("exit 0", long, Err("writes nothing"));
        check("head -c 20000 /dev/zero", long, Err("more than 16384 bytes"));
        check("cat /dev/zero", long, Err("more than 16384 bytes"));
        check("printf document; exec sleep 600", Duration::from_millis(300), Err("took too long"));
        check(
            "printf document; exec >&- 2>&-; exec sleep 600",
            Duration::from_millis(300),
            Err("took too long"),
        );
        check("cat /dev/zero >&2", long, Err("exit status: 141"));
        check("printf '\\033[2J' >&2; exit 1", long, Err("exit status: 1:  [2J"));
    }

    #[test]
    fn program_that_cannot_be_started_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let run = |input: &Path| document(Path::new("/nonexistent/x"), input, b"", b"", Deadline::after(RUN_LIMIT));
        assert!(run(&folder.path().join("a")).unwrap_err().to_string().contains("cannot be started"));
        assert!(run(Path::new("/proc/no/such")).unwrap_err().to_string().contains("/proc/no/such"));
    }

    #[test]
    fn program_is_searched_in_absolute_path_entries() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(PROGRAM);
        let path = std::env::join_paths([Path::new("relative"), Path::new("/nonexistent"), folder.path()]).unwrap();
        assert_eq!(find(Path::new(PROGRAM), Some(&path)), None);
        fs::write(&program, "").unwrap();
        assert_eq!(find(Path::new(PROGRAM), Some(&path)), Some(program.clone()));
        assert_eq!(find(Path::new(PROGRAM), None), None);
        assert_eq!(find(&program, None), Some(program));
        assert_eq!(find(folder.path(), None), None);
        assert_eq!(find(Path::new("/nonexistent/x"), Some(&path)), None);
    }
}
