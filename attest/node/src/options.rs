//! Options of the commands, and the settings that the library gets of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_node::boot::BootOptions;
use attest_node::cloud::{MetadataAddress, detect, nitro_tpm};
use attest_node::config::{self, ConfigPurpose};
use attest_node::first_boot_secret::state;
use attest_node::first_boot_secret::storage::Storage;
use attest_node::install::InstallTarget;
use attest_node::kubelet::key::{self, KeyPaths};
use attest_node::kubelet::{self, kubeconfig, store};
use attest_node::rehearsal::RehearsalOptions;
use attest_node::report::ReportedFailure;
use attest_node::tpm::{AkKind, EkChoice};
use attest_wire::protocol::HOLD_LIMIT_SECONDS;

/// Format of a list.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum ListFormat {
    Text,
    Json,
}

// Options for the search for a cloud.
#[derive(clap::Args)]
pub(crate) struct CloudArguments {
    /// Folder of the firmware's DMI tables, which name the cloud
    #[arg(long, value_name = "FOLDER", default_value = detect::DMI)]
    pub(crate) dmi: PathBuf,
    /// Metadata server of the cloud, http://ADDRESS:PORT [default: http://169.254.169.254]
    #[arg(long, value_name = "URL", default_value_t, hide_default_value = true)]
    pub(crate) metadata: MetadataAddress,
}

// Options for the evidence of this node, of `attest` and `try`.
#[derive(clap::Args)]
pub(crate) struct EvidenceArguments {
    /// Firmware's event log; sent if the file exists
    #[arg(long, value_name = "FILE", default_value = "/sys/kernel/security/tpm0/binary_bios_measurements")]
    pub(crate) event_log: PathBuf,
    /// Kind of attestation key: ecc-p256, ecc-p384 or rsa-2048 [default: ecc-p256, or rsa-2048 if the TPM does not support that]
    #[arg(long, value_name = "KIND")]
    pub(crate) ak: Option<AkKind>,
    /// Node name to request from the gateway
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// File with the kernel command line, which names the platform and overrides user.ign
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    pub(crate) cmdline: PathBuf,
    #[command(flatten)]
    pub(crate) cloud: CloudArguments,
    /// AWS's program that gets the attestation document from a NitroTPM; a bare name is searched in PATH
    #[arg(long, value_name = "PROGRAM", default_value = nitro_tpm::PROGRAM)]
    pub(crate) nitro_tpm_attest: PathBuf,
}

// Options of `attest`.
#[derive(clap::Args)]
pub(crate) struct AttestArguments {
    #[command(flatten)]
    pub(crate) evidence: EvidenceArguments,
    /// Pointer config [default: as Ignition: user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data]
    #[arg(long, value_name = "FILE")]
    pub(crate) pointer: Option<PathBuf>,
    /// Output file for the pointer config with the ticket [default: the user.ign that Ignition reads; else /usr/lib/ignition/user.ign]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Time limit for this node's own work, in seconds; restarts after each wait for a gateway
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub(crate) deadline: u64,
    /// Time limit for waiting for a gateway that is unreachable or answers 5xx, in seconds; attest-node.wait=SECONDS on the kernel
    /// command line takes precedence [default: no limit, as in Ignition]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
    /// Time limit for waiting for a gateway that tells this node to retry (503), in seconds, if the pool's limit is longer [default: the
    /// pool's limit, or one hour]
    #[arg(long, value_name = "SECONDS", default_value_t = HOLD_LIMIT_SECONDS, hide_default_value = true, value_parser = clap::value_parser!(u64).range(0..=HOLD_LIMIT_SECONDS))]
    pub(crate) hold: u64,
    /// Attest a key for the booted system's kubelet to every gateway that accepts one, not only to a gateway that approves its CSR;
    /// attest-node.kubelet-key on the kernel command line does the same, and attest-node.kubelet-key=no disables the key
    #[arg(long)]
    pub(crate) kubelet_key: bool,
    /// Storage for the first-boot secret, which keeps the instance claim across a reboot during the first boot: a filesystem's label, a
    /// folder's path, or none; attest-node.first-boot-secret-on= on the kernel command line takes precedence [default: the first
    /// filesystem labelled boot, EFI-SYSTEM or EFI]
    #[arg(long, value_name = "LABEL")]
    pub(crate) first_boot_secret_on: Option<Storage>,
    /// Folder for state until the next boot, such as the first-boot secret
    #[arg(long, value_name = "FOLDER", default_value = state::FOLDER)]
    pub(crate) state: PathBuf,
}

