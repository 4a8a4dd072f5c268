//! Report of the fast VM on its console (`images/fast-init`): lines that begin with `@@`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::expected_files::WrittenFile;

/// Exit codes and the files that Ignition wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnitionOutcome {
    /// Exit codes by program: `attest-node`, `ignition-fetch`, ….
    pub exit_codes: BTreeMap<String, i32>,
    /// Files by their absolute path in the new system.
    pub files: BTreeMap<String, WrittenFile>,
    /// Config that attest-node fetched by a kubelet's certificate, if it did.
    pub config: Option<WrittenFile>,
    /// Lines of attest-node, the last one being its verdict.
    pub node_lines: Vec<String>,
}

impl IgnitionOutcome {
    /// Reads a whole console; fails unless the list is complete.
    pub fn parse(lines: &[String]) -> Result<Self> {
        let mut outcome = Self::default();
        let mut complete = false;
        for line in lines {
            if line.starts_with("attest-node: ") {
                outcome.node_lines.push(line.clone());
            }
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["@@", "exit", name, code] => {
                    let code = code.parse().with_context(|| format!("an exit code in {line:?}"))?;
                    outcome.exit_codes.insert((*name).to_owned(), code);
                }
                ["@@", "file", path, mode, sha256] => {
                    let mode = u32::from_str_radix(mode, 8).with_context(|| format!("a mode in {line:?}"))?;
                    let file = WrittenFile::File {
                        mode,
                        sha256: (*sha256).to_owned(),
                    };
                    outcome.files.insert((*path).to_owned(), file);
                }
                ["@@", "config", mode, sha256] => {
                    let mode = u32::from_str_radix(mode, 8).with_context(|| format!("a mode in {line:?}"))?;
                    let sha256 = (*sha256).to_owned();
                    outcome.config = Some(WrittenFile::File { mode, sha256 });
                }
                ["@@", "link", path, target] => {
                    outcome.files.insert(
                        (*path).to_owned(),
                        WrittenFile::Link {
                            target: (*target).to_owned(),
                        },
                    );
                }
                ["@@", "end"] => complete = true,
                ["@@", "begin"] | ["@@", "clock", _] => {}
                ["@@", ..] => bail!("a line of the VM's report that nobody understands: {line:?}"),
                _ => {}
            }
        }
        if !complete {
            bail!("the VM's report has no end");
        }
        Ok(outcome)
    }

    /// Returns attest-node's last line, which has its result.
    #[must_use]
    pub fn node_verdict(&self) -> Option<&str> {
        self.node_lines.last().map(String::as_str)
    }

    /// Returns whether Ignition reached its last stage, and every stage succeeded.
    #[must_use]
    pub fn ignition_succeeded(&self) -> bool {
        let mut stages = self.exit_codes.iter().filter(|(name, _)| name.starts_with("ignition-"));
        self.exit_codes.contains_key("ignition-files") && stages.all(|(_, code)| *code == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IgnitionOutcome> {
        IgnitionOutcome::parse(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parses_a_report() {
        let outcome =
            parse("noise\n@@ exit attest-node 1\n@@ begin\n@@ file /etc/a 644 abcd\n@@ link /etc/b ../c\n@@ config 600 ef01\n@@ end")
                .unwrap();
        assert_eq!(outcome.exit_codes.get("attest-node"), Some(&1));
        let file = WrittenFile::File {
            mode: 0o644,
            sha256: "abcd".to_owned(),
        };
        assert_eq!(outcome.files.get("/etc/a"), Some(&file));
        let config = WrittenFile::File {
            mode: 0o600,
            sha256: "ef01".to_owned(),
        };
        assert_eq!(outcome.config, Some(config));
        assert_eq!(outcome.files.get("/etc/b"), Some(&WrittenFile::Link { target: "../c".to_owned() }));
    }

    #[test]
    fn refuses_an_incomplete_report() {
        parse("@@ begin\n@@ file /etc/a 644 abcd").unwrap_err();
        parse("@@ file /etc/a 644\n@@ end").unwrap_err();
    }
}
