//! `attest-node`: parses arguments, then calls [`attest_node::boot::run`] or a subcommand.

mod options;

use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use attest_manual::ManualArguments;
use attest_node::boot;
use attest_node::boot_complete;
use attest_node::cloud::detect;
use attest_node::config::{self, ConfigPurpose};
use attest_node::console;
use attest_node::ek_table;
use attest_node::forget;
use attest_node::install::{self, InstallOptions};
use attest_node::keep;
use attest_node::kubelet::{self, unit};
use attest_node::platform::{KubeletKey, NodePlatform};
use attest_node::rehearsal;
use attest_node::report;
use attest_node::tpm::{EkChoice, device};
use attest_wire::release::{PROTOCOL_VERSION, version_text};
use clap::{Parser, Subcommand};

use self::options::{
    AttestArguments, CompleteArguments, ConfigArguments, InstallArguments, KubeletCertificateArguments, ListFormat, RemoveSecretArguments,
    ReportArguments, TargetArguments, TryArguments, UninstallArguments,
};

/// Release and commit, and versions of the formats that this program reads and writes.
static VERSION: LazyLock<String> = LazyLock::new(|| version_text(&[("protocol", &PROTOCOL_VERSION)]));

/// Attests this node to the attestation gateway before Ignition fetches its config.
#[derive(Parser)]
#[command(
    version,
    long_version = VERSION.as_str(),
    after_help = "Example: attest during the first boot, as the unit in the initramfs does\n  attest-node attest\n\nExample: list the TPM's endorsement keys, to add one to a gateway's allowlist\n  attest-node ek list\n\nExit codes: 0 success, or nothing to do; 1 failure, with one line on stderr; 2 wrong usage."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// TCTI of the TPM
    #[arg(long, global = true, default_value = device::DEFAULT_TCTI)]
    tcti: String,
    /// Kind of endorsement key: auto (the first key with a certificate), rsa or ecc
    #[arg(long, global = true, value_name = "KIND", default_value = "auto")]
    ek: EkChoice,
    /// Folder that passes this program, and the pointer config without credentials, from the initramfs to the booted system
    #[arg(long, global = true, value_name = "FOLDER", default_value = keep::FOLDER)]
    kept: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Attest to the gateway, and give Ignition the resulting ticket
    #[command(
        after_help = "Example: as the unit in the initramfs does during the first boot\n  attest-node attest\n\nExample: with a pointer config in a file\n  attest-node attest --pointer pointer.ign --out /usr/lib/ignition/user.ign\n\nFinds the pointer config as Ignition would, and attests to its gateway with the TPM, the cloud's evidence, or both. Then writes the pointer\nconfig with the ticket to Ignition's user.ign.\n\nOn a failure, the pointer config is unchanged, except for a header that reports the failure to the gateway. One line on stderr has the\nfailure, its code, and the next step.\n\nExit codes: 0 attested, or nothing to attest to; 1 not attested; 2 wrong usage."
    )]
    Attest(Box<AttestArguments>),
    /// Rehearse the attestation of this running machine, and print what a boot would get, and why
    #[command(
        after_help = "Example: by the pointer config of this machine\n  attest-node try\n\nExample: by a gateway, before there is a pointer config\n  attest-node try --gateway https://api-int.example:22623 --pool worker --ca mcs-ca.crt\n\nThe command changes nothing. The gateway gives no ticket, binds no name or instance, and asks no administrator; its log gets a record\n`rehearsal`. It decides as if this machine were booting: a boot that is complete is only noted. It prints each requirement of the pool on the\nmeasured boot, and whether this boot meets it. No line has a secret.\n\nA pool whose only evidence needs a provisioning token refuses a rehearsal, which shows none.\n\nExit codes: 0 every gateway of the pointer config would trust this machine; 1 not; 2 wrong usage."
    )]
    Try(Box<TryArguments>),
    /// List this TPM's endorsement keys
    #[command(subcommand)]
    Ek(EkCommand),
    /// Fetch or apply the pool's full config with the kubelet's certificate
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Request the kubelet's client certificate for its attested key
    #[command(subcommand)]
    KubeletCertificate(KubeletCertificateCommand),
    /// Copy this program to the booted system
    #[command(subcommand)]
    Program(ProgramCommand),
    /// Remove the first-boot secret, which holds this node's instance claim
    #[command(subcommand)]
    FirstBootSecret(FirstBootSecretCommand),
    /// Mark this boot as complete for gateways
    #[command(subcommand)]
    Boot(BootCommand),
    /// Report the failure of this first boot to the gateway
    #[command(
        after_help = "Example: as a unit does before the emergency shell\n  attest-node report\n\nSends the failed unit, its error and the last 64 KiB of the journal to the gateway of the pointer config, over TLS that trusts the pointer's\nCAs only. Credentials, and contents of the Ignition config, are removed first. A report of a node that attested proves its attestation.\n\nOn success, one line on stderr names the report's id. On a failure, it names the reason.\n\nExit codes: 0 reported, or nothing to report; 1 not reported; 2 wrong usage."
    )]
    Report(ReportArguments),
    /// Let the boot entries of an installed system load attest-node's initrd
    #[command(
        after_help = "Example: on the disk of a machine that an installer has written\n  attest-node install --disk /dev/sda --initrd attest-node-initrd.cpio.gz\n\nExample: an image of a disk (raw, qcow2, VHD), without root\n  attest-node install --image disk.qcow2 --initrd attest-node-initrd.cpio.gz\n\nCopies the initrd to the boot filesystem, and adds it to each boot entry (Boot Loader Specification, type #1) that has an initrd. Prints each\nchanged file with its SHA-256. A second run changes nothing; another initrd replaces the first. An image is replaced when all has succeeded:\nuntil then, it is unchanged.\n\nExit codes: 0 installed; 1 not installed: the system boots as before, and one line on stderr has the reason; 2 wrong usage."
    )]
    Install(InstallArguments),
    /// Remove attest-node's initrd from the boot entries of an installed system
    #[command(
        after_help = "Example:\n  attest-node uninstall --disk /dev/sda\n\nEach changed file gets its content from before `attest-node install`.\n\nExit codes: 0 not, or no longer, installed; 1 failure, with one line on stderr; 2 wrong usage."
    )]
    Uninstall(UninstallArguments),
    #[command(hide = true)]
    Manual(ManualArguments),
}