// System that `install` and `uninstall` change.
#[derive(clap::Args)]
#[group(id = "target", required = true, multiple = false)]
pub(crate) struct TargetArguments {
    /// Disk of an installed system that is not running; mounts its boot filesystem, as root
    #[arg(long, value_name = "DEVICE")]
    pub(crate) disk: Option<PathBuf>,
    /// Image of a disk: raw, qcow2 or VHD
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// Mounted boot filesystem
    #[arg(long, value_name = "FOLDER")]
    pub(crate) boot: Option<PathBuf>,
}

impl TargetArguments {
    pub(crate) fn target(self) -> Option<InstallTarget> {
        let disk = self.disk.map(InstallTarget::Disk).or(self.image.map(InstallTarget::Image));
        disk.or(self.boot.map(InstallTarget::Boot))
    }
}

// Options of `install`.
#[derive(clap::Args)]
pub(crate) struct InstallArguments {
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    /// Initrd of attest-node, as `attest-node-initrd` makes it
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: PathBuf,
    /// Output format: text, or json
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ListFormat,
}

// Options of `uninstall`.
#[derive(clap::Args)]
pub(crate) struct UninstallArguments {
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    /// Output format: text, or json
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ListFormat,
}

// Options of `report`.
#[derive(clap::Args)]
pub(crate) struct ReportArguments {
    /// Failure to report: attestation, or boot
    #[arg(value_enum, value_name = "FAILURE", default_value = "boot")]
    pub(crate) failure: ReportedFailure,
    /// Pointer config [default: the copy of this boot's]
    #[arg(long, value_name = "FILE")]
    pub(crate) pointer: Option<PathBuf>,
    /// Time limit in seconds; requests to a gateway that does not answer are retried until then
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) deadline: u64,
    /// Config that Ignition has fetched; its contents are removed from the journal
    #[arg(long, value_name = "FILE", default_value = "/run/ignition.json")]
    pub(crate) config: PathBuf,
    /// File with the kernel's boot ID
    #[arg(long, hide = true, value_name = "FILE", default_value = "/proc/sys/kernel/random/boot_id")]
    pub(crate) boot_id: PathBuf,
}

// Options of `try`.
#[derive(clap::Args)]
pub(crate) struct TryArguments {
    #[command(flatten)]
    pub(crate) evidence: EvidenceArguments,
    /// Pointer config [default: the copy of this boot's; else as Ignition: user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data]
    #[arg(long, value_name = "FILE")]
    pub(crate) pointer: Option<PathBuf>,
    /// URL of a gateway, https://HOST:PORT, instead of a pointer config
    #[arg(long, value_name = "URL", conflicts_with = "pointer", requires = "ca")]
    pub(crate) gateway: Option<String>,
    /// Pool of the gateway
    #[arg(long, value_name = "POOL", default_value = "worker", requires = "gateway")]
    pub(crate) pool: String,
    /// PEM file with the gateway's MCS CA
    #[arg(long, value_name = "FILE", requires = "gateway")]
    pub(crate) ca: Option<PathBuf>,
    /// Time limit for each of TPM, cloud and gateway, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub(crate) deadline: u64,
    /// Output format: text, or json
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ListFormat,
}

// Options of `boot complete`.
#[derive(clap::Args)]
pub(crate) struct CompleteArguments {
    /// Time limit in seconds; commands to a busy TPM are retried until then
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) deadline: u64,
}

// Options of `kubelet-certificate request`.
#[derive(clap::Args)]
pub(crate) struct KubeletCertificateArguments {
    /// Bootstrap kubeconfig of the kubelet [default: /etc/kubernetes/kubeconfig or /etc/kubernetes/bootstrap-kubelet.conf, the first that exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Node name of the kubelet [default: KUBELET_NODE_NAME in the environment, or this machine's host name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Certificate directory of the kubelet
    #[arg(long, value_name = "FOLDER", default_value = store::FOLDER)]
    pub(crate) certificates: PathBuf,
    /// Folder on disk that keeps the key across a reboot
    #[arg(long, value_name = "FOLDER", default_value = key::FOLDER)]
    pub(crate) keys: PathBuf,
    /// Time limit for waiting for the certificate, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) wait: u64,
}

