//! Man pages and shell completions, from the definition of a program's arguments.

#![deny(unreachable_pub)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process;

use clap::{Command, CommandFactory};
use clap_complete::{Generator as _, Shell};
use clap_mangen::Man;

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
    /// If a file cannot be written; they name it.
    pub fn write<Program: CommandFactory>(&self) -> io::Result<()> {
        write(Program::command(), &self.folder)
    }
}

fn write(mut command: Command, folder: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
        if shell == Shell::Bash {
            text = with_matching_names(&utf8(text)?, &name).into_bytes();
        }
        replace(&folder.join(shell.file_name(&name)), &text)?;
    }
    command = command
        // The texts of `--version` have several lines, and a page's header has one.
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(env!("CARGO_PKG_VERSION"))
        // Its pages would repeat the others.
        .disable_help_subcommand(true);
    command.build();
    write_pages(command, folder)
}

/// Returns a bash completion whose function finds the options of subcommands.
///
/// It looks for `my__program__subcmd__verb` where clap_complete writes `my__subcmd__program__subcmd__verb`, for a program with a hyphen:
/// <https://github.com/clap-rs/clap/issues/6421>.
fn with_matching_names(completion: &str, program: &str) -> String {
    completion.replace(&program.replace('-', "__subcmd__"), &program.replace('-', "__"))
}

fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand.clone(), folder)?;
    }
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    replace(&folder.join(page.get_filename()), with_usual_sections(&utf8(text)?).as_bytes())
}

/// Returns a man page with the sections of man-pages(7) instead of EXTRA, where clap_mangen puts all that follows the options in `--help`.
fn with_usual_sections(page: &str) -> String {
    const EXTRA: &str = "\n.SH EXTRA\n";
    let Some((before, extra)) = page.split_once(EXTRA) else {
        return page.to_owned();
    };
    let (extra, after) = extra.find("\n.SH ").map_or((extra.trim_end(), "\n"), |end| extra.split_at(end));
    let mut text = before.to_owned();
    for section in ["\"EXIT STATUS\"", "NOTES", "EXAMPLES"] {
        let paragraphs: Vec<&str> = extra.split("\n\n").filter(|paragraph| section_of(paragraph) == section).collect();
        if !paragraphs.is_empty() {
            text += &format!("\n.SH {section}\n{}", paragraphs.join("\n\n"));
        }
    }
    text + after
}

fn section_of(paragraph: &str) -> &'static str {
    match paragraph {
        _ if paragraph.starts_with("Example") => "EXAMPLES",
        _ if paragraph.starts_with("Exit code") => "\"EXIT STATUS\"",
        _ => "NOTES",
    }
}

fn utf8(text: Vec<u8>) -> io::Result<String> {
    String::from_utf8(text).map_err(io::Error::other)
}

/// Replaces the file of this name, and a link instead of its target.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension(process::id().to_string());
    let result = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut file| file.write_all(text))
        .and_then(|()| fs::rename(&new, path));
    result.map_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&new);
        }
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command as Process;

    use clap::{Arg, ArgAction};
    use tempfile::TempDir;

    use super::*;

    fn program() -> Command {
        let replace = Arg::new("replace").long("replace").action(ArgAction::SetTrue);
        Command::new("attest-gateway")
            .after_help("Example: first\n  attest-gateway restore FILE\n\nA note.\n\nExit codes: 0 success; 1 failure.")
            .subcommand(Command::new("restore").arg(replace))
            .subcommand(
                Command::new("token")
                    .subcommand(Command::new("create"))
                    .subcommand(Command::new("list")),
            )
            .subcommand(
                Command::new("reference-values")
                    .subcommand(Command::new("list"))
                    .subcommand(Command::new("deny")),
            )
    }

    fn written() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(program(), folder.path()).unwrap();
        folder
    }

    #[test]
    fn bash_completes_subcommands_of_a_program_with_a_hyphen() {
        let folder = written();
        // As bash calls it, after the words and before the last one.
        let script = r#"
            source "$1"
            shift
            function=$(complete -p attest-gateway | sed 's/.*-F \([^ ]*\).*/\1/')
            COMP_WORDS=("$@")
            COMP_CWORD=$(($# - 1))
            "$function" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[@]}"
        "#;
        let completed = |words: &[&str]| {
            let output = Process::new("bash")
                .args(["-c", script, "bash"])
                .arg(folder.path().join("attest-gateway.bash"))
                .arg("attest-gateway")
                .args(words)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(completed(&["res"]), "restore");
        assert_eq!(completed(&["restore", "--"]), "--replace --help");
        assert_eq!(completed(&["token", "cre"]), "create");
        assert_eq!(completed(&["reference-values", "li"]), "list");
        assert_eq!(completed(&["help", "token", "li"]), "list");
    }

    #[test]
    fn pages_have_the_usual_sections() {
        let folder = written();
        let page = fs::read_to_string(folder.path().join("attest-gateway.1")).unwrap();
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert!(
            sections.ends_with(&["\"EXIT STATUS\"", "NOTES", "EXAMPLES", "VERSION"]),
            "{sections:?}"
        );
        assert!(
            page.contains(".SH EXAMPLES\nExample: first\n  attest\\-gateway restore FILE\n.SH VERSION\n"),
            "{page}"
        );
        assert!(folder.path().join("attest-gateway-reference-values-deny.1").exists());
    }

    #[test]
    fn replaces_a_link_and_not_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "unchanged").unwrap();
        let page = folder.path().join("attest-gateway.1");
        symlink(&target, &page).unwrap();
        write(program(), folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "unchanged");
        assert!(!fs::symlink_metadata(&page).unwrap().is_symlink());
    }

    #[test]
    fn errors_name_the_file() {
        let error = write(program(), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/attest-gateway.bash: "), "{error}");
    }
}
