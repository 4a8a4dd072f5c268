//! A small PE32+ image, written field by field.

/// A section: name, content, and its size in memory.
#[derive(Clone)]
pub struct Section {
    pub name: Vec<u8>,
    pub content: Vec<u8>,
    pub memory_bytes: u32,
}

/// Parts of a PE image.
#[derive(Clone)]
pub struct Image {
    pub sections: Vec<Section>,
    pub trailing: Vec<u8>,
    pub certificates: Vec<u8>,
    pub checksum: u32,
    /// Number of data directories.
    pub directories: u32,
    pub image_version: u16,
    /// Processor of the code (`IMAGE_FILE_MACHINE_…`).
    pub machine: u16,
    /// Bytes before the PE header, and their offset.
    pub mark: (usize, &'static [u8]),
}

pub const NT_HEADERS: usize = 64;
pub const OPTIONAL_HEADER: usize = NT_HEADERS + 24;
pub const CHECKSUM: usize = OPTIONAL_HEADER + 64;
pub const SIZE_OF_HEADERS: usize = OPTIONAL_HEADER + 60;
pub const SECURITY: usize = OPTIONAL_HEADER + 112 + 4 * 8;
pub const FILE_ALIGNMENT: usize = 512;

impl Image {
    pub fn new() -> Self {
        Self {
            sections: Vec::new(),
            trailing: Vec::new(),
            certificates: Vec::new(),
            checksum: 0,
            directories: 16,
            image_version: 1,
            machine: 0x8664,
            mark: (2, b""),
        }
    }

    pub fn section(mut self, name: &str, content: &[u8]) -> Self {
        self.sections.push(Section {
            name: name.as_bytes().to_vec(),
            content: content.to_vec(),
            memory_bytes: u32::try_from(content.len()).unwrap(),
        });
        self
    }

    /// Returns the offset of the table of sections.
    pub fn table(&self) -> usize {
        OPTIONAL_HEADER + 112 + usize::try_from(self.directories).unwrap() * 8
    }

    /// Returns the offset of the first section's content.
    pub fn first(&self) -> usize {
        (self.table() + self.sections.len() * 40).next_multiple_of(FILE_ALIGNMENT)
    }

