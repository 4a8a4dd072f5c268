//! A config of GRUB's, as far as its commands follow from it.

/// Largest config that is read: far more than a generated one has.
pub const CONFIG_LIMIT_BYTES: usize = 256 * 1024;
/// Most commands, each of which is a digest.
pub(super) const COMMANDS_LIMIT: usize = 1000;

/// Commands that read no file, ask nothing of the machine, and go on with the next one; with the variables that may be set.
const PLAIN: [&str; 5] = ["set", "echo", "serial", "terminal_input", "terminal_output"];
const VARIABLES: [&str; 4] = ["default", "root", "timeout", "timeout_style"];

/// The command that names a partition.
pub(super) const SET_ROOT: &str = "set root=";

/// A config of which each command is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubConfig {
    pub(super) commands: Vec<GrubCommand>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GrubCommand {
    Plain(String),
    /// Kernel and its arguments.
    Linux {
        text: String,
        arguments: String,
    },
    /// An initrd command, with the number of its files.
    Initrd {
        text: String,
        files: usize,
    },
}

/// A reason why a config's commands cannot be derived from its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrubConfigError {
    /// Larger than is read.
    #[error("it has {bytes} bytes, more than {CONFIG_LIMIT_BYTES}")]
    TooLarge { bytes: usize },
    /// More commands than are read.
    #[error("it has more than {COMMANDS_LIMIT} commands")]
    Commands,
    /// A byte that has a meaning to GRUB, or none.
    #[error("line {line} has {found}: GRUB's evaluation of it cannot be predicted")]
    Syntax { line: usize, found: String },
    /// A command of which it is not known what it measures.
    #[error("line {line}: the command {command} may read files or query the machine: its measurements cannot be predicted")]
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
            let Some(words) = split_words(text, line)? else { continue };
            let [name, arguments @ ..] = words.as_slice() else { continue };
            if commands.len() == COMMANDS_LIMIT {
                return Err(GrubConfigError::Commands);
            }
            if booted {
                return order("no command may follow boot");
            }
            let text = words.join(" ");
            commands.push(match *name {
                "linux" | "linuxefi" if kernel => return order("a second kernel"),
                "linux" | "linuxefi" if arguments.is_empty() => return order("the kernel command needs a file"),
                "linux" | "linuxefi" => {
                    kernel = true;
                    let arguments = arguments.join(" ");
                    GrubCommand::Linux { text, arguments }
                }
                "initrd" | "initrdefi" if !kernel || initrd => return order("one initrd command may follow the kernel command"),
                "initrd" | "initrdefi" if arguments.is_empty() => return order("the initrd command needs a file"),
                "initrd" | "initrdefi" => {
                    initrd = true;
                    let files = arguments.len();
                    GrubCommand::Initrd { text, files }
                }
                "boot" if !kernel => return order("boot must follow the kernel command"),
                "boot" if arguments.is_empty() => {
                    booted = true;
                    GrubCommand::Plain(text)
                }
                plain if PLAIN.contains(&plain) && sets_expected_variable(plain, arguments) => GrubCommand::Plain(text),
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
                what: "the last command must be boot: otherwise a user could choose an entry",
            })
        }
    }

    /// The paths of the kernel and of the files of the initrd, as the config has them.
    #[must_use]
    pub fn files(&self) -> (Option<&str>, Vec<&str>) {
        let (mut kernel, mut initrds) = (None, Vec::new());
        for command in &self.commands {
            match command {
                GrubCommand::Plain(_) => {}
                GrubCommand::Linux { arguments, .. } => kernel = arguments.split(' ').next(),
                GrubCommand::Initrd { text, .. } => initrds.extend(text.split(' ').skip(1)),
            }
        }
        (kernel, initrds)
    }

    /// Returns the kernel's path and its arguments.
    pub(super) fn kernel_arguments(&self) -> Option<&str> {
        self.commands.iter().find_map(|command| match command {
            GrubCommand::Linux { arguments, .. } => Some(arguments.as_str()),
            GrubCommand::Plain(_) | GrubCommand::Initrd { .. } => None,
        })
    }

    /// The partitions on which it looks for files, as far as it names any.
    pub fn roots(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().filter_map(|command| match command {
            GrubCommand::Plain(text) => text.strip_prefix(SET_ROOT),
            GrubCommand::Linux { .. } | GrubCommand::Initrd { .. } => None,
        })
    }

    /// Returns the number of files that the initrd consists of.
    #[must_use]
    pub fn initrds(&self) -> usize {
        let files = self.commands.iter().map(|command| match command {
            GrubCommand::Initrd { files, .. } => *files,
            GrubCommand::Plain(_) | GrubCommand::Linux { .. } => 0,
        });
        files.sum()
    }
}

fn sets_expected_variable(command: &str, arguments: &[&str]) -> bool {
    let known = |argument: &&str| {
        let variable = argument.split_once('=').map(|(name, _)| name);
        variable.is_some_and(|name| VARIABLES.contains(&name))
    };
    command != "set" || (arguments.len() == 1 && arguments.iter().all(known))
}

/// The words of a line. Nothing for an empty one.
pub(super) fn split_words(line: &[u8], number: usize) -> Result<Option<Vec<&str>>, GrubConfigError> {
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
