//! `attest-node`: parses arguments, then calls [`attest_node::boot::run`] or a subcommand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use attest_node::boot::{self, BootOptions};
use attest_node::boot_complete;
use attest_node::cloud::{MetadataAddress, detect, nitro_tpm};
use attest_node::config::{self, ConfigPurpose};
use attest_node::ek_table;
use attest_node::first_boot_secret::state;
use attest_node::first_boot_secret::storage::Storage;
use attest_node::forget;
use attest_node::keep;
use attest_node::kubelet::key::{self, KeyPaths};
use attest_node::kubelet::{self, kubeconfig, store, unit};
use attest_node::platform::{KubeletKey, NodePlatform};
use attest_node::tpm::{AkKind, EkChoice, device};
use attest_wire::protocol::HOLD_LIMIT_SECONDS;
use clap::{Parser, Subcommand};

/// Proves to the attestation gateway what this node is, before Ignition fetches its config.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The TPM, as a TCTI string
    #[arg(long, global = true, default_value = device::DEFAULT_TCTI)]
    tcti: String,
    /// Endorsement key to use: auto (the first with a certificate), rsa or ecc
    #[arg(long, global = true, value_name = "KIND", default_value = "auto")]
    ek: EkChoice,
    /// The folder for what the booted system has of the initramfs: this program, and the pointer config without its credentials
    #[arg(long, global = true, value_name = "FOLDER", default_value = keep::FOLDER)]
    kept: PathBuf,
}

/// Attests to the gateway of the pointer config, and gives Ignition the pointer with the ticket.
///
/// Finds the pointer config as Ignition would, attests to the gateway that it names with this node's TPM, with what its cloud says of
/// it, or with both, and writes the same pointer with the ticket that it earned to Ignition's user.ign. If anything fails, the pointer stays as it is, but for a
/// header that tells a gateway why, and one line on stderr says it. Exits with 0 if the node has attested or has nothing to attest to, 1 if it has not attested, 2 on wrong usage.
#[derive(clap::Args)]
struct AttestArguments {
    /// Pointer config to use instead of what Ignition would find (user.ign, then the platform's: QEMU's fw_cfg, a file, or a cloud's user data)
    #[arg(long, value_name = "FILE")]
    pointer: Option<PathBuf>,
    /// Path to which the pointer with the ticket is written [default: the user.ign that Ignition reads; else /usr/lib/ignition/user.ign]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
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
    /// The most seconds to wait for a gateway that tells this node to retry, if its pool allows longer [default: as the pool says; one hour if
    /// no gateway says anything]
    #[arg(long, value_name = "SECONDS", default_value_t = HOLD_LIMIT_SECONDS, hide_default_value = true, value_parser = clap::value_parser!(u64).range(0..=HOLD_LIMIT_SECONDS))]
    hold: u64,
    /// Attestation key to make: ecc-p256, ecc-p384 or rsa-2048 [default: ecc-p256, or rsa-2048 if the TPM cannot make that]
    #[arg(long, value_name = "KIND")]
    ak: Option<AkKind>,
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
    /// folder, or none; attest-node.first-boot-secret-on= on the kernel command line takes precedence [default: the filesystem labelled boot,
    /// EFI-SYSTEM or EFI, the first that exists]
    #[arg(long, value_name = "LABEL")]
    first_boot_secret_on: Option<Storage>,
    /// AWS's program that asks a NitroTPM for its attestation document; a name is looked for in PATH
    #[arg(long, value_name = "PROGRAM", default_value = nitro_tpm::PROGRAM)]
    nitro_tpm_attest: PathBuf,
    /// The folder for state that is kept until the next boot, such as the secret by which gateways recognise this node
    #[arg(long, value_name = "FOLDER", default_value = state::FOLDER)]
    state: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Attest to the gateway, and give Ignition the pointer config with the ticket; the initramfs does so at the first boot
    Attest(Box<AttestArguments>),
    /// This TPM's endorsement keys
    #[command(subcommand)]
    Ek(EkCommand),
    /// The pool's full config, for a node whose CSR was approved
    #[command(subcommand)]
    Config(ConfigCommand),
    /// The kubelet's client certificate for the key that this node has attested
    #[command(subcommand)]
    KubeletCertificate(KubeletCertificateCommand),
    /// This program in the booted system
    #[command(subcommand)]
    Program(ProgramCommand),
    /// The secret by which gateways recognise this node during its first boot
    #[command(subcommand)]
    FirstBootSecret(FirstBootSecretCommand),
    /// The end of this boot, as gateways see it
    #[command(subcommand)]
    Boot(BootCommand),
}

#[derive(Subcommand)]
enum EkCommand {
    /// List the TPM's endorsement keys, with the digests for `attest-gateway ek add`
    List {
        /// Output format: text, or json
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        output: ListFormat,
    },
}

/// Format of a list.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ListFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Fetch the config by the kubelet's client certificate, and write it to a file
    #[command(after_help = "Example:\n  attest-node config fetch --pointer /etc/attest-node/pointer.ign --out /run/full.ign")]
    Fetch {
        /// File that is written, readable by its owner only
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        arguments: Box<ConfigArguments>,
    },
    /// Fetch the config by the kubelet's client certificate, and have Ignition apply it at the next boot
    Apply(Box<ConfigArguments>),
    /// Take back what `config apply` has arranged
    Undo(Box<ConfigArguments>),
}

#[derive(Subcommand)]
enum KubeletCertificateCommand {
    /// Get the certificate before the kubelet asks for one with a key of its own
    Request(KubeletCertificateArguments),
}

