//! GRUB: the commands that it executes, PCR 8, and the files that it reads, PCR 9.
//!
//! GRUB's module `tpm` extends each command of a config, after variables were put in, into PCR 8, the kernel's command line once more, and each
//! file that is opened into PCR 9 (`grub-core/commands/tpm.c`, `script/execute.c`, `kern/verifiers.c`). So PCR 8 follows from a config only where
//! its commands do: one that asks the machine (`if`, `search`, variables, a menu in which somebody chooses) is refused, and has to be recorded.
//!
//! What becomes of the kernel differs between releases, and was seen of Debian's 2.06 and 2.12. The release is in the image's section `.sbat`.

use super::boot::{IMAGES_PCR, SecureBoot, begin, load};
use super::linux::{CommandLine, Kernel, STUB_PCR};
use super::pe::PeImage;
use super::{Digests, MeasuredBy, Prediction, What, When};

/// The PCR of commands.
pub const COMMANDS_PCR: u8 = 8;
/// The PCR of files. The kernel's stub goes on in it.
pub const FILES_PCR: u8 = 9;
/// The PCR of shim's lists of keys.
const SHIM_PCR: u8 = 14;

/// Largest config that is read: far more than a generated one has.
pub const CONFIG_LIMIT_BYTES: usize = 256 * 1024;
/// Most commands, each of which is a digest.
pub const COMMANDS_LIMIT: usize = 1000;

/// Commands that read no file, ask nothing of the machine, and go on with the next one; with the variables that may be set.
const PLAIN: [&str; 5] = ["set", "echo", "serial", "terminal_input", "terminal_output"];
const VARIABLES: [&str; 4] = ["default", "root", "timeout", "timeout_style"];

/// Up to a multiple of this an initrd is known to be handed on as it is.
const INITRD_PADDING_BYTES: usize = 4;

/// What the kernel is told first.
const IMAGE_ARGUMENT: &str = "BOOT_IMAGE=";

/// A config of which each command is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubConfig {
    commands: Vec<Command>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    Plain(String),
    /// Kernel and its arguments.
    Linux {
        text: String,
        arguments: String,
    },
    /// How many files.
    Initrd {
        text: String,
        files: usize,
    },
}

/// Why a config's commands do not follow from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrubConfigError {
    /// Larger than is read.
    #[error("it has {bytes} bytes, more than {CONFIG_LIMIT_BYTES}")]
    TooLarge { bytes: usize },
    /// More commands than are read.
    #[error("it has more than {COMMANDS_LIMIT} commands")]
    Commands,
    /// A byte that has a meaning to GRUB, or none.
    #[error("line {line} has {found}: what GRUB makes of it is not computed")]
    Syntax { line: usize, found: String },
    /// A command of which it is not known what it measures.
    #[error("line {line}: the command {command} may read files, or ask the machine: what it measures is not computed")]
    Unknown { line: usize, command: String },
    /// A kernel too many, or an initrd before it, or neither.
    #[error("line {line}: {what}")]
    Order { line: usize, what: &'static str },
}

impl GrubConfig {
    /// Reads a config: comments, and commands without quotes, variables and blocks, of which the last one is `boot`.
    ///
    /// # Errors
    /// [`GrubConfigError`].
    pub fn parse(config: &[u8]) -> Result<Self, GrubConfigError> {
        if config.len() > CONFIG_LIMIT_BYTES {
            return Err(GrubConfigError::TooLarge { bytes: config.len() });
        }
        let mut commands = Vec::new();
        let (mut kernel, mut initrd, mut booted) = (false, false, false);
        for (index, text) in config.split(|&byte| byte == b'\n').enumerate() {
            let line = index + 1;
            let order = |what| Err(GrubConfigError::Order { line, what });
            let Some(words) = words(text, line)? else { continue };
            let [name, arguments @ ..] = words.as_slice() else { continue };
            if commands.len() == COMMANDS_LIMIT {
                return Err(GrubConfigError::Commands);
            }
            if booted {
                return order("nothing comes behind boot");
            }
            let text = words.join(" ");
            commands.push(match *name {
                "linux" | "linuxefi" if kernel => return order("a second kernel"),
                "linux" | "linuxefi" if arguments.is_empty() => return order("a kernel is a file"),
                "linux" | "linuxefi" => {
                    kernel = true;
                    let arguments = arguments.join(" ");
                    Command::Linux { text, arguments }
                }
                "initrd" | "initrdefi" if !kernel || initrd => return order("an initrd comes behind the kernel, once"),
                "initrd" | "initrdefi" if arguments.is_empty() => return order("an initrd is a file"),
                "initrd" | "initrdefi" => {
                    initrd = true;
                    let files = arguments.len();
                    Command::Initrd { text, files }
                }
                "boot" if !kernel => return order("boot comes behind the kernel"),
                "boot" if arguments.is_empty() => {
                    booted = true;
                    Command::Plain(text)
                }
                plain if PLAIN.contains(&plain) && sets_what_is_known(plain, arguments) => Command::Plain(text),
                other => {
                    return Err(GrubConfigError::Unknown {
                        line,
                        command: other.to_owned(),
                    });
                }
            });
        }
        if booted {
            Ok(Self { commands })
        } else {
            Err(GrubConfigError::Order {
                line: config.split(|&byte| byte == b'\n').count(),
                what: "the last command is boot, without which somebody may choose",
            })
        }
    }

