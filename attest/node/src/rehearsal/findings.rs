//! Findings of a rehearsal, for a person and for programs. None of them holds a secret.

use std::fmt::Write as _;

use serde::Serialize;

use crate::failure::{Failure, printable};

/// Importance of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    /// Something to know. It keeps no machine out by itself.
    Note,
    /// A reason for which the machine would not be trusted.
    Bad,
}

/// Fact about the machine, the pointer config or the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub severity: Severity,
    /// Subject of the finding, in one or two words.
    pub about: &'static str,
    pub said: String,
    /// Stable code of the failure or refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// All findings of one rehearsal, in the order of a boot.
#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    /// Set if every gateway of the pointer config would trust the machine.
    pub trusted: bool,
    pub findings: Vec<Finding>,
}

impl Findings {
    /// Adds a fact without a code.
    pub(super) fn add(&mut self, severity: Severity, about: &'static str, said: impl Into<String>) {
        self.findings.push(Finding {
            severity,
            about,
            said: printable(&said.into()),
            code: None,
            next_step: None,
        });
    }

    /// Adds a fact that should be changed, although no gateway requires it.
    pub(super) fn note(&mut self, about: &'static str, said: &str, next_step: &str) {
        self.findings.push(Finding {
            severity: Severity::Note,
            about,
            said: printable(said),
            code: None,
            next_step: Some(printable(next_step)),
        });
    }

    /// Adds a failure, with its code and the next step.
    pub(super) fn fail(&mut self, severity: Severity, about: &'static str, failure: &Failure) {
        self.findings.push(Finding {
            severity,
            about,
            said: printable(&failure.reason),
            code: Some(failure.code.clone()),
            next_step: Some(printable(&failure.next_step)),
        });
    }

    /// Adds a requirement of the gateway that is not met.
    pub(super) fn unmet(&mut self, about: &'static str, said: &str, code: &str) {
        self.findings.push(Finding {
            severity: Severity::Bad,
            about,
            said: printable(said),
            code: Some(printable(code)),
            next_step: None,
        });
    }

    /// Returns the findings as lines.
    #[must_use]
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for Finding {
            severity,
            about,
            said,
            code,
            next_step,
        } in &self.findings
        {
            let mark = match severity {
                Severity::Ok => "ok",
                Severity::Note => "note",
                Severity::Bad => "FAILS",
            };
            let code = code.as_ref().map(|code| format!(" [{code}]")).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{mark:<6} {about:<12} {said}{code}");
            if let Some(next_step) = next_step {
                let _ = writeln!(text, "{:<6} {:<12} next: {next_step}", "", "");
            }
        }
        let end = match self.trusted {
            true => "This machine would be trusted. Nothing was changed, and nothing was given to it.",
            false => "This machine would not be trusted. Nothing was changed.",
        };
        text.push_str(end);
        text.push('\n');
        text
    }
}
