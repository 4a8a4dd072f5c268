//! `attest-node`: parses arguments, then calls [`attest_node::boot::run`] or a subcommand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use attest_node::boot::{self, BootOptions};
use attest_node::boot_complete;
use attest_node::claimant::state;
use attest_node::claimant::storage::Storage;
use attest_node::cloud::{MetadataAddress, detect, nitro_tpm};
use attest_node::config::{self, ConfigPurpose};
use attest_node::ek_table::ek_table;
use attest_node::forget;
use attest_node::keep;
use attest_node::kubelet::key::{self, KeyPaths};
use attest_node::kubelet::{self, kubeconfig, store, unit};
use attest_node::platform::{KubeletKey, NodePlatform};
use attest_node::tpm::{AkKind, EkChoice, device};
use attest_wire::protocol::HOLD_LIMIT_SECONDS;
use clap::{Parser, Subcommand};

/// Proves to the attestation gateway what this node is, before Ignition fetches its config.
///
/// Finds the pointer config as Ignition would, attests to the gateway that it names with this node's TPM, with what its cloud says of
/// it, or with both, and writes the same pointer with the ticket that it earned to Ignition's user.ign. If anything fails, the pointer stays as it is, but for a
/// header that tells a gateway why, and one line on stderr says it. Exits with 0 if the node has attested or has nothing to attest to, 1 if it has not attested, 2 on wrong usage.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = false)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Pointer config to use instead of what Ignition would find (user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data)
    #[arg(long, value_name = "FILE")]
    pointer: Option<PathBuf>,
    /// Path to which the pointer with the ticket is written [default: the user.ign that Ignition reads; else /usr/lib/ignition/user.ign]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The TPM, as a TCTI string
    #[arg(long, global = true, default_value = device::DEFAULT_TCTI)]
    tcti: String,
    /// The firmware's event log; sent if it is there
    #[arg(long, value_name = "FILE", default_value = "/sys/kernel/security/tpm0/binary_bios_measurements")]
    event_log: PathBuf,
    /// The most seconds that this node's own work may take; the time restarts after each wait for a gateway
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=3600))]
    deadline: u64,
    /// The most seconds to wait for a gateway that cannot be reached or has errors only; attest-node.wait=SECONDS on the kernel command line
    /// comes before it [default: for ever, as Ignition does]
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// The most seconds to wait for a gateway that tells this node to come again, if its pool says more [default: as the pool says; one hour if
    /// no gateway says anything]
    #[arg(long, value_name = "SECONDS", default_value_t = HOLD_LIMIT_SECONDS, hide_default_value = true, value_parser = clap::value_parser!(u64).range(0..=HOLD_LIMIT_SECONDS))]
    hold: u64,
    /// Attestation key to make: ecc-p256, ecc-p384 or rsa-2048 [default: ecc-p256, or rsa-2048 if the TPM cannot make that]
    #[arg(long, value_name = "KIND")]
    ak: Option<AkKind>,
    /// Endorsement key to use: auto (the first with a certificate), rsa or ecc
    #[arg(long, global = true, value_name = "KIND", default_value = "auto")]
    ek: EkChoice,
    /// Name that this node wants to be known by
    #[arg(long)]
    name: Option<String>,
    /// Attest a key that the kubelet of the booted system will have, to each gateway that accepts one, and not only to one that approves
    /// its CSR; attest-node.kubelet-key on the kernel command line does the same, and attest-node.kubelet-key=no switches it off
    #[arg(long)]
    kubelet_key: bool,
    /// The kernel command line, with the platform and the arguments that outrank user.ign
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    cmdline: PathBuf,
    /// The folder of the firmware's DMI tables, which name the cloud
    #[arg(long, value_name = "FOLDER", default_value = detect::DMI)]
    dmi: PathBuf,
    /// The cloud's metadata server, http://ADDRESS:PORT [default: http://169.254.169.254]
    #[arg(long, value_name = "URL", default_value_t, hide_default_value = true)]
    metadata: MetadataAddress,
    /// Storage for the secret by which gateways recognise this node after a reboot of this first boot: a filesystem's label, the path of a
    /// folder, or none; attest-node.claimant-on= on the kernel command line takes precedence [default: the filesystem labelled boot,
    /// EFI-SYSTEM or EFI, the first that exists]
    #[arg(long, value_name = "LABEL")]
    claimant_on: Option<Storage>,
    /// AWS's program that asks a NitroTPM for its attestation document; a name is looked for in PATH
    #[arg(long, value_name = "PROGRAM", default_value = nitro_tpm::PROGRAM)]
    nitro_tpm_attest: PathBuf,
    /// The folder for state that is kept until the next boot, such as the secret by which gateways recognise this node
    #[arg(long, value_name = "FOLDER", default_value = state::FOLDER)]
    state: PathBuf,
    /// The folder for what the booted system has of the initramfs: this program, and the pointer config without its credentials
    #[arg(long, global = true, value_name = "FOLDER", default_value = keep::FOLDER)]
    kept: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Print this TPM's endorsement keys, for `attest-gateway ek add`
    Ek,
    /// Fetch the pool's full config by the kubelet's client certificate
    Config(Box<ConfigArguments>),
    /// Get the kubelet's client certificate for the key that this node has attested, before the kubelet asks for one
    KubeletCertificate(KubeletCertificateArguments),
    /// Keep this program for the booted system; a unit of the initramfs does so at each boot
    Keep {
        /// Have the unit that gets the kubelet's certificate in the booted system wait for the network; attest-node.kubelet-key on the
        /// kernel command line does the same, and attest-node.kubelet-key=no leaves no such unit
        #[arg(long)]
        kubelet_key: bool,
        /// The folder with this program, what it needs and a script that starts it, if the booted system does not have it
        #[arg(long, value_name = "FOLDER")]
        program: Option<PathBuf>,
    },
    /// Remove the secret by which gateways recognise this node, from disk and memory, once Ignition is done
    Forget(ForgetArguments),
    /// End this boot for gateways: extend the PCR by which they tell that a machine boots
    Close(CloseArguments),
}