// Options of `first-boot-secret remove`.
#[derive(clap::Args)]
pub(crate) struct RemoveSecretArguments {
    /// Location of the secret other than the default ones: same values as for `attest-node attest`
    #[arg(long, value_name = "LABEL")]
    pub(crate) first_boot_secret_on: Option<Storage>,
    /// Folder for state until the next boot
    #[arg(long, value_name = "FOLDER", default_value = state::FOLDER)]
    pub(crate) state: PathBuf,
    /// File with the kernel command line
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    pub(crate) cmdline: PathBuf,
}

// Options of `config`.
#[derive(clap::Args)]
pub(crate) struct ConfigArguments {
    /// Pointer config [default: the copy of this boot's; else as Ignition: user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data]
    #[arg(long, value_name = "FILE")]
    pub(crate) pointer: Option<PathBuf>,
    /// URL of the config, https://HOST:PORT/config/POOL, if the pointer config names none or several
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// PEM file with the kubelet's client certificate and its key
    #[arg(long, value_name = "FILE", default_value = "/var/lib/kubelet/pki/kubelet-client-current.pem")]
    pub(crate) certificate: PathBuf,
    /// Spec version of the config [default: 3.3.0 for a file; for `config apply` the newest that this Ignition supports]
    #[arg(long, value_name = "VERSION", value_parser = config::spec_version)]
    pub(crate) spec: Option<String>,
    /// Time limit in seconds; requests to a gateway that is not ready are retried until then
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) deadline: u64,
    /// File with the kernel command line, which names the platform
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    pub(crate) cmdline: PathBuf,
    #[command(flatten)]
    pub(crate) cloud: CloudArguments,
    /// Root of the system to which the config is applied
    #[arg(long, hide = true, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
}

impl TryArguments {
    pub(crate) fn settings(self, tcti: String, ek: EkChoice, kept: PathBuf) -> RehearsalOptions {
        let gateway = self.gateway.zip(self.ca).map(|(url, ca)| (url, self.pool, ca));
        RehearsalOptions {
            boot: BootOptions {
                pointer: self.pointer,
                output: None,
                tcti,
                event_log: self.evidence.event_log,
                deadline: Duration::from_secs(self.deadline),
                wait: None,
                hold: Duration::ZERO,
                ak: self.evidence.ak,
                ek,
                name: self.evidence.name,
                kubelet_key: false,
                cmdline: self.evidence.cmdline,
                dmi: self.evidence.cloud.dmi,
                metadata: self.evidence.cloud.metadata,
                nitro_tpm_attest: self.evidence.nitro_tpm_attest,
                state: PathBuf::new(),
                kept_folder: kept,
                storage: Storage::Nowhere,
            },
            gateway,
            json: matches!(self.output, ListFormat::Json),
        }
    }
}

impl ConfigArguments {
    pub(crate) fn settings(self, purpose: ConfigPurpose, kept: PathBuf) -> config::ConfigOptions {
        config::ConfigOptions {
            pointer: self.pointer,
            url: self.url,
            certificate: self.certificate,
            purpose,
            spec: self.spec,
            deadline: Duration::from_secs(self.deadline),
            cmdline: self.cmdline,
            dmi: self.cloud.dmi,
            metadata: self.cloud.metadata,
            kept_folder: kept,
            root: self.root,
        }
    }
}

impl KubeletCertificateArguments {
    pub(crate) fn settings(self, kept: &Path) -> kubelet::KubeletOptions {
        kubelet::KubeletOptions {
            kubeconfigs: self
                .kubeconfig
                .map_or_else(|| kubeconfig::USUAL.map(PathBuf::from).to_vec(), |path| vec![path]),
            name: self.name,
            folder: self.certificates,
            places: KeyPaths::new(kept, &self.keys),
            wait: Duration::from_secs(self.wait),
        }
    }
}

impl AttestArguments {
    pub(crate) fn settings(self, tcti: String, ek: EkChoice, kept: PathBuf) -> BootOptions {
        BootOptions {
            pointer: self.pointer,
            output: self.out,
            tcti,
            event_log: self.evidence.event_log,
            deadline: Duration::from_secs(self.deadline),
            wait: self.wait.map(Duration::from_secs),
            hold: Duration::from_secs(self.hold),
            ak: self.evidence.ak,
            ek,
            name: self.evidence.name,
            kubelet_key: self.kubelet_key,
            cmdline: self.evidence.cmdline,
            dmi: self.evidence.cloud.dmi,
            metadata: self.evidence.cloud.metadata,
            nitro_tpm_attest: self.evidence.nitro_tpm_attest,
            state: self.state,
            kept_folder: kept,
            storage: self.first_boot_secret_on.unwrap_or_default(),
        }
    }
}