    pub fn build(&self) -> Vec<u8> {
        let headers = self.first();
        let mut file = vec![0; headers];
        put(&mut file, 0, b"MZ");
        put(&mut file, self.mark.0, self.mark.1);
        put(&mut file, 60, &u32::try_from(NT_HEADERS).unwrap().to_le_bytes());
        put(&mut file, NT_HEADERS, b"PE\0\0");
        put(&mut file, NT_HEADERS + 4, &self.machine.to_le_bytes());
        put(
            &mut file,
            NT_HEADERS + 6,
            &u16::try_from(self.sections.len()).unwrap().to_le_bytes(),
        );
        let optional = u16::try_from(112 + self.directories * 8).unwrap();
        put(&mut file, NT_HEADERS + 20, &optional.to_le_bytes());
        put(&mut file, OPTIONAL_HEADER, &0x20b_u16.to_le_bytes());
        put(&mut file, OPTIONAL_HEADER + 44, &self.image_version.to_le_bytes());
        put(&mut file, SIZE_OF_HEADERS, &u32::try_from(headers).unwrap().to_le_bytes());
        put(&mut file, CHECKSUM, &self.checksum.to_le_bytes());
        put(&mut file, OPTIONAL_HEADER + 108, &self.directories.to_le_bytes());
        for (index, section) in self.sections.iter().enumerate() {
            let raw = section.content.len().next_multiple_of(FILE_ALIGNMENT);
            let start = file.len();
            let header = self.table() + index * 40;
            put(&mut file, header, &section.name);
            put(&mut file, header + 8, &section.memory_bytes.to_le_bytes());
            put(&mut file, header + 12, &u32::try_from(0x1000 * (index + 1)).unwrap().to_le_bytes());
            put(&mut file, header + 16, &u32::try_from(raw).unwrap().to_le_bytes());
            put(&mut file, header + 20, &u32::try_from(start).unwrap().to_le_bytes());
            file.extend_from_slice(&section.content);
            file.resize(start + raw, 0xcc); // padding that nobody has in memory
        }
        file.extend_from_slice(&self.trailing);
        if !self.certificates.is_empty() {
            let start = u32::try_from(file.len()).unwrap();
            put(&mut file, SECURITY, &start.to_le_bytes());
            put(
                &mut file,
                SECURITY + 4,
                &u32::try_from(self.certificates.len()).unwrap().to_le_bytes(),
            );
            file.extend_from_slice(&self.certificates);
        }
        file
    }
}

pub fn put(file: &mut [u8], offset: usize, bytes: &[u8]) {
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Builds a unified kernel image: the mark of a stub of that version, and these sections.
pub fn uki(version: &str, sections: &[(&str, &[u8])]) -> Image {
    let magic = format!("#### LoaderInfo: systemd-stub {version} ####");
    let image = Image::new().section(".text", b"code").section(".sdmagic", magic.as_bytes());
    sections.iter().fold(image, |image, (name, content)| image.section(name, content))
}

/// Builds a kernel: its mark, and its version.
pub fn kernel(version: &str) -> Image {
    let mut image = Image::new().section(".setup", &[0; 1024]);
    let setup = &mut image.sections[0].content;
    // The content begins at 512 of the file.
    put(setup, 0x202 - 512, b"HdrS");
    put(setup, 0x20e - 512, &(0x300_u16 - 0x200).to_le_bytes());
    put(setup, 0x300 - 512, version.as_bytes());
    image
}

/// Returns an image for ARM64.
pub fn for_arm64(image: Image) -> Image {
    Image { machine: 0xaa64, ..image }
}

/// Builds a kernel in the format `Image` of ARM64: its mark is in the DOS header.
pub fn arm64_kernel() -> Image {
    Image {
        mark: (56, b"ARM\x64"),
        ..for_arm64(Image::new().section(".text", b"kernel").section(".data", b"data"))
    }
}

/// Builds a compressed kernel for ARM64, in an EFI application that decompresses it.
pub fn zboot_kernel() -> Image {
    Image {
        mark: (4, b"zimg\0\x10\0\0\0\x02\0\0\0\0\0\0\0\0\0\0gzip\0"),
        ..for_arm64(Image::new().section(".text", b"compressed"))
    }
}

/// Modules of the VMs' images of GRUB 2.12; those of 2.06 also have `linuxefi` (`swtpm-tests/src/firmware/loaders.rs`).
pub const GRUB_MODULES: &str = "boot bufio crypto datetime echo ext2 extcmd fat fshelp gettext linux mmap net normal part_gpt \
    priority_queue relocator serial terminal terminfo test tpm video";
/// Types of objects in an image of GRUB, other than modules.
pub const GRUB_MEMORY_DISK: u32 = 1;
pub const GRUB_CONFIG: u32 = 2;
pub const GRUB_PREFIX: u32 = 3;

/// Builds an image of GRUB: its `.sbat` section, its modules, and other objects.
pub fn grub(sbat: &str, modules: &str, objects: &[(u32, &[u8])]) -> Image {
    let modules = modules.split_whitespace().map(|name| (0, elf_module(name)));
    let objects = objects.iter().map(|(kind, content)| (*kind, [content, &[0][..]].concat()));
    let mut mods = [b"mimg\0\0\0\0".as_slice(), &24_u64.to_le_bytes(), &[0; 8]].concat();
    for (kind, mut content) in modules.chain(objects) {
        content.resize(content.len().next_multiple_of(8), 0);
        mods.extend(kind.to_le_bytes());
        mods.extend(u32::try_from(8 + content.len()).unwrap().to_le_bytes());
        mods.extend(content);
    }
    let end = u64::try_from(mods.len()).unwrap();
    put(&mut mods, 16, &end.to_le_bytes());
    Image::new().section("mods", &mods).section(".sbat", sbat.as_bytes())
}

/// A module of this name: an ELF file with a section `.modname`.
fn elf_module(name: &str) -> Vec<u8> {
    const HEADER: usize = 64;
    let names = b"\0.modname\0.shstrtab\0";
    let name = [name.as_bytes(), &[0]].concat();
    let table = HEADER + names.len() + name.len();
    let mut file = vec![0; HEADER];
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 16, &[1, 0, 62, 0, 1]);
    put(&mut file, 0x28, &u64::try_from(table).unwrap().to_le_bytes());
    put(&mut file, 0x34, &[64, 0]);
    put(&mut file, 0x3a, &[64, 0, 3, 0, 2, 0]);
    file.extend_from_slice(names);
    file.extend_from_slice(&name);
    let mut section = |name: u32, kind: u32, start: usize, bytes: usize| {
        let mut header = [0; 64];
        put(&mut header, 0, &name.to_le_bytes());
        put(&mut header, 4, &kind.to_le_bytes());
        put(&mut header, 24, &u64::try_from(start).unwrap().to_le_bytes());
        put(&mut header, 32, &u64::try_from(bytes).unwrap().to_le_bytes());
        file.extend_from_slice(&header);
    };
    section(0, 0, 0, 0);
    section(1, 1, HEADER + names.len(), name.len());
    section(10, 3, HEADER, names.len());
    file
}