#[derive(Subcommand)]
enum ProgramCommand {
    /// Keep this program for the booted system; a unit of the initramfs does so at each boot
    Copy {
        /// Have the unit that gets the kubelet's certificate in the booted system wait for the network; attest-node.kubelet-key on the
        /// kernel command line does the same, and attest-node.kubelet-key=no leaves no such unit
        #[arg(long)]
        kubelet_key: bool,
        /// The folder with this program, what it needs and a script that starts it, if the booted system does not have it
        #[arg(long, value_name = "FOLDER")]
        program: Option<PathBuf>,
        /// The kernel command line, with the platform
        #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
        cmdline: PathBuf,
        /// The folder of the firmware's DMI tables, which name the cloud
        #[arg(long, value_name = "FOLDER", default_value = detect::DMI)]
        dmi: PathBuf,
    },
}

#[derive(Subcommand)]
enum FirstBootSecretCommand {
    /// Remove the secret from disk and memory, once Ignition is done
    Remove(RemoveSecretArguments),
}

#[derive(Subcommand)]
enum BootCommand {
    /// Extend the PCR by which gateways tell that a machine boots
    Complete(CompleteArguments),
}

/// Ends this boot for gateways: extends PCR 13 in each bank of the TPM, so that software that runs later cannot attest to a pool that
/// accepts machines only while they boot, until this machine is reset.
///
/// Its unit runs it in the initramfs when Ignition has its config, and at the start of later boots. Running it once is enough, and again
/// does no harm. Exits with 0 if the PCR is extended, or the machine has no TPM, 1 if it is not extended (one line on stderr says why), 2 on
/// wrong usage.
#[derive(clap::Args)]
struct CompleteArguments {
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
struct RemoveSecretArguments {
    /// Possible location of the secret, if not a usual one: same values as of `attest-node attest`
    #[arg(long, value_name = "LABEL")]
    first_boot_secret_on: Option<Storage>,
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
/// config only. `config apply` reuses the distribution's own first-boot mechanism, and refuses beforehand each setting that Ignition could not
/// apply again, with its reason. It does not reboot. If anything fails, nothing is changed and the last line on stderr says why. Exits with
/// 0 if that is done, 1 if not, 2 on wrong usage.
#[derive(clap::Args)]
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
    /// The version of Ignition's specification to ask for [default: 3.3.0 for a file; for `config apply` the newest that this Ignition reads]
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
    fn settings(self, purpose: ConfigPurpose, kept: PathBuf) -> config::ConfigOptions {
        config::ConfigOptions {
            pointer: self.pointer,
            url: self.url,
            certificate: self.certificate,
            purpose,
            spec: self.spec,
            deadline: Duration::from_secs(self.deadline),
            cmdline: self.cmdline,
            dmi: self.dmi,
            metadata: self.metadata,
            kept_folder: kept,
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

impl AttestArguments {
    fn settings(self, tcti: String, ek: EkChoice, kept: PathBuf) -> BootOptions {
        BootOptions {
            pointer: self.pointer,
            output: self.out,
            tcti,
            event_log: self.event_log,
            deadline: Duration::from_secs(self.deadline),
            wait: self.wait.map(Duration::from_secs),
            hold: Duration::from_secs(self.hold),
            ak: self.ak,
            ek,
            name: self.name,
            kubelet_key: self.kubelet_key,
            cmdline: self.cmdline,
            dmi: self.dmi,
            metadata: self.metadata,
            nitro_tpm_attest: self.nitro_tpm_attest,
            state: self.state,
            kept_folder: kept,
            storage: self.first_boot_secret_on.unwrap_or_default(),
        }
    }
}

fn list_eks(tcti: &str, ek: EkChoice, output: ListFormat) -> ExitCode {
    match ek_table::keys(tcti, ek) {
        Ok(keys) => {
            match output {
                ListFormat::Text => print!("{}", ek_table::table(&keys)),
                ListFormat::Json => println!("{:#}", ek_table::json(&keys)),
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("attest-node: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let Arguments { command, tcti, ek, kept } = Arguments::parse();
    match command {
        Command::Attest(arguments) => boot::run(arguments.settings(tcti, ek, kept)),
        Command::Ek(EkCommand::List { output }) => list_eks(&tcti, ek, output),
        Command::Config(command) => {
            let (arguments, purpose) = match command {
                ConfigCommand::Fetch { out, arguments } => (arguments, ConfigPurpose::File(out)),
                ConfigCommand::Apply(arguments) => (arguments, ConfigPurpose::Apply),
                ConfigCommand::Undo(arguments) => (arguments, ConfigPurpose::Undo),
            };
            config::run(&arguments.settings(purpose, kept))
        }
        Command::KubeletCertificate(KubeletCertificateCommand::Request(arguments)) => kubelet::run(&arguments.settings(&kept)),
        Command::Program(ProgramCommand::Copy {
            kubelet_key,
            program,
            cmdline,
            dmi,
        }) => {
            let platform = NodePlatform::read(&cmdline, &dmi);
            let is_told_to = kubelet_key || platform.kubelet_key == KubeletKey::Always;
            keep::run(&keep::KeepOptions {
                folder: kept,
                program,
                root: "/".into(),
                input: platform.ignition.input().clone(),
                // It does nothing on a boot that has attested no key.
                units: (is_told_to || platform.kubelet_key != KubeletKey::Never).then(|| unit::FOLDER.into()),
                is_told_to,
            })
        }
        Command::FirstBootSecret(FirstBootSecretCommand::Remove(arguments)) => forget::run(&forget::ForgetOptions {
            storage: arguments.first_boot_secret_on.unwrap_or_default(),
            state: arguments.state,
            cmdline: arguments.cmdline,
        }),
        Command::Boot(BootCommand::Complete(CompleteArguments { deadline })) => boot_complete::run(&boot_complete::CloseOptions {
            tcti,
            deadline: Duration::from_secs(deadline),
        }),
    }
}