#[derive(Subcommand)]
enum EkCommand {
    /// List the TPM's endorsement keys, with digests for `attest-gateway ek add`
    #[command(
        after_help = "Example:\n  attest-node ek list\n\nThe key that attests is marked with *. If no root of the gateway has issued its certificate, add its digest to the allowlist on the\ngateway: `attest-gateway ek add DIGEST`."
    )]
    List {
        /// Output format: text, or json
        #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
        output: ListFormat,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Fetch the full config with the kubelet's client certificate into a file
    #[command(
        after_help = "Example:\n  attest-node config fetch --pointer /etc/attest-node/pointer.ign --out /run/full.ign\n\nConnects to the gateway that the pointer config names, and trusts the CAs in the pointer config only. Sends the kubelet's client certificate,\nand no ticket or token.\n\nExit codes: 0 the file is written; 1 failure: the file is unchanged, and one line on stderr has the reason; 2 wrong usage."
    )]
    Fetch {
        /// Output file; only its owner can read it
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        arguments: Box<ConfigArguments>,
    },
    /// Fetch the full config, and let Ignition apply it at the next boot
    #[command(
        after_help = "Example:\n  attest-node config apply && systemctl reboot\n\nRepeats the distribution's own first boot. Before any change, rejects each setting that Ignition could not apply again, with its reason.\nDoes not reboot. `attest-node config undo` reverts it until the reboot.\n\nExit codes: 0 Ignition applies the config at the next boot; 1 failure: nothing is changed, and one line on stderr has the reason;\n2 wrong usage."
    )]
    Apply(Box<ConfigArguments>),
    /// Revert `attest-node config apply` before the reboot
    #[command(
        after_help = "Example:\n  attest-node config undo\n\nExit codes: 0 Ignition does not run at the next boot; 1 failure; 2 wrong usage."
    )]
    Undo(Box<ConfigArguments>),
}

#[derive(Subcommand)]
enum KubeletCertificateCommand {
    /// Request the certificate before the kubelet creates its own key
    #[command(
        after_help = "Example: as attest-node-kubelet-certificate.service does\n  attest-node kubelet-certificate request\n\nCreates a CSR with the kubelet's bootstrap credential, waits for its approval, and puts certificate and key into the kubelet's certificate\ndirectory. Then removes the key from its earlier location. A valid certificate in that directory is left unchanged.\n\nExit codes: 0 the certificate is present, or no key was attested; 1 no certificate: the kubelet creates a CSR with its own key, which a\ngateway that requires the attested key does not approve; 2 wrong usage."
    )]
    Request(KubeletCertificateArguments),
}

