//! `attest-gateway audit`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::audit::{Blobs, ReplayError, replay};
use attest_gateway::settings::Settings;
use serde::Deserialize;

use super::table;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each recorded evidence is verified and appraised again with the recorded endorsements, reference values, keys and time.\nExit code 1 if any decision comes out otherwise than recorded."
)]
pub struct Arguments {
    /// Only the decision with this id.
    #[arg(long, value_name = "ID")]
    decision: Option<String>,
    /// The attestation log [default: the gateway's own].
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Line {
    id: String,
    time: String,
    decision: String,
    verdict: String,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    basis: Option<serde::de::IgnoredAny>,
}

/// Refusals that the evidence alone cannot show again: they were made from the store, or from the policy.
const NOT_FROM_EVIDENCE: [&str; 3] = ["challenge-spent", "node-name-taken", "attested-not-accepted"];
/// Refusals of evidence that was not looked at, because its challenge was not: nothing of it is kept.
const UNREAD: [&str; 2] = ["challenge-invalid", "challenge-expired"];

impl Line {
    /// Whether there is nothing to judge, and nothing that should be there.
    fn is_unread(&self) -> bool {
        self.basis.is_none() && self.verdict == "refused" && self.code.as_deref().is_some_and(|code| UNREAD.contains(&code))
    }
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let log = arguments.log.clone().unwrap_or_else(|| settings.attestation_log());
    let blobs = Blobs::open(&settings.state.join("evidence"))?;
    let mut rows = Vec::new();
    let mut differ = false;
    for (number, text) in BufReader::new(File::open(&log).with_context(|| log.display().to_string())?)
        .lines()
        .enumerate()
    {
        let text = text?;
        let line: Line = serde_json::from_str(&text).with_context(|| format!("{} line {}", log.display(), number + 1))?;
        if line.decision != "evidence" || arguments.decision.as_ref().is_some_and(|wanted| *wanted != line.id) {
            continue;
        }
        let recorded = match (line.verdict.as_str(), &line.code) {
            ("refused", Some(code)) => code.clone(),
            (verdict, None) => verdict.to_owned(),
            // No decision is written so.
            (verdict, Some(code)) => format!("{verdict} {code}"),
        };
        let again = match replay(&text, &blobs) {
            _ if line.is_unread() => "unread".to_owned(),
            Ok(_) => "trusted".to_owned(),
            Err(ReplayError::Reject(reject)) => reject.code().to_owned(),
            Err(error) => format!("cannot: {error}"),
        };
        let same =
            line.is_unread() || again == recorded || (NOT_FROM_EVIDENCE.contains(&recorded.as_str()) && !again.starts_with("cannot"));
        differ |= !same;
        let identity = line
            .identity
            .map(|identity| identity.chars().take(20).collect())
            .unwrap_or_default();
        rows.push([
            line.time,
            line.id,
            identity,
            recorded,
            again,
            if same { "same" } else { "DIFFERENT" }.to_owned(),
        ]);
    }
    print!("{}", table(["TIME", "DECISION", "IDENTITY", "RECORDED", "AGAIN", ""], &rows));
    Ok(if differ { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
