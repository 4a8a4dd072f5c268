//! Errors with which a program ends.

use std::io::ErrorKind;
use std::process::ExitCode;

use attest_system::causes::with_causes;
use attest_system::newer_format::NewerFormat;

use super::output;

/// Prints help, the version, or what is wrong with the arguments; returns the exit code.
#[must_use]
pub fn usage(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(error) if !said.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            output::warn(format_args!("standard output: {error}"));
            ExitCode::FAILURE
        }
        // Nothing is left to be told by.
        _ => u8::try_from(said.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// Exit code for data of a newer release; arguments that are wrong have the same.
pub const NEWER_FORMAT: u8 = 2;

/// Prints the error with which a program ends; returns the exit code.
#[must_use]
pub fn failure(error: &anyhow::Error) -> ExitCode {
    output::warn(in_full(error));
    match error.chain().any(|cause| cause.is::<NewerFormat>()) {
        true => ExitCode::from(NEWER_FORMAT),
        false => ExitCode::FAILURE,
    }
}

/// Returns the error with its causes; omits causes that an error's own text already contains.
#[must_use]
pub fn in_full(error: &anyhow::Error) -> String {
    with_causes(error.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_chain_repeats_no_cause() {
        let missing = || std::io::Error::other("no such file");
        let said = |error: anyhow::Error| in_full(&error);
        assert_eq!(
            said(anyhow::Error::from(missing()).context("a.toml: no such file")),
            "a.toml: no such file"
        );
        assert_eq!(said(anyhow::Error::from(missing()).context("a.toml")), "a.toml: no such file");
    }
}
