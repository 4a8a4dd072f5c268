//! Boot entry, type #1 of the Boot Loader Specification (UAPI group), as GRUB's blscfg, systemd-boot and OSTree read it.

/// Key of the lines that name initrds. The boot loader loads all of them, in their order.
const INITRD: &str = "initrd";
/// Key of the line that names the kernel.
const LINUX: &str = "linux";
/// Key of the lines with the kernel's arguments.
const OPTIONS: &str = "options";
/// Prefix of the kernel argument that names an OSTree deployment.
const OSTREE: &str = "ostree=";

/// Text of an entry. Lines that no method names stay as they are, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BootEntry {
    text: String,
}

impl BootEntry {
    pub(super) fn new(text: String) -> Self {
        Self { text }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the entry boots a kernel with an initrd. Others start an EFI program, such as a unified kernel image.
    pub(super) fn has_initrd(&self) -> bool {
        self.values(LINUX).next().is_some() && self.first_initrd().is_some()
    }

    /// Returns the path of the first initrd. GRUB expands variables behind it on the same line.
    pub(super) fn first_initrd(&self) -> Option<&str> {
        self.values(INITRD).next()?.split_whitespace().next()
    }

    /// Returns whether the entry boots an OSTree deployment.
    pub(super) fn is_ostree(&self) -> bool {
        self.values(OPTIONS)
            .flat_map(str::split_whitespace)
            .any(|word| word.starts_with(OSTREE))
    }

    /// Returns the entry with this initrd as its last one, and without those in `former`.
    pub(super) fn with_initrd(&self, path: &str, former: &[String]) -> Self {
        let other = self.without_initrds(former);
        let mut text = String::with_capacity(other.text.len() + path.len() + 8);
        let last = other
            .text
            .split_inclusive('\n')
            .filter(|line| value(line, INITRD).is_some())
            .count();
        let mut found = 0;
        for line in other.text.split_inclusive('\n') {
            text.push_str(line);
            if value(line, INITRD).is_none() {
                continue;
            }
            found += 1;
            if found == last {
                let separator = if line.contains('\t') { '\t' } else { ' ' };
                let added = format!("{INITRD}{separator}{path}");
                // Without an end, the new line is the last one and has no end either.
                text.push_str(&if line.ends_with('\n') { added + "\n" } else { format!("\n{added}") });
            }
        }
        Self { text }
    }

    /// Returns the paths of all initrds.
    pub(super) fn initrds(&self) -> impl Iterator<Item = &str> {
        self.values(INITRD)
    }

    /// Returns the entry without these initrds.
    pub(super) fn without_initrds(&self, paths: &[String]) -> Self {
        let is_ours = |line: &&str| value(line, INITRD).is_some_and(|path| paths.iter().any(|ours| ours == path));
        let mut text: String = self.text.split_inclusive('\n').filter(|line| !is_ours(line)).collect();
        if !self.text.ends_with('\n') && text.ends_with('\n') {
            text.pop();
        }
        Self { text }
    }

    fn values<'e>(&'e self, key: &'e str) -> impl Iterator<Item = &'e str> {
        self.text.lines().filter_map(move |line| value(line, key))
    }
}

/// Returns a line's value if the line has this key.
fn value<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let rest = line.trim_start().strip_prefix(key)?;
    let value = rest.strip_prefix([' ', '\t'])?.trim();
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entry of an installed Fedora CoreOS in its form: `ostree_bootconfig_parser_write_at` writes these keys in this order.
    const COREOS: &str = "title Fedora CoreOS (ostree:0)\nversion 1\noptions $ignition_firstboot ignition.platform.id=metal \
                          ostree=/ostree/boot.1/fedora-coreos/0a/0\nlinux /ostree/fedora-coreos-0a/vmlinuz\ninitrd \
                          /ostree/fedora-coreos-0a/initramfs.img\naboot x\n";

    fn check(text: &str, expect: &str) {
        let entry = BootEntry::new(text.to_owned());
        let changed = entry.with_initrd("/new.img", &[]);
        assert_eq!(changed.text(), expect);
        let ours = ["/new.img".to_owned()];
        assert_eq!(changed.without_initrds(&ours), entry, "undone");
        assert_eq!(changed.with_initrd("/new.img", &ours), changed, "repeated");
        assert_eq!(
            changed.with_initrd("/newer.img", &ours),
            entry.with_initrd("/newer.img", &[]),
            "replaced"
        );
    }

    #[test]
    fn adds_one_line_and_removes_it_again() {
        let added = "/initramfs.img\ninitrd /new.img\naboot";
        check(COREOS, &COREOS.replace("/initramfs.img\naboot", added));
        check("linux /a\ninitrd /b\n", "linux /a\ninitrd /b\ninitrd /new.img\n");
        check("linux /a\ninitrd /b", "linux /a\ninitrd /b\ninitrd /new.img");
        check(
            "linux\t/a\ninitrd\t/b\ninitrd\t/c\noptions\tx\n",
            "linux\t/a\ninitrd\t/b\ninitrd\t/c\ninitrd\t/new.img\noptions\tx\n",
        );
        check(
            "initrd /b $tuned_initrd\nlinux /a",
            "initrd /b $tuned_initrd\ninitrd /new.img\nlinux /a",
        );
    }

    #[test]
    fn recognises_kernels_initrds_and_deployments() {
        let entry = |text: &str| BootEntry::new(text.to_owned());
        assert!(entry(COREOS).is_ostree() && entry(COREOS).has_initrd());
        assert_eq!(entry(COREOS).first_initrd(), Some("/ostree/fedora-coreos-0a/initramfs.img"));
        assert!(!entry("options root=LABEL=root\nlinux /a\ninitrd /b\n").is_ostree());
        for text in [
            "",
            "linux /a\n",
            "initrd /b\n",
            "efi /EFI/x.efi\n",
            "linux /a\n#initrd /b\n",
            "linux /a\ninitrdx /b\n",
            "linux /a\ninitrd \n",
        ] {
            assert!(!entry(text).has_initrd(), "{text}");
            assert_eq!(
                entry(text).without_initrds(&["/b".to_owned()]).text().contains("#initrd"),
                text.contains("#initrd")
            );
        }
    }
}
