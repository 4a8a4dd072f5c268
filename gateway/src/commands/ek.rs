//! The command `attest-gateway ek`: edits the EK allowlist.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::tpm::ek_certificate::unverified_digest;
use attest::{EkDigest, NodeIdentity, TpmEvidenceError};
use attest_certificates::folder::is_der;
use attest_log::admin::Verb;
use attest_machines::enrolment::{self, EkRecord, EnrolmentError};
use attest_store::{EntryKind, StoreError, Transact};
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::acting::{change_store, found};
use super::beginnings::completed;
use super::{EVERY_POOL, now, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Add an EK to the allowlist; running gateways accept it at once.
    #[command(
        after_help = "Example:\n  attest-gateway ek add 17bdc2c5a7e04f3d9b6185c2d0e7f4a31c58b96e2f07d4a8137be95c60f2d84a --name worker-7\n\nThe digest is the SHA-256 of the EK's public key (DER SubjectPublicKeyInfo). To find it:\n  - in the gateway's log, at the refusal with code ek-not-endorsed: attest-gateway log show --verdict refused\n  - on the machine: attest-node ek list\n  - from an EK certificate: --certificate FILE, or\n      openssl x509 -in ek.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum\n  - from tpm2-tools: --public FILE, as tpm2_createek -u FILE writes it"
    )]
    Add {
        /// The EK's digest: 64 hexadecimal digits.
        #[arg(required_unless_present_any = ["certificate", "public"], conflicts_with_all = ["certificate", "public"])]
        digest: Option<EkDigest>,
        /// Take the digest from an EK certificate (PEM or DER, extended key usage 2.23.133.8.1) in a file, or in standard input for -. Its
        /// signature is not verified, and the certificate does not become trusted. For the certificates of a folder, see `attest-gateway machines import --help`.
        #[arg(long, value_name = "FILE", conflicts_with = "public")]
        certificate: Option<PathBuf>,
        /// Take the digest from an EK public area (TPM2B_PUBLIC or TPMT_PUBLIC).
        #[arg(long, value_name = "FILE")]
        public: Option<PathBuf>,
        /// Name of the node. No other machine can use it then.
        #[arg(long, value_name = "NODE")]
        name: Option<String>,
        /// Pool that this machine may join (repeatable), or * for every pool [default: the pools of its present entry, or every pool].
        #[arg(long, value_name = "POOL")]
        pool: Vec<String>,
        /// Move the name here from the machine that has it now.
        #[arg(long, requires = "name")]
        replace: bool,
    },
    /// Remove an EK from the allowlist, and block it even if its manufacturer is trusted.
    #[command(
        after_help = "Example:\n  attest-gateway ek remove 17bdc2c5a7e04f3d9b6185c2d0e7f4a31c58b96e2f07d4a8137be95c60f2d84a\n\nRunning gateways refuse the machine from now on, with its tickets. The entry stays in the list as removed, and blocks the EK even if\na root in ek-roots endorses it. To endorse the EK again: attest-gateway ek add.\n\nWith --leave-to-roots the entry is deleted. If the EK certificate chains to a root in ek-roots, the machine may then join every pool\nthat accepts this root.\n\nAn entry of an instance, made by `attest-gateway machines import`, is removed by the instance's identity. The instance is then refused;\nwith --leave-to-roots the rules of its pool decide.\n\nThe node keeps its name. To free it: attest-gateway node forget NAME."
    )]
    Remove {
        /// Digest of the EK or identity of the instance, or its first 8 characters or more.
        digest: String,
        /// Delete the entry. The roots in ek-roots then decide for every pool whether the TPM is endorsed.
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
                _ => bail!("no EK was given: name a DIGEST, --certificate FILE or --public FILE"),
            };
            if let Some(name) = name
                && !attest::challenge::is_node_name(name)
            {
                bail!("{name:?} is not a node name: use lower-case letters, digits, '-' and '.' only");
            }
            let settings = attest_gateway::settings::Settings::load(config)?;
            let is_every = pool.iter().any(|pool| pool == EVERY_POOL);
            if is_every && pool.len() > 1 {
                bail!("--pool {EVERY_POOL} means every pool: remove the other --pool options");
            }
            for pool in pool.iter().filter(|_| !is_every) {
                super::pool_folder(&settings, pool)?;
            }
            let (name, replace) = (name.clone(), *replace);
            let pools = (!pool.is_empty()).then(|| if is_every { Vec::new() } else { pool.clone() });
            let (record, revoked) = change_store(config, Verb::EkAdd, |store| async move {
                let present: Result<_, StoreError> = store.read(move |transaction| enrolment::allowlisted(transaction, ek)).await;
                let kept = present?.map(|entry| entry.pools);
                let record = EkRecord {
                    name,
                    added: now(),
                    pools: pools.or(kept).unwrap_or_default(),
                    note: None,
                    removed: None,
                };
                match enrolment::allow(&*store, ek, record.clone(), replace).await {
                    Err(error @ (EnrolmentError::NameTaken { .. } | EnrolmentError::OtherName { .. })) => {
                        return Err(error)
                            .context("the name was not given to this machine: to move it here, run the command again with --replace");
                    }
                    other => other?,
                }
                let identity = NodeIdentity::from_ek(ek);
                let revoked = store.get(EntryKind::Revoked, identity.as_str()).await?.is_some();
                Ok((record, revoked))
            })?;
            let name = record.name.map(|name| format!(", node {name}")).unwrap_or_default();
            let pools = match record.pools.as_slice() {
                [] => "for every pool".to_owned(),
                pools => format!("for {}", pools.join(", ")),
            };
            output::done(format_args!("endorsed: EK {ek}{name}, {pools}"))?;
            if revoked {
                output::print_note(format_args!(
                    "EK {ek} is still revoked, so its machine gets no config; to take the revocation back: `attest-gateway node restore {ek}`"
                ));
            }
        }
        Command::Remove { digest, leave_to_roots } => {
            let (given, forget) = (digest.clone(), *leave_to_roots);
            let verb = if forget { Verb::EkForget } else { Verb::EkRemove };
            let removed = change_store(config, verb, |store| async move {
                let digest = given.strip_prefix("tpm:").unwrap_or(&given).to_ascii_lowercase();
                let is_hex = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                let given = if is_hex { format!("tpm:{digest}") } else { given };
                let all = enrolment::allowlist(&*store).await?.into_iter().map(|(identity, _)| identity);
                let identity = completed(&given, all)?;
                let removed = if forget {
                    enrolment::forget_entry(&*store, &identity).await?
                } else {
                    enrolment::disallow(&*store, &identity, now()).await?
                };
                found(removed, || {
                    let named = identity
                        .strip_prefix("tpm:")
                        .map_or_else(|| identity.clone(), |ek| format!("EK {ek}"));
                    format!("{named} is not on the allowlist; to list all machines: `attest-gateway machines list`")
                })?;
                Ok(identity)
            })?;
            let text = match (removed.strip_prefix("tpm:"), forget) {
                (Some(ek), true) => format!(
                    "deleted the allowlist entry of EK {ek}; if a root in ek-roots endorses the EK, its machine may join every pool that accepts this root"
                ),
                (Some(ek), false) => format!("removed from the allowlist: EK {ek}; it is blocked even if a root in ek-roots endorses it"),
                (None, true) => format!("deleted the allowlist entry of {removed}: the rules of each pool decide whether it may join"),
                (None, false) => format!("removed from the allowlist: {removed}; it is blocked even if the rules of a pool accept it"),
            };
            output::done(text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the digest of an EK certificate in a file, or in standard input for `-`, PEM or DER.
fn from_certificate(file: &Path) -> anyhow::Result<EkDigest> {
    let bytes = super::pointer::read(file, usize::try_from(SMALL_FILE_LIMIT_BYTES)?)?;
    certificate_digest(bytes).with_context(|| format!("{} does not hold an EK certificate", file.display()))
}

/// Returns the digest of an EK certificate, PEM or DER.
pub(super) fn certificate_digest(bytes: Vec<u8>) -> anyhow::Result<EkDigest> {
    let der = match CertificateDer::from_pem_slice(&bytes) {
        Ok(certificate) => certificate.to_vec(),
        Err(_) if is_der(&bytes) => bytes,
        Err(_) => bail!("it is neither PEM nor DER"),
    };
    unverified_digest(&der).map_err(|error| TpmEvidenceError::EkCertificate(error).into())
}
