//! Process that is killed while it works.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a test of this binary as a process of its own, which finds this folder in this variable. Kills it after about this number of lines.
/// Returns all its output, including lines that were still buffered.
pub fn killed_after(lines: usize, test: &str, variable: &str, folder: &Path) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut all: Vec<String> = said.by_ref().take(lines).collect();
    child.kill().unwrap();
    all.extend(said);
    child.wait().unwrap();
    all
}
