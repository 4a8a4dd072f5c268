//! Logs as firmware, shim, GRUB, systemd-stub and the kernel's stub write them, in parts.

use crate::log_builder::{EV_IPL, EV_SEPARATOR, LogBuilder, SHA1, SHA256, SHA384};
use aws_lc_rs::digest;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};

pub const EV_EFI_ACTION: u32 = 0x8000_0007;
pub const EV_EVENT_TAG: u32 = 6;
pub const EV_S_CRTM_VERSION: u32 = 8;
pub const VARIABLE_DRIVER_CONFIG: u32 = 0x8000_0001;
pub const VARIABLE_BOOT: u32 = 0x8000_0002;
pub const VARIABLE_AUTHORITY: u32 = 0x8000_00e0;
pub const APPLICATION: u32 = 0x8000_0003;
pub const FIRMWARE_BLOB: u32 = 0x8000_0008;
pub const GPT_EVENT: u32 = 0x8000_0006;

pub const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
pub const IMAGE_SECURITY: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
pub const SHIM: &str = "605dab50-e046-4300-abb6-3dd810dd8b23";
pub const OWNER: &str = "77fa9abd-0359-4d32-bd60-28f4e78f784b";
pub const X509: &str = "a5c059a1-94e4-4aa7-87b5-ab155c2bf072";
pub const SHA256_LIST: &str = "c1c41626-504c-4092-aca9-41f936934328";

/// The bytes of a GUID that is written as usual.
pub fn guid(text: &str) -> Vec<u8> {
    let bytes = data_encoding::HEXLOWER.decode(text.replace('-', "").as_bytes()).unwrap();
    let (first, rest) = bytes.split_at(4);
    let (second, rest) = rest.split_at(2);
    let (third, rest) = rest.split_at(2);
    let reversed = |part: &[u8]| part.iter().rev().copied().collect::<Vec<_>>();
    [reversed(first), reversed(second), reversed(third), rest.to_vec()].concat()
}

pub fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Encodes a variable as `UEFI_VARIABLE_DATA`.
pub fn variable(vendor: &str, name: &str, value: &[u8]) -> Vec<u8> {
    let name_units = u64::try_from(name.encode_utf16().count()).unwrap();
    let mut data = guid(vendor);
    data.extend(name_units.to_le_bytes());
    data.extend(u64::try_from(value.len()).unwrap().to_le_bytes());
    data.extend(utf16(name));
    data.extend(value);
    data
}

/// Encodes signatures as `EFI_SIGNATURE_LIST`.
pub fn signature_list(kind: &str, entries: &[&[u8]]) -> Vec<u8> {
    let entry_bytes = 16 + entries.first().map_or(0, |entry| entry.len());
    let length = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
    let mut list = guid(kind);
    list.extend(length(28 + entry_bytes * entries.len()));
    list.extend(length(0));
    list.extend(length(entry_bytes));
    for entry in entries {
        list.extend(guid(OWNER));
        list.extend(*entry);
    }
    list
}

/// Encodes a signature as `EFI_SIGNATURE_DATA`.
pub fn signature(data: &[u8]) -> Vec<u8> {
    [guid(OWNER), data.to_vec()].concat()
}

/// Returns data with a certificate's outer form; no parser reads further.
pub fn certificate(name: &str) -> Vec<u8> {
    let content = name.repeat(40).into_bytes();
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[0x30, 0x82], length.as_slice(), &content].concat()
}

/// A certificate, as long as those with RSA keys are.
pub fn real_certificate(name: &str) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CountryName, "US");
    params.distinguished_name.push(DnType::OrganizationName, "A vendor of systems");
    params.distinguished_name.push(DnType::CommonName, format!("{name} CA"));
    let filling = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 311, 21, 1], vec![5; 900]);
    params.custom_extensions.push(filling);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}

pub fn sha256(data: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, data).as_ref().try_into().unwrap()
}

/// Hashes for a dbx.
pub fn hashes(count: u32) -> Vec<[u8; 32]> {
    (0..count).map(|number| sha256(&number.to_le_bytes())).collect()
}

pub fn dbx(hashes: &[[u8; 32]]) -> Vec<u8> {
    let entries: Vec<&[u8]> = hashes.iter().map(<[u8; 32]>::as_slice).collect();
    if entries.is_empty() {
        Vec::new()
    } else {
        signature_list(SHA256_LIST, &entries)
    }
}

/// Secure Boot's variables with their values.
pub fn secure_boot_variables(on: bool) -> [(&'static str, &'static str, Vec<u8>); 5] {
    let list = |name: &str| signature_list(X509, &[&certificate(name)]);
    [
        (GLOBAL, "SecureBoot", vec![u8::from(on)]),
        (GLOBAL, "PK", list("platform key")),
        (GLOBAL, "KEK", list("key exchange key")),
        (IMAGE_SECURITY, "db", [list("vendor"), list("owner")].concat()),
        (IMAGE_SECURITY, "dbx", dbx(&hashes(5))),
    ]
}