    /// The paths of the kernel and of the files of the initrd, as the config has them.
    #[must_use]
    pub fn files(&self) -> (Option<&str>, Vec<&str>) {
        let (mut kernel, mut initrds) = (None, Vec::new());
        for command in &self.commands {
            match command {
                Command::Plain(_) => {}
                Command::Linux { arguments, .. } => kernel = arguments.split(' ').next(),
                Command::Initrd { text, .. } => initrds.extend(text.split(' ').skip(1)),
            }
        }
        (kernel, initrds)
    }

    /// How many files the initrd is made of.
    #[must_use]
    pub fn initrds(&self) -> usize {
        let files = self.commands.iter().map(|command| match command {
            Command::Initrd { files, .. } => *files,
            Command::Plain(_) | Command::Linux { .. } => 0,
        });
        files.sum()
    }
}

fn sets_what_is_known(command: &str, arguments: &[&str]) -> bool {
    let known = |argument: &&str| {
        let variable = argument.split_once('=').map(|(name, _)| name);
        variable.is_some_and(|name| VARIABLES.contains(&name))
    };
    command != "set" || (arguments.len() == 1 && arguments.iter().all(known))
}

/// The words of a line. Nothing for an empty one.
fn words(line: &[u8], number: usize) -> Result<Option<Vec<&str>>, GrubConfigError> {
    // GRUB takes a "#" for a comment's beginning only where a word could begin. Here it is one only where a line could.
    let first = line.iter().position(|byte| !matches!(byte, b' ' | b'\t'));
    let Some(line) = first.and_then(|first| line.get(first..)).filter(|line| line.first() != Some(&b'#')) else {
        return Ok(None);
    };
    let plain = |byte: &&u8| !matches!(byte, b' '..=b'~' | b'\t') || br##"#'"$\{};|&<>*?[]!`"##.contains(byte);
    if let Some(byte) = line.iter().find(plain) {
        return Err(GrubConfigError::Syntax {
            line: number,
            found: format!("\"{}\"", byte.escape_ascii()),
        });
    }
    let text = std::str::from_utf8(line).unwrap_or_default();
    Ok(Some(text.split([' ', '\t']).filter(|word| !word.is_empty()).collect()))
}

/// A release of GRUB, of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// 2.06 of Debian 12. Without Secure Boot it starts the kernel by itself; with it, it asks shim twice whether it may, and shim measures what it is asked about.
    Debian206,
    /// 2.12 of Debian 13. It opens its config twice, and has the firmware start the kernel.
    Debian212,
}

impl Release {
    /// By the component's line in `.sbat`: name, generation, vendor, package, version, URL (shim's SBAT.md).
    fn of(image: &PeImage<'_>) -> Result<Self, String> {
        let section = image.sections().iter().find(|section| section.name.as_bytes() == b".sbat");
        let text = section
            .and_then(|section| section.content())
            .ok_or("GRUB's image has no section .sbat")?;
        let lines = || text.split(|&byte| byte == b'\n');
        let field = |line: &'_ [u8], index: usize| line.split(|&byte| byte == b',').nth(index).map(<[u8]>::to_vec);
        let version = lines()
            .find(|line| line.starts_with(b"grub,"))
            .and_then(|line| field(line, 4))
            .unwrap_or_default();
        let debian = lines().any(|line| line.starts_with(b"grub.debian,"));
        match version.as_slice() {
            b"2.06" if debian => Ok(Self::Debian206),
            b"2.12" if debian => Ok(Self::Debian212),
            other => Err(format!(
                "what GRUB measures was looked at of Debian's 2.06 and 2.12; this one is \"{}\"{}",
                other.escape_ascii(),
                if debian { "" } else { ", and not Debian's" }
            )),
        }
    }
}

