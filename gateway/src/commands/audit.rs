//! `attest-gateway audit`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::api::Refusal;
use attest_gateway::audit::{Blobs, Digests, ReplayError, replay, replay_kubelet};
use attest_gateway::settings::Settings;
use serde::Deserialize;

use super::table;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each recorded evidence is verified and appraised again with the recorded endorsements, reference values, keys and time, and each\nclient certificate of a kubelet with the recorded CAs, names and time.\nExit code 1 if any decision comes out otherwise than recorded."
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
    shown: String,
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    basis: Option<BasisParts>,
}

/// Of the basis, what says how much of it there is to judge.
#[derive(Debug, Default, Deserialize)]
struct BasisParts {
    #[serde(default)]
    client_chain: Vec<String>,
    #[serde(default)]
    digests: Option<Digests>,
}

/// Refusals that the evidence alone cannot show again: they were made from the store, from the policy, or from what there was to serve.
const NOT_FROM_EVIDENCE: [&str; 6] = [
    "challenge-spent",
    "node-name-taken",
    "node-revoked",
    "attested-not-accepted",
    "kubelet-not-accepted",
    "spec-version-too-old",
];
/// Refusals of evidence that was not looked at, because its challenge was not: nothing of it is kept.
const UNREAD: [&str; 2] = ["challenge-invalid", "challenge-expired"];
/// Refusals of client certificates that no CA of the cluster has signed: a stranger's chain is not kept.
const UNSIGNED: [&str; 2] = ["kubelet-certificate-invalid", "kubelet-certificate-expired"];

impl Line {
    /// Whether there is nothing to judge, and nothing that should be there.
    fn is_unread(&self) -> bool {
        let refused = |codes: &[&str]| self.verdict == "refused" && self.code.as_deref().is_some_and(|code| codes.contains(&code));
        match &self.basis {
            None => refused(&UNREAD),
            Some(basis) => self.is_kubelet() && basis.client_chain.is_empty() && refused(&UNSIGNED),
        }
    }

    /// Whether what was refused had proven nothing, so that there are digests of it and nothing to judge.
    fn is_by_digest(&self) -> bool {
        self.verdict == "refused" && self.code.is_some() && self.basis.as_ref().is_some_and(|basis| basis.digests.is_some())
    }

    /// Whether a config was asked for by a client certificate. Other configs were decided by what the store or the policy said.
    fn is_kubelet(&self) -> bool {
        self.decision == "config" && self.shown == "kubelet"
    }

    /// How the decision comes out now.
    fn again(&self, text: &str, blobs: &Blobs) -> String {
        if self.is_unread() {
            return "unread".to_owned();
        }
        if self.is_by_digest() {
            return "by digest".to_owned();
        }
        let decided = if self.is_kubelet() {
            replay_kubelet(text, blobs).map(|_| "served")
        } else {
            replay(text, blobs).map(|_| "trusted")
        };
        match decided {
            Ok(verdict) => verdict.to_owned(),
            Err(ReplayError::Reject(reject)) => reject.code().to_owned(),
            Err(ReplayError::Kubelet(error)) => Refusal::from(error).code().to_owned(),
            Err(ReplayError::Member(error)) => Refusal::from(error).code().to_owned(),
            Err(error) => format!("cannot: {error}"),
        }
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
        if !(line.decision == "evidence" || line.is_kubelet()) || arguments.decision.as_ref().is_some_and(|wanted| *wanted != line.id) {
            continue;
        }
        let recorded = match (line.verdict.as_str(), &line.code) {
            ("refused", Some(code)) => code.clone(),
            (verdict, None) => verdict.to_owned(),
            // No decision is written so.
            (verdict, Some(code)) => format!("{verdict} {code}"),
        };
        let again = line.again(&text, &blobs);
        let same = line.is_unread()
            || line.is_by_digest()
            || again == recorded
            || (NOT_FROM_EVIDENCE.contains(&recorded.as_str()) && !again.starts_with("cannot"));
        differ |= !same;
        let identity = line.identity.as_deref().map(shortened).unwrap_or_default();
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

/// Characters of an identity in the table: of a TPM's digest, the beginning says enough; an instance's identity is whole.
const TPM_LIMIT_CHARACTERS: usize = 20;
const INSTANCE_LIMIT_CHARACTERS: usize = 96;

fn shortened(identity: &str) -> String {
    let limit = if identity.starts_with("tpm:") {
        TPM_LIMIT_CHARACTERS
    } else {
        INSTANCE_LIMIT_CHARACTERS
    };
    identity.chars().take(limit).collect()
}
