//! Commands that a message advises: printed so that they run as they are, with the configuration in use.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// Programs that advised commands begin with, and the option with the configuration in use.
static CONFIGURATION: RwLock<Option<(&'static [&'static str], String)>> = RwLock::new(None);

/// Sets the configuration that advised commands of these programs name. Not called: they name none, and use the default.
pub fn set_configuration(programs: &'static [&'static str], file: &Path) {
    let option = format!("--config {} ", quoted(&file.display().to_string()));
    *CONFIGURATION.write().unwrap_or_else(PoisonError::into_inner) = Some((programs, option));
}

/// Returns the text with the configuration in use in each command that it advises, which stands between backquotes.
#[must_use]
pub fn runnable(text: &str) -> Cow<'_, str> {
    match CONFIGURATION.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
        Some((programs, option)) => with_option(text, programs, option),
        None => Cow::Borrowed(text),
    }
}

fn with_option<'a>(text: &'a str, programs: &[&str], option: &str) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for program in programs {
        let command = format!("`{program} ");
        if text.contains(&command) {
            let with_option = text.replace(&command, &format!("{command}{option}"));
            // It makes a configuration, and reads none.
            text = Cow::Owned(with_option.replace(&format!("{command}{option}init "), &format!("{command}init ")));
        }
    }
    text
}

/// Returns the word as a shell reads it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_config_option_to_advised_commands() {
        let runnable = |text| with_option(text, &["attest-gateway", "attest-audit"], "--config gw/gateway.toml ");
        assert_eq!(
            runnable("not listed: `attest-gateway ek add 0f`, `attest-audit log audit`, or `oc get nodes`"),
            "not listed: `attest-gateway --config gw/gateway.toml ek add 0f`, `attest-audit --config gw/gateway.toml log audit`, or `oc get nodes`"
        );
        assert!(matches!(runnable("attest-gateway serves"), Cow::Borrowed(_)));
        assert_eq!(runnable("run `attest-gateway init FOLDER`"), "run `attest-gateway init FOLDER`");
    }

    #[test]
    fn a_path_is_quoted_where_a_shell_would_split_it() {
        assert_eq!(quoted("gw/gateway.toml"), "gw/gateway.toml");
        assert_eq!(quoted("my gateway's.toml"), r"'my gateway'\''s.toml'");
        assert_eq!(quoted(""), "''");
    }
}