/// Ends this boot for gateways: extends PCR 13 in each bank of the TPM, so that software that runs later cannot attest to a pool that
/// accepts machines only while they boot, until this machine is reset.
///
/// Its unit runs it in the initramfs when Ignition has its config, and at the start of later boots. Running it once is enough, and again
/// does no harm. Exits with 0 if the PCR is extended, or the machine has no TPM, 1 if it is not extended (one line on stderr says why), 2 on
/// wrong usage.
#[derive(clap::Args)]
struct CloseArguments {
    /// The most seconds that it may take: a TPM that is busy is asked again until then
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    deadline: u64,
}

/// Gets the kubelet's client certificate for the key that this node has attested in its initramfs, before the kubelet asks for one with a key of its own.
///
/// Asks with the kubelet's bootstrap credential, waits for the approval, and puts certificate and key where the kubelet finds them; then
/// the key is removed from where it was kept. An existing certificate that is good is left as it is. Exits with 0 if there is a
/// certificate, or no key, 1 without a certificate: the kubelet then asks by itself, and a gateway that knows of the key does not approve
/// that. 2 on wrong usage.
#[derive(clap::Args)]
struct KubeletCertificateArguments {
    /// The kubelet's bootstrap kubeconfig [default: /etc/kubernetes/kubeconfig or /etc/kubernetes/bootstrap-kubelet.conf, the first that is there]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The node's name, as the kubelet has it [default: KUBELET_NODE_NAME in the environment, or this machine's host name]
    #[arg(long)]
    name: Option<String>,
    /// The kubelet's certificate directory
    #[arg(long, value_name = "FOLDER", default_value = store::FOLDER)]
    certificates: PathBuf,
    /// The folder on disk in which the key is found after a reboot
    #[arg(long, value_name = "FOLDER", default_value = key::FOLDER)]
    keys: PathBuf,
    /// The most seconds to wait for the certificate
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
}

/// Removes the secret by which gateways recognise this node, from disk and memory, so that no workload of the booted system finds it.
///
/// Its unit runs it when Ignition has written everything. It searches every possible location of the secret, overwrites it and removes it.
/// Exits with 0 if nothing is left, 1 if it is left over (one line on stderr says where, and the command that removes it), 2 on wrong
/// usage.
#[derive(clap::Args)]
struct ForgetArguments {
    /// Possible location of the secret, if not a usual one: same values as attest-node's --claimant-on
    #[arg(long, value_name = "LABEL")]
    claimant_on: Option<Storage>,
    /// The folder for state that is kept until the next boot
    #[arg(long, value_name = "FOLDER", default_value = state::FOLDER)]
    state: PathBuf,
    /// The kernel command line
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    cmdline: PathBuf,
}