/// A boot by GRUB.
#[derive(Debug, Clone, Copy)]
pub struct GrubBoot<'a> {
    /// What starts GRUB, if firmware does not.
    pub shim: Option<&'a PeImage<'a>>,
    pub grub: &'a PeImage<'a>,
    /// The file that GRUB reads from its folder, as it is, and what it says. One that is built into the image's memory disk is not measured.
    pub config: (&'a [u8], &'a GrubConfig),
    /// The kernel's file, as it is.
    pub kernel: (&'a [u8], &'a Kernel<'a>),
    /// The files of the initrd, in their order.
    pub initrds: &'a [&'a [u8]],
    pub secure_boot: SecureBoot,
}

impl GrubBoot<'_> {
    /// PCRs 4, 8 and 9.
    pub fn predict(&self, prediction: &mut Prediction) {
        if let Err(why) = self.known(prediction) {
            prediction.leave_out(&[IMAGES_PCR, COMMANDS_PCR, FILES_PCR], why);
        }
        if self.shim.is_some() {
            prediction.leave_out(&[SHIM_PCR], "shim measures its lists of keys, which the machine has");
        }
    }

    fn known(&self, prediction: &mut Prediction) -> Result<(), String> {
        let release = Release::of(self.grub)?;
        let expected = self.config.1.initrds();
        if expected != self.initrds.len() {
            return Err(format!("the config has {expected} initrds, {} are given", self.initrds.len()));
        }
        let images = self.kernel_images(release)?;
        begin(prediction);
        if let Some(shim) = self.shim {
            load(prediction, "shim", shim);
        }
        load(prediction, "GRUB", self.grub);
        for _ in 0..images {
            load(prediction, "kernel", self.kernel.1.image());
        }
        prediction.settle(IMAGES_PCR, When::AtKernel);
        self.files_and_commands(release, prediction)
    }

    /// How often the kernel is measured as an image.
    fn kernel_images(&self, release: Release) -> Result<usize, String> {
        match (release, self.shim.is_some(), self.secure_boot) {
            (_, false, SecureBoot::On) => Err("without shim, Debian's GRUB starts no kernel with Secure Boot".to_owned()),
            (Release::Debian206, false, SecureBoot::Off) => Ok(0),
            (Release::Debian206, true, SecureBoot::On) => Ok(2),
            (Release::Debian212, false, SecureBoot::Off) => Ok(1),
            (Release::Debian206, true, SecureBoot::Off) => {
                Err("what GRUB 2.06 measures behind shim without Secure Boot was not looked at".to_owned())
            }
            (Release::Debian212, true, _) => Err("what GRUB 2.12 measures behind shim was not looked at".to_owned()),
        }
    }

    fn files_and_commands(&self, release: Release, prediction: &mut Prediction) -> Result<(), String> {
        let mut file = |name, content| prediction.measure(FILES_PCR, MeasuredBy::Grub, What::File(name), &[content]);
        for _ in 0..match release {
            Release::Debian206 => 1,
            Release::Debian212 => 2,
        } {
            file("grub.cfg", self.config.0);
        }
        file("kernel", self.kernel.0);
        for initrd in self.initrds {
            file("initrd", initrd);
        }

        let mut options = None;
        for command in &self.config.1.commands {
            let (text, line) = match command {
                Command::Plain(text) | Command::Initrd { text, .. } => (text, None),
                Command::Linux { text, arguments } => (text, Some(arguments)),
            };
            let what = What::Command(text.clone());
            prediction.measure(COMMANDS_PCR, MeasuredBy::Grub, what, &[text.as_bytes()]);
            if let Some(line) = line {
                let what = What::GrubCommandLine(line.clone());
                prediction.measure(COMMANDS_PCR, MeasuredBy::Grub, what, &[line.as_bytes()]);
                options = Some(format!("{IMAGE_ARGUMENT}{line}"));
            }
        }
        prediction.settle(COMMANDS_PCR, When::AtKernel);

        if release == Release::Debian212 {
            let options = options.unwrap_or_default();
            let options = CommandLine::parse(options.as_bytes()).map_err(|error| format!("the command line: {error}"))?;
            let initrd = match self.initrds {
                [] => None,
                [alone] if alone.len().is_multiple_of(INITRD_PADDING_BYTES) => Some(Digests::of(prediction.banks(), &[alone])),
                _ => return Err("how GRUB 2.12 puts initrds together was not looked at".to_owned()),
            };
            self.kernel.1.measure_stub(prediction, &options, &options.without_end(), initrd)?;
        }
        prediction.settle(STUB_PCR, When::AtKernel);
        Ok(())
    }
}