/// UEFI_IMAGE_LOAD_EVENT with a file path.
pub fn image_event(path: &str) -> Vec<u8> {
    let name = utf16(&format!("{path}\0"));
    let mut node = vec![4, 4];
    node.extend(u16::try_from(4 + name.len()).unwrap().to_le_bytes());
    node.extend(name);
    node.extend([0x7f, 0xff, 4, 0]);
    let mut event = vec![0; 24];
    event.extend(u64::try_from(node.len()).unwrap().to_le_bytes());
    event.extend(node);
    event
}

/// Encodes a partition table as `UEFI_GPT_DATA`.
pub fn gpt(partitions: &[&str]) -> Vec<u8> {
    let mut data = b"EFI PART".to_vec();
    data.resize(56, 0);
    data.extend(guid(OWNER));
    data.resize(92, 0);
    data.extend(u64::try_from(partitions.len()).unwrap().to_le_bytes());
    for name in partitions {
        let mut entry = [guid(X509), guid(OWNER), vec![0; 24], utf16(name)].concat();
        entry.resize(128, 0);
        data.extend(entry);
    }
    data
}

/// Parts of a log, one behind the other.
pub trait Parts {
    fn firmware(self) -> Self;
    fn secure_boot(self, on: bool) -> Self;
    fn variable(self, vendor: &str, name: &str, value: &[u8]) -> Self;
    fn separator(self, pcr: u32) -> Self;
    fn separators(self) -> Self;
    fn action(self, pcr: u32, text: &str) -> Self;
    fn image(self, content: &str, path: &str) -> Self;
    fn grub(self, text: &str) -> Self;
    fn section(self, name: &str, content: &[u8]) -> Self;
    fn exit_boot_services(self) -> Self;
}

impl Parts for LogBuilder {
    fn firmware(self) -> Self {
        self.event(0, EV_S_CRTM_VERSION, &utf16("Firmware 1.2\0")).measured(
            0,
            FIRMWARE_BLOB,
            b"a firmware volume",
            &[[0; 8], [0, 16, 0, 0, 0, 0, 0, 0]].concat(),
        )
    }

    fn secure_boot(mut self, on: bool) -> Self {
        for (vendor, name, value) in secure_boot_variables(on) {
            self = self.variable(vendor, name, &value);
        }
        self
    }

    fn variable(self, vendor: &str, name: &str, value: &[u8]) -> Self {
        self.event(7, VARIABLE_DRIVER_CONFIG, &variable(vendor, name, value))
    }

    fn separator(self, pcr: u32) -> Self {
        self.event(pcr, EV_SEPARATOR, &[0; 4])
    }

    fn separators(self) -> Self {
        (0..7).fold(self, Parts::separator)
    }

    fn action(self, pcr: u32, text: &str) -> Self {
        self.event(pcr, EV_EFI_ACTION, text.as_bytes())
    }

    fn image(self, content: &str, path: &str) -> Self {
        self.measured(4, APPLICATION, content.as_bytes(), &image_event(path))
    }

    fn grub(self, text: &str) -> Self {
        self.measured(8, EV_IPL, text.as_bytes(), format!("grub_cmd: {text}\0").as_bytes())
    }

    fn section(self, name: &str, content: &[u8]) -> Self {
        let said = utf16(&format!("{name}\0"));
        self.measured(11, EV_IPL, format!("{name}\0").as_bytes(), &said)
            .measured(11, EV_IPL, content, &said)
    }

    fn exit_boot_services(self) -> Self {
        self.action(5, "Exit Boot Services Invocation")
            .action(5, "Exit Boot Services Returned with Success")
    }
}

