//! The command `attest-gateway ek`: edits the EK allowlist.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::tpm::ek_certificate::unverified_digest;
use attest::{EkDigest, NodeIdentity, TpmEvidenceError};
use attest_log::admin::Verb;
use attest_machines::enrolment::{self, EkRecord, EnrolmentError};
use attest_store::EntryKind;
use attest_system::clock::rfc3339;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::acting::{change_store, found};
use super::{OutputOption, list, now, output, with_store};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Endorse a TPM by its EK. Takes effect at once, on a running gateway too.
    #[command(
        after_help = "Example:\n  attest-gateway ek add 0f3c…64 digits…9a --name worker-7\n\nThe digest is the SHA-256 of the EK's public key (DER SubjectPublicKeyInfo). Where to get it:\n  - the gateway's log, where it refused the TPM (code ek-not-endorsed)\n  - `attest-node ek list` on the machine\n  - from an EK certificate: --certificate FILE, or\n      openssl x509 -in ek.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum\n  - from tpm2-tools: --public FILE (tpm2_createek -u FILE)"
    )]
    Add {
        /// The EK's digest: 64 hexadecimal digits.
        #[arg(required_unless_present_any = ["certificate", "public"], conflicts_with_all = ["certificate", "public"])]
        digest: Option<EkDigest>,
        /// Take the digest from an EK certificate (PEM or DER). The certificate itself is not trusted for it.
        #[arg(long, value_name = "FILE", conflicts_with = "public")]
        certificate: Option<PathBuf>,
        /// Take the digest from an EK public area (TPM2B_PUBLIC or TPMT_PUBLIC).
        #[arg(long, value_name = "FILE")]
        public: Option<PathBuf>,
        /// The node's name: no other machine can then use it.
        #[arg(long, value_name = "NODE")]
        name: Option<String>,
        /// A pool that this machine may join, and no other than those named (repeatable) [default: every pool].
        #[arg(long, value_name = "POOL")]
        pool: Vec<String>,
        /// Take the name from the machine that has it now.
        #[arg(long, requires = "name")]
        replace: bool,
    },
    /// List the endorsed EKs.
    #[command(after_help = "Example:\n  attest-gateway ek list")]
    List {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Remove an EK from the allowlist, and block it even if its manufacturer is trusted. Its node's name stays taken until `attest-gateway
    /// node forget NAME` frees it.
    #[command(
        after_help = "Example:\n  attest-gateway ek remove 0f3c…64 digits…9a\n\nIt counts at once: the machine's tickets are worthless too. The entry stays in `ek list`, as removed, so that a maker's root in\nek-roots does not let the machine join pools that it could not join before; `ek add` endorses it again. With --leave-to-roots the\nentry is forgotten, and if the EK's certificate chains to a root, the machine may join every pool that takes this root."
    )]
    Remove {
        /// Digest of the EK: 64 hexadecimal digits.
        digest: EkDigest,
        /// Forget the entry: whether the TPM is endorsed is for the roots in ek-roots to say, for every pool.
        #[arg(long)]
        leave_to_roots: bool,
    },
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add {
            digest,
            certificate,
            public,
            name,
            pool,
            replace,
        } => {
            let ek = match (digest, certificate, public) {
                (Some(digest), _, _) => *digest,
                (_, Some(file), _) => from_certificate(file)?,
                (_, _, Some(file)) => {
                    let bytes = files::read(file, SMALL_FILE_LIMIT_BYTES).with_context(|| file.display().to_string())?;
                    EkDigest::from_public_area(&bytes).with_context(|| file.display().to_string())?
                }
                _ => bail!("no EK is named"),
            };
            if let Some(name) = name
                && !attest::challenge::is_node_name(name)
            {
                bail!("{name:?}: a node's name has lower-case letters, digits, '-' and '.' only");
            }
            let settings = attest_gateway::settings::Settings::load(config)?;
            for pool in pool {
                super::pool_folder(&settings, pool)?;
            }
            let record = EkRecord {
                name: name.clone(),
                added: now(),
                pools: pool.clone(),
                removed: None,
            };
            let replace = *replace;
            let revoked = change_store(config, Verb::EkAdd, |store| async move {
                match enrolment::allow(&*store, ek, record, replace).await {
                    Err(error @ (EnrolmentError::NameTaken { .. } | EnrolmentError::OtherName { .. })) => {
                        return Err(error).context("use --replace if this machine is to have the name now");
                    }
                    other => other?,
                }
                let identity = NodeIdentity::from_ek(ek);
                Ok(store.get(EntryKind::Revoked, identity.as_str()).await?.is_some())
            })?;
            output::done(format_args!(
                "endorsed: EK {ek}{}",
                name.as_deref().map(|name| format!(", node {name}")).unwrap_or_default()
            ))?;
            if revoked {
                output::print_note(format_args!(
                    "it is revoked still, and gets nothing: `attest-gateway node restore {ek}`"
                ));
            }
        }
        Command::List { format } => {
            let all = with_store(config, |store| async move { Ok(enrolment::allowlist(&store).await?) })?;
            let rows: Vec<[String; 4]> = all
                .into_iter()
                .map(|(digest, record)| {
                    let pools = if record.removed.is_some() {
                        "none, removed".to_owned()
                    } else if record.pools.is_empty() {
                        "all".to_owned()
                    } else {
                        record.pools.join(",")
                    };
                    [digest, record.name.unwrap_or_else(|| "-".to_owned()), pools, rfc3339(record.added)]
                })
                .collect();
            list(*format, ["EK", "NODE", "POOLS", "ADDED"], &rows)?;
        }
        Command::Remove { digest, leave_to_roots } => {
            let (digest, forget) = (*digest, *leave_to_roots);
            let verb = if forget { Verb::EkForget } else { Verb::EkRemove };
            change_store(config, verb, |store| async move {
                let removed = if forget {
                    enrolment::forget_entry(&*store, digest).await?
                } else {
                    enrolment::disallow(&*store, digest, now()).await?
                };
                found(removed, || format!("EK {digest} is not on the allowlist"))
            })?;
            if forget {
                output::done(format_args!(
                    "forgotten: EK {digest}; if a root in ek-roots endorses it, it may join every pool that takes this root"
                ))?;
            } else {
                output::done(format_args!("no longer endorsed: EK {digest}, by no root either"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn from_certificate(file: &Path) -> anyhow::Result<EkDigest> {
    let bytes = files::read(file, SMALL_FILE_LIMIT_BYTES).with_context(|| file.display().to_string())?;
    let der = CertificateDer::from_pem_slice(&bytes).map_or(bytes, |certificate| certificate.to_vec());
    let digest = unverified_digest(&der).map_err(TpmEvidenceError::EkCertificate);
    digest.with_context(|| format!("{} is not an EK certificate", file.display()))
}
