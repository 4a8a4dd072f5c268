//! GRUB configuration that turns the stamp into a first boot.
//!
//! CoreOS's convention (`40_coreos-ignition.cfg` in coreos/fedora-coreos-config, before that `02_ignition_firstboot` in Ignition's dracut
//! module, and osbuild's `org.osbuild.ignition`): if there is a file `ignition.firstboot`, it is sourced, and `ignition_firstboot` becomes
//! `ignition.firstboot` with what the file has put into `ignition_network_kcmdline`. Each entry of the boot menu has `$ignition_firstboot`.

/// File name of the stamp.
pub const STAMP: &str = "ignition.firstboot";
/// Variable that every menu entry refers to.
const FIRST_BOOT: &str = "ignition_firstboot";
/// The variable that the stamp may set.
const ARGUMENTS: &str = "ignition_network_kcmdline";

/// First-boot support found in GRUB's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grub {
    /// The stamp's path in the filesystem that GRUB reads.
    pub stamp: String,
    /// `true` if the stamp can bring kernel arguments for that boot.
    pub takes_arguments: bool,
}

impl Grub {
    /// Parses `grub.cfg` and the boot menu entries of the same filesystem.
    ///
    /// # Errors
    /// Description of the missing part, to follow on "GRUB".
    pub fn parse(config: &str, entries: &[String]) -> Result<Self, &'static str> {
        let lines = || config.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let stamp = lines().find_map(tested).ok_or("does not look for ignition.firstboot")?.to_owned();
        let value = lines()
            .filter_map(|line| line.strip_prefix("set ")?.trim_start().strip_prefix(FIRST_BOOT)?.strip_prefix('='))
            .map(|value| value.trim_matches(QUOTES))
            .find(|value| value.split(' ').next() == Some(STAMP))
            .ok_or("does not pass ignition.firstboot on")?;
        let has_variable = |line: &str| line.contains(&format!("${FIRST_BOOT}")) || line.contains(&format!("${{{FIRST_BOOT}}}"));
        let kernels: Vec<&str> = match entries {
            [] => lines()
                .filter(|line| line.split_whitespace().next().is_some_and(is_linux))
                .collect(),
            entries => entries
                .iter()
                .flat_map(|entry| entry.lines().filter(|line| line.split_whitespace().next() == Some("options")))
                .collect(),
        };
        if kernels.is_empty() || !kernels.into_iter().all(has_variable) {
            return Err("has entries without $ignition_firstboot");
        }
        let is_sourced = lines().any(|line| {
            let mut words = line.split_whitespace();
            matches!(words.next(), Some("source" | ".")) && words.next().is_some_and(|path| path.trim_matches(QUOTES) == stamp)
        });
        Ok(Self {
            takes_arguments: is_sourced && value.contains(ARGUMENTS),
            stamp,
        })
    }
}

const QUOTES: [char; 2] = ['"', '\''];

/// A stamp with these further arguments on the kernel command line of that boot.
#[must_use]
pub fn stamp(arguments: &[&str]) -> String {
    match arguments {
        [] => String::new(),
        arguments => format!("set {ARGUMENTS}=\"${{{ARGUMENTS}}} {}\"\n", arguments.join(" ")),
    }
}

/// The stamp, in a line that tests whether it is there.
fn tested(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "-f").skip(1);
    let path = words.next()?.trim_end_matches([']', ';']).trim_matches(QUOTES);
    (path.strip_prefix('/')?.rsplit('/').next() == Some(STAMP)).then_some(path)
}

fn is_linux(word: &str) -> bool {
    matches!(word, "linux" | "linuxefi" | "linux16")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "set ignition_firstboot=\"\"\n\
        if [ -f \"/ignition.firstboot\" ]; then\n\
        \x20   set ignition_network_kcmdline=''\n\
        \x20   source \"/ignition.firstboot\"\n\
        \x20   set ignition_firstboot=\"ignition.firstboot ${ignition_network_kcmdline}\"\n\
        fi\nblscfg\n";
    const ENTRY: &str = "title A\noptions $ignition_firstboot ostree=/ostree/boot.1 root=UUID=1\n";

    fn check(config: &str, entries: &[&str], expect: Result<(&str, bool), &'static str>) {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let expect = expect.map(|(stamp, takes_arguments)| Grub {
            stamp: stamp.to_owned(),
            takes_arguments,
        });
        assert_eq!(Grub::parse(config, &entries), expect, "{config}\n{entries:?}");
    }

    #[test]
    fn grub_config_with_ignition_stamp_is_detected() {
        let stamp = "/ignition.firstboot";
        check(CONFIG, &[ENTRY], Ok((stamp, true)));
        check(CONFIG, &[ENTRY, ENTRY], Ok((stamp, true)));
        let own = CONFIG.replace("blscfg", "menuentry A {\n  linux /vmlinuz root=LABEL=root ${ignition_firstboot}\n}");
        check(&own, &[], Ok((stamp, true)));
        check(
            &own.replace("/ignition.first", "/boot/ignition.first"),
            &[],
            Ok(("/boot/ignition.firstboot", true)),
        );
        // What the stamp brings is not passed on.
        check(&CONFIG.replace(" ${ignition_network_kcmdline}", ""), &[ENTRY], Ok((stamp, false)));
        check(
            &CONFIG.replace("    source \"/ignition.firstboot\"\n", ""),
            &[ENTRY],
            Ok((stamp, false)),
        );
    }

    #[test]
    fn incomplete_grub_convention_is_rejected() {
        check("", &[ENTRY], Err("does not look for ignition.firstboot"));
        check(
            &CONFIG.replace("if [", "# if ["),
            &[ENTRY],
            Err("does not look for ignition.firstboot"),
        );
        check(
            &CONFIG.replace("\"ignition.firstboot ", "\"flatcar.first_boot "),
            &[ENTRY],
            Err("does not pass ignition.firstboot on"),
        );
        let without = "has entries without $ignition_firstboot";
        check(CONFIG, &[], Err(without));
        check(CONFIG, &[ENTRY, "options root=UUID=1"], Err(without));
        check(&CONFIG.replace("blscfg", "linux /vmlinuz root=LABEL=root"), &[], Err(without));
    }

    #[test]
    fn stamp_appends_to_network_kernel_arguments() {
        assert_eq!(stamp(&[]), "");
        assert_eq!(
            stamp(&["a=1", "b"]),
            "set ignition_network_kcmdline=\"${ignition_network_kcmdline} a=1 b\"\n"
        );
    }
}
