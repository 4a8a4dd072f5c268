//! `attest-gateway log config`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_gateway::audit::Blobs;
use attest_gateway::audit::configs::{ConfigCopy, ConfigCopyError, ConfigForm, Document, OpeningKey};
use attest_gateway::settings::Settings;

use super::row::visible_json;
use super::source::Source;
use crate::commands::output::{self, Reader, stdout};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: what a node got, by the config_sha256 of its record\n  attest-gateway log export --node worker-7 --decision config --last 1\n  attest-gateway log config 5e3a…9c --key configs.key > worker-7.ign\n\nWhat was sealed is printed byte for byte as it was served, after its SHA-256 was checked. What was redacted is printed as it was kept: the copy is\nunaltered, as the record has its SHA-256; that it is a copy of that config is the gateway's word.\nExit code 1 if nothing can be printed."
)]
pub struct Arguments {
    /// SHA-256 of the config: what records have as config_sha256.
    #[arg(value_name = "DIGEST", value_parser = digest)]
    digest: String,
    /// The private key that opens what was sealed, PEM (PKCS #8). Not on the gateway: copy its log and state/configs to where the key is.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Files of the log, or folders with a log, `.gz` too. The gateway's own log, with what was rotated beside it, if none is named.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    /// The folder of copies [default: the gateway's own, state/configs].
    #[arg(long, value_name = "FOLDER")]
    configs: Option<PathBuf>,
}

fn digest(text: &str) -> Result<String, String> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() == 64 && text.bytes().all(hex) {
        return Ok(text.to_owned());
    }
    Err("a SHA-256 has 64 hexadecimal digits, in lower case; `log show --record ID` and `log export` have it".to_owned())
}

pub fn run(settings: &Settings, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { digest, key, .. } = arguments;
    let key = key.as_deref().map(OpeningKey::read).transpose()?;
    let copies = recorded(settings, arguments)?;
    let folder = Blobs::at(arguments.configs.as_ref().unwrap_or(&settings.configs_folder()));
    let form = if key.is_some() { ConfigForm::Sealed } else { ConfigForm::Redacted };
    let mut wanted = copies.iter().filter(|copy| copy.form == form).peekable();
    if wanted.peek().is_none() {
        match form {
            ConfigForm::Redacted => bail!("it was sealed: give the private key with --key"),
            ConfigForm::Sealed => bail!("it was redacted, not sealed: no key opens it, and without --key it is printed as it was kept"),
        }
    }
    // The last that was kept; before that, what was sealed to the key that was used then.
    let mut failed = None;
    for copy in wanted {
        let read = copy.read(&folder, digest).and_then(|document| match &key {
            Some(key) => document.open(key).map(Printed::Whole),
            None => Ok(Printed::Redacted(document)),
        });
        match read {
            Ok(printed) => return print(&printed),
            Err(error) if matches!(failed, None | Some(ConfigCopyError::AnotherKey { .. })) => failed = Some(error),
            Err(_) => {}
        }
    }
    match failed {
        Some(error) => Err(error).with_context(|| format!("config {digest}")),
        None => bail!("there is no copy of it"),
    }
}

/// The copies that records name of this config, the last first.
fn recorded(settings: &Settings, Arguments { digest, log, .. }: &Arguments) -> anyhow::Result<Vec<ConfigCopy>> {
    let (mut served, mut copies) = (false, Vec::new());
    let unread = Source::all_of(log).open(settings, None)?.each(|read| {
        let fields = read.fields.as_ref().filter(|fields| fields.config_sha256.as_ref() == Some(digest));
        if let Some(fields) = fields {
            served = true;
            let copy = fields.config_copy.clone().map(serde_json::from_value::<ConfigCopy>);
            let copy = copy.transpose().with_context(|| format!("record {}: config_copy", fields.id))?;
            copies.extend(copy.filter(|copy| !copies.contains(copy)));
        }
        Ok(Reader::There)
    })?;
    unread.say();
    if !served {
        bail!("no record of the log says that a config with the SHA-256 {digest} was served");
    }
    if copies.is_empty() {
        bail!("config {digest} was served, and no copy of it was kept: attestation_log.configs was \"none\"");
    }
    copies.reverse();
    Ok(copies)
}

enum Printed {
    Whole(Vec<u8>),
    Redacted(Document),
}

fn print(printed: &Printed) -> anyhow::Result<ExitCode> {
    let (mut output, terminal) = stdout()?;
    let text = match printed {
        Printed::Whole(config) => config.clone(),
        Printed::Redacted(Document::Redacted { config, key_sha256, .. }) => {
            output::tell(format_args!(
                "attest-gateway: redacted: of what is hidden there are the length and an HMAC-SHA256 by the key whose SHA-256 is {key_sha256} (state/redaction.key)"
            ));
            serde_json::to_vec_pretty(config)?
        }
        Printed::Redacted(Document::Sealed { .. }) => bail!("it is sealed"),
    };
    if terminal {
        let text = String::from_utf8_lossy(&text);
        for line in text.lines() {
            output.put(format!("{}\n", visible_json(line)).as_bytes())?;
        }
    } else {
        output.put(&text)?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}
