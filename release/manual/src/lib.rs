//! Man pages and shell completions, from the definition of a program's arguments.

#![deny(unreachable_pub)]

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

/// Hidden command that writes man pages and shell completions: `make release` packs them.
#[derive(Debug, clap::Args)]
pub struct ManualArguments {
    /// Existing folder for the files
    folder: PathBuf,
}

impl ManualArguments {
    /// Writes the man page of each command, and the completions for bash, zsh and fish.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write<Program: CommandFactory>(&self) -> io::Result<()> {
        write(Program::command(), &self.folder)
    }
}

fn write(mut command: clap::Command, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), &name, folder)?;
    }
    command = command
        // The texts of `--version` have several lines, and a page's header has one.
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(env!("CARGO_PKG_VERSION"))
        // Its pages would repeat the others.
        .disable_help_subcommand(true);
    clap_mangen::generate_to(command, folder)
}