/// Fetches the full config for a node whose CSR was approved, from the gateway that the pointer config names; writes it to a file, or has
/// Ignition apply it at the next boot.
///
/// Shows the kubelet's client certificate and nothing else: a ticket or token of the pointer's is not sent. Trusts the CAs in the pointer
/// config only. --apply reuses the distribution's own first-boot mechanism, and refuses beforehand each setting that Ignition could not
/// apply again, with its reason. It does not reboot. If anything fails, nothing is changed and the last line on stderr says why. Exits with
/// 0 if that is done, 1 if not, 2 on wrong usage.
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("purpose").required(true).args(["output", "apply", "undo"])),
    after_help = "Examples:\n  attest-node config --apply\n  attest-node config --pointer /etc/attest-node/pointer.ign --output /run/full.ign"
)]
struct ConfigArguments {
    /// Pointer config to use instead of the one of this boot, if that was kept, or what Ignition would find (user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data)
    #[arg(long, value_name = "FILE")]
    pointer: Option<PathBuf>,
    /// The config's URL, https://HOST:PORT/config/POOL, if the pointer config names none or several
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The kubelet's client certificate and its key, in one PEM file
    #[arg(long, value_name = "FILE", default_value = "/var/lib/kubelet/pki/kubelet-client-current.pem")]
    certificate: PathBuf,
    /// Path to which the config is written, readable by its owner only
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Have Ignition apply the config at the next boot
    #[arg(long)]
    apply: bool,
    /// Take back what --apply has arranged
    #[arg(long)]
    undo: bool,
    /// The version of Ignition's specification to ask for [default: 3.3.0 with --output; with --apply the newest that this Ignition reads]
    #[arg(long, value_name = "VERSION", value_parser = config::spec_version)]
    spec: Option<String>,
    /// The most seconds that all of this may take; a gateway that is not ready is asked again until then
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    deadline: u64,
    /// The kernel command line, with the platform
    #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
    cmdline: PathBuf,
    /// The folder of the firmware's DMI tables, which name the cloud
    #[arg(long, value_name = "FOLDER", default_value = detect::DMI)]
    dmi: PathBuf,
    /// The cloud's metadata server, http://ADDRESS:PORT [default: http://169.254.169.254]
    #[arg(long, value_name = "URL", default_value_t, hide_default_value = true)]
    metadata: MetadataAddress,
    /// The root of the system to apply the config to
    #[arg(long, hide = true, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

impl ConfigArguments {
    fn settings(self, kept: PathBuf) -> config::ConfigOptions {
        config::ConfigOptions {
            pointer: self.pointer,
            url: self.url,
            certificate: self.certificate,
            purpose: match (self.output, self.apply) {
                (Some(file), _) => ConfigPurpose::File(file),
                (None, true) => ConfigPurpose::Apply,
                (None, false) => ConfigPurpose::Undo,
            },
            spec: self.spec,
            deadline: Duration::from_secs(self.deadline),
            cmdline: self.cmdline,
            dmi: self.dmi,
            metadata: self.metadata,
            kept,
            root: self.root,
        }
    }
}

impl KubeletCertificateArguments {
    fn settings(self, kept: &Path) -> kubelet::KubeletOptions {
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

fn main() -> ExitCode {
    let Arguments {
        command,
        pointer,
        output,
        tcti,
        event_log,
        deadline,
        wait,
        hold,
        ak,
        ek,
        name,
        kubelet_key,
        cmdline,
        dmi,
        metadata,
        claimant_on,
        nitro_tpm_attest,
        state,
        kept,
    } = Arguments::parse();
    match command {
        Some(Command::Ek) => match ek_table(&tcti, ek) {
            Ok(table) => {
                print!("{table}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("attest-node: {failure}");
                ExitCode::FAILURE
            }
        },
        Some(Command::Config(arguments)) => config::run(&arguments.settings(kept)),
        Some(Command::KubeletCertificate(arguments)) => kubelet::run(&arguments.settings(&kept)),
        Some(Command::Keep { kubelet_key, program }) => {
            let platform = NodePlatform::read(&cmdline, &dmi);
            let is_told_to = kubelet_key || platform.kubelet_key == KubeletKey::Always;
            keep::run(&keep::KeepOptions {
                folder: kept,
                program,
                root: "/".into(),
                told: platform.ignition.told().clone(),
                // It does nothing on a boot that has attested no key.
                units: (is_told_to || platform.kubelet_key != KubeletKey::Never).then(|| unit::FOLDER.into()),
                is_told_to,
            })
        }
        Some(Command::Forget(ForgetArguments {
            claimant_on,
            state,
            cmdline,
        })) => forget::run(&forget::ForgetOptions {
            storage: claimant_on.unwrap_or_default(),
            state,
            cmdline,
        }),
        Some(Command::Close(CloseArguments { deadline })) => boot_complete::run(&boot_complete::CloseOptions {
            tcti,
            deadline: Duration::from_secs(deadline),
        }),
        None => boot::run(BootOptions {
            pointer,
            output,
            tcti,
            event_log,
            deadline: Duration::from_secs(deadline),
            wait: wait.map(Duration::from_secs),
            hold: Duration::from_secs(hold),
            ak,
            ek,
            name,
            kubelet_key,
            cmdline,
            dmi,
            metadata,
            nitro_tpm_attest,
            state,
            kept,
            storage: claimant_on.unwrap_or_default(),
        }),
    }
}