#[derive(Subcommand)]
enum ProgramCommand {
    /// Copy this program from the initramfs to the booted system
    #[command(after_help = "Example: as a unit in the initramfs does at each boot\n  attest-node program copy")]
    Copy {
        /// Let the booted system's unit for the kubelet's certificate wait for the network; attest-node.kubelet-key on the kernel
        /// command line does the same, and attest-node.kubelet-key=no creates no such unit
        #[arg(long)]
        kubelet_key: bool,
        /// Folder with this program, its libraries and a start script, for a booted system that lacks them
        #[arg(long, value_name = "FOLDER")]
        program: Option<PathBuf>,
        /// File with the kernel command line, which names the platform
        #[arg(long, value_name = "FILE", default_value = "/proc/cmdline")]
        cmdline: PathBuf,
        /// Folder of the firmware's DMI tables, which name the cloud
        #[arg(long, value_name = "FOLDER", default_value = detect::DMI)]
        dmi: PathBuf,
    },
}

#[derive(Subcommand)]
enum FirstBootSecretCommand {
    /// Remove the first-boot secret from disk and memory after the first boot
    #[command(
        after_help = "Example: as a unit does when Ignition has finished\n  attest-node first-boot-secret remove\n\nOverwrites and removes the secret in every possible location, so that no workload of the booted system can read it.\n\nExit codes: 0 no secret is left; 1 a secret is left: one line on stderr has its location, and the command that removes it; 2 wrong usage."
    )]
    Remove(RemoveSecretArguments),
}

#[derive(Subcommand)]
enum BootCommand {
    /// Extend PCR 13, so that later software cannot attest
    #[command(
        after_help = "Example: as units do when Ignition has its config, and at the start of later boots\n  attest-node boot complete\n\nExtends PCR 13, the boot-complete PCR, in each bank of the TPM. Until a reset, this machine cannot attest to pools that accept only booting\nmachines. A second run has no effect.\n\nExit codes: 0 the PCR is extended, or the machine has no TPM; 1 the PCR is not extended: one line on stderr has the reason; 2 wrong usage."
    )]
    Complete(CompleteArguments),
}

fn change_boot_entries(target: TargetArguments, initrd: Option<PathBuf>, output: ListFormat) -> ExitCode {
    // clap requires one of the options.
    let Some(target) = target.target() else { return ExitCode::FAILURE };
    install::run(&InstallOptions {
        target,
        initrd,
        json: matches!(output, ListFormat::Json),
    })
}

fn list_eks(tcti: &str, ek: EkChoice, output: ListFormat) -> ExitCode {
    let text = match ek_table::keys(tcti, ek) {
        Ok(keys) => match output {
            ListFormat::Text => ek_table::table(&keys),
            ListFormat::Json => format!("{:#}\n", ek_table::json(&keys)),
        },
        Err(failure) => {
            console::print_line(&failure.to_string());
            return ExitCode::FAILURE;
        }
    };
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            console::print_line(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints help, the version, or what is wrong with the arguments; returns the exit code.
fn usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(cause) if !error.use_stderr() && cause.kind() != ErrorKind::BrokenPipe => {
            console::print_line(&format!("standard output: {cause}"));
            ExitCode::FAILURE
        }
        _ => u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

fn main() -> ExitCode {
    let Arguments { command, tcti, ek, kept } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    match command {
        Command::Attest(arguments) => boot::run(arguments.settings(tcti, ek, kept)),
        Command::Try(arguments) => rehearsal::run(&arguments.settings(tcti, ek, kept)),
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
        Command::Report(arguments) => report::run(report::ReportOptions {
            failure: arguments.failure,
            pointer: arguments.pointer,
            deadline: Duration::from_secs(arguments.deadline),
            kept_folder: kept,
            config: arguments.config,
            boot_id: arguments.boot_id,
        }),
        Command::Install(arguments) => change_boot_entries(arguments.target, Some(arguments.initrd), arguments.output),
        Command::Uninstall(arguments) => change_boot_entries(arguments.target, None, arguments.output),
        Command::Manual(arguments) => match arguments.write::<Arguments>() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                console::print_line(&error.to_string());
                ExitCode::FAILURE
            }
        },
    }
}
