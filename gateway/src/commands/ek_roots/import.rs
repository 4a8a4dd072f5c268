use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest_certificates::ek_bundle;
use attest_certificates::ek_import::{self, EkImportPlan, EkProvenance};
use attest_certificates::ek_roots;
use attest_gateway::settings::Settings;
use attest_log::admin::{ValueChange, Verb};
use attest_system::advised_commands::runnable;
use attest_system::clock::{Clock, rfc3339};
use attest_system::files;
use serde_json::json;

use super::difference::{self, ImportReport};
use crate::commands::acting::change_files;
use crate::commands::{OutputOption, output, visible};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: show what an import would add, then import\n  attest-gateway ek-roots import tpm_cert_store\n  attest-gateway ek-roots import tpm_cert_store --yes\n\nExample: only the CAs of one manufacturer\n  attest-gateway ek-roots import TrustedTpm/AMD --yes\n\nA bundle is a PEM or DER file, or a folder with files *.pem, *.crt, *.cer and *.der, also in subfolders. It has at most 32 MiB and\n20,000 certificates. The command verifies no signature over a bundle: compare its SHA-256 with the one that its publisher states. Of a\nfolder, it is the SHA-256 of the lines that sha256sum prints for these files, sorted by path.\n\nEach line of the difference begins with + (added), = (already there), - (in the folder from an earlier bundle of this name, and no\nlonger in this one; it stays there) or ! (refused, with the reason).\n\nThe added CAs are written into one new file in the folder ek_roots, whole or not at all. Its comments name the bundle, its SHA-256 and\nthe time. Running gateways use it at once. To trust a CA no longer, delete it from the file.\n\nThe usable CAs in the folder have together at most 64 MiB as PEM: an import that would bring more is refused.\n\nThe exit code is 1 if the bundle has no usable CA."
)]
pub(crate) struct Arguments {
    /// The bundle: a file or a folder.
    #[arg(value_name = "FILE|DIR")]
    bundle: PathBuf,
    /// Print the difference, and change nothing, even with --yes.
    #[arg(long)]
    dry_run: bool,
    /// Import the added certificates.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    format: OutputOption,
}

pub(super) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let now = Clock::System.now();
    let bundle = ek_bundle::read(&arguments.bundle)?;
    let provenance = EkProvenance {
        bundle: bundle.name.clone(),
        sha256: bundle.sha256.clone(),
        imported: rfc3339(now.as_secs()),
    };
    let changes = arguments.yes && !arguments.dry_run;
    let _lock = changes.then(|| lock(&settings.ek_roots)).transpose()?;
    let plan = EkImportPlan::new(bundle, &ek_roots::load(&settings.ek_roots)?, now)?;
    let written = (changes && !plan.added.is_empty()).then(|| write(&settings, &plan, &provenance));
    let written = written.transpose()?;
    let EkProvenance { bundle, sha256, .. } = &provenance;
    if arguments.format.is_json() {
        let into = written.as_ref().map(|path| path.display().to_string());
        output::json(&ImportReport::new((bundle, sha256), &plan, into))?;
    } else {
        let end = match &written {
            Some(path) => format!("imported into {}", path.display()),
            None if plan.added.is_empty() => "nothing to import".to_owned(),
            None => format!(
                "nothing was changed; to import: `attest-gateway ek-roots import {} --yes`",
                arguments.bundle.display()
            ),
        };
        output::print(runnable(&format!(
            "{}{}; sha-256 of {}: {sha256}\n{}\n",
            difference::text(&plan),
            difference::summary(&plan),
            visible(bundle),
            visible(&end)
        )))?;
    }
    let has_usable = !(plan.added.is_empty() && plan.present.is_empty());
    Ok(if has_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates the folder if it does not exist. Lets one import after the other change it, and removes the file that a killed one left.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let named = || folder.display().to_string();
    fs::create_dir_all(folder).with_context(named)?;
    let lock = files::lock_folder(folder).with_context(named)?;
    for entry in fs::read_dir(folder).with_context(named)? {
        let path = entry.with_context(named)?.path();
        if ek_import::is_leftover(&path) {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(lock)
}

/// Writes the added certificates into a new file, and records the import.
fn write(settings: &Settings, plan: &EkImportPlan, provenance: &EkProvenance) -> anyhow::Result<PathBuf> {
    let folder = &settings.ek_roots;
    change_files(settings, Verb::EkRootsImport, || {
        let path = ek_import::free_file(folder, provenance);
        let text = plan.file_text(provenance);
        files::create(&path, files::PUBLIC, &text)?;
        let EkProvenance { bundle, sha256, imported } = provenance;
        let import = ValueChange {
            kind: "file".to_owned(),
            id: path.display().to_string(),
            before: None,
            after: Some(json!({
                "bundle": bundle,
                "bundle_sha256": sha256,
                "imported": imported,
                "certificates": plan.added.len(),
                "makers": plan.added_by_maker(),
                "already_there": plan.present.len(),
                "no_longer_in_bundle": plan.dropped.len(),
                "refused": plan.refused.len(),
            })),
        };
        Ok((path, vec![import]))
    })
}