/// A machine that boots shim, GRUB and a kernel with Secure Boot, or with it off.
pub fn grub_machine(on: bool) -> LogBuilder {
    let authority = |log: LogBuilder, vendor: &str, name: &str, key: &str| {
        log.event(7, VARIABLE_AUTHORITY, &variable(vendor, name, &signature(&certificate(key))))
    };
    let mut log = LogBuilder::new(&[SHA1, SHA256, SHA384])
        .firmware()
        .secure_boot(on)
        .separator(7)
        .measured(1, VARIABLE_BOOT, &[3, 0, 1, 0], &variable(GLOBAL, "BootOrder", &[3, 0, 1, 0]))
        .action(4, "Calling EFI Application from Boot Option")
        .separators()
        .event(5, GPT_EVENT, &gpt(&["EFI system", "root"]));
    if on {
        log = authority(log, IMAGE_SECURITY, "db", "vendor");
    }
    log = log
        .image("shim", "\\EFI\\BOOT\\BOOTX64.EFI")
        .measured(14, EV_IPL, b"the owner's keys", b"MokList\0")
        .event(7, VARIABLE_AUTHORITY, &variable(SHIM, "SbatLevel", b"sbat,1,2024010900\nshim,4\n"))
        .event(7, VARIABLE_AUTHORITY, &variable(SHIM, "MokListTrusted", &[1]));
    if on {
        log = log.event(7, VARIABLE_AUTHORITY, &variable(SHIM, "Shim", &certificate("distribution")));
    }
    log.image("grub", "\\EFI\\debian\\grubx64.efi")
        .measured(9, EV_IPL, b"configuration", b"(hd0,gpt2)/grub/grub.cfg\0")
        .grub("set timeout=0")
        .grub("linux /vmlinuz root=LABEL=root ro")
        .measured(9, EV_IPL, b"kernel", b"/vmlinuz\0")
        .image("kernel", "")
        .measured(
            8,
            EV_IPL,
            b"/vmlinuz root=LABEL=root ro",
            b"kernel_cmdline: /vmlinuz root=LABEL=root ro\0",
        )
        .measured(9, EV_IPL, b"initrd", b"/initrd.img\0")
        .exit_boot_services()
}

/// A machine that boots a unified kernel image with Secure Boot.
pub fn uki_machine() -> LogBuilder {
    let tag = |text: &[u8]| [&[0x22, 0x3b, 0, 0, 0, 0, 0, 0], text, b"\0"].concat();
    LogBuilder::new(&[SHA256, SHA384])
        .firmware()
        .secure_boot(true)
        .separator(7)
        .separators()
        .event(
            7,
            VARIABLE_AUTHORITY,
            &variable(IMAGE_SECURITY, "db", &signature(&certificate("owner"))),
        )
        .image("uki", "\\EFI\\BOOT\\BOOTX64.EFI")
        .section(".linux", b"kernel")
        .section(".osrel", b"ID=debian")
        .section(".cmdline", b"root=LABEL=root ro")
        .section(".initrd", b"initrd")
        .measured(12, EV_IPL, &utf16("extra=1"), &utf16("extra=1\0"))
        .measured(9, EV_EVENT_TAG, &utf16("root=LABEL=root ro\0"), &tag(b"LOADED_IMAGE::LoadOptions"))
        .measured(9, EV_EVENT_TAG, b"initrd", &tag(b"Linux initrd"))
        .exit_boot_services()
}
/// Number of hashes in the dbx of [`server`].
pub const SERVER_HASHES: u32 = 250;

/// A server's log of 34 kB, in three banks: a dbx of 250 hashes, six keys of a length that RSA keys have, 40 texts of GRUB's.
pub fn server(key: impl Fn(&str) -> Vec<u8>) -> LogBuilder {
    let list = |names: &[&str]| {
        names
            .iter()
            .flat_map(|name| signature_list(X509, &[&key(name)]))
            .collect::<Vec<_>>()
    };
    let mut log = LogBuilder::new(&[SHA1, SHA256, SHA384]).firmware();
    for (vendor, name, value) in [
        (GLOBAL, "SecureBoot", vec![1]),
        (GLOBAL, "PK", list(&["platform"])),
        (GLOBAL, "KEK", list(&["exchange", "vendor's exchange"])),
        (IMAGE_SECURITY, "db", list(&["vendor", "vendor's own", "maker"])),
        (IMAGE_SECURITY, "dbx", dbx(&hashes(SERVER_HASHES))),
    ] {
        log = log.variable(vendor, name, &value);
    }
    log = log
        .separator(7)
        .separators()
        .event(7, VARIABLE_AUTHORITY, &variable(IMAGE_SECURITY, "db", &signature(&key("vendor"))))
        .image("shim", "\\EFI\\BOOT\\BOOTX64.EFI")
        .event(7, VARIABLE_AUTHORITY, &variable(SHIM, "SbatLevel", b"sbat,1,2024010900\nshim,4\n"))
        .image("grub", "\\EFI\\debian\\grubx64.efi");
    for number in 0..40 {
        log = log.grub(&format!("[ -n option number {number} -a -f (hd0,gpt2)/grub/grubenv ]"));
    }
    for file in ["/grub/grub.cfg", "/grub/grubenv", "/vmlinuz", "/initrd.img"] {
        log = log.measured(9, EV_IPL, file.as_bytes(), format!("(hd0,gpt2){file}\0").as_bytes());
    }
    log.image("kernel", "").exit_boot_services()
}
