//! `attest-audit reference-values predict`: reads the files; what follows from them is computed by `attest::tpm::prediction`.

mod disk;
mod disk_file;
mod grub_files;
mod volume;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::HashAlg;
use attest::reference_sets::Time;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::bytes::{ByteReadError, Bytes, RandomAccess};
use attest::tpm::prediction::grub::{CONFIG_LIMIT_BYTES, GrubBoot};
use attest::tpm::prediction::linux::{CommandLine, Kernel};
use attest::tpm::prediction::parts::BootParts;
use attest::tpm::prediction::pe::{IMAGE_LIMIT_BYTES, PeImage};
use attest::tpm::prediction::secure_boot::{SECURE_BOOT_PCR, VARIABLE_LIMIT_BYTES, Variables};
use attest::tpm::prediction::uki::Uki;
use attest::tpm::prediction::{BankDigests, Prediction};
use attest_certificates::source;
use attest_command_line::{clean, now, output};
use attest_log::admin::By;
use attest_system::files;

use self::volume::Disk;
use super::set::set;

/// Longest part of a file's name that is recorded, so that it fits into a file of reference values.
const FILE_NAME_LIMIT_CHARACTERS: usize = 40;
/// Longest end of a path on a disk that is recorded, for the same reason.
const PATH_LIMIT_CHARACTERS: usize = 40;

/// PCRs of which nothing is predicted, and why.
const OF_THE_MACHINE: [u8; 6] = [0, 1, 2, 3, 5, 6];
const WHY_OF_THE_MACHINE: &str = "firmware measures itself, its settings and the disks into these PCRs: record them from a machine with `attest-audit reference-values record`";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: a unified kernel image, on machines with your own Secure Boot keys\n  attest-audit reference-values predict --secure-boot on --uki linux.efi --pk PK.esl --kek KEK.esl --db db.esl --signed-by db.crt\n\nExample: shim, GRUB, and the files of its config\n  attest-audit reference-values predict --secure-boot on --shim shimx64.efi --grub grubx64.efi --grub-config grub.cfg --kernel vmlinuz --initrd initrd.img\n\nExample: a disk image\n  attest-audit reference-values predict --secure-boot on --disk disk.raw\n\nExample: the digests of a kernel, an initrd and a command line, for any boot loader\n  attest-audit reference-values predict --secure-boot on --kernel vmlinuz --initrd initrd.img --cmdline \"/vmlinuz root=LABEL=root ro\"\n\nPrints JSON: each digest with its source, the values of PCRs whose digests are all known, and the other PCRs with the reason."
)]
pub(crate) struct Arguments {
    /// State of Secure Boot on the machines: it changes the measurements.
    #[arg(long, value_enum)]
    secure_boot: OnOff,
    /// A unified kernel image.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["kernel", "disk"], conflicts_with_all = ["kernel", "initrd", "grub", "shim", "cmdline"])]
    uki: Option<PathBuf>,
    /// Raw image of a boot disk, in which the boot files are searched.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["uki", "kernel", "loader"])]
    disk: Option<PathBuf>,
    /// Loader that starts the unified kernel image through the firmware, such as systemd-boot; repeatable, in boot order.
    #[arg(long, value_name = "FILE", requires = "uki")]
    loader: Vec<PathBuf>,
    /// Kernel.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Initrd; repeatable, in the boot loader's order.
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Vec<PathBuf>,
    /// GRUB image.
    #[arg(long, value_name = "FILE", requires_all = ["kernel", "grub_config"])]
    grub: Option<PathBuf>,
    /// GRUB config file.
    #[arg(long, value_name = "FILE", requires = "grub", conflicts_with = "cmdline")]
    grub_config: Option<PathBuf>,
    /// Shim that starts GRUB.
    #[arg(long, value_name = "FILE", requires = "grub")]
    shim: Option<PathBuf>,
    /// Kernel command line, if it is not in a config; for GRUB with the kernel's path as its first word.
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    cmdline: Option<String>,
    #[command(flatten)]
    keys: FirmwareKeys,
    /// PCR bank; repeatable [default: sha256 and sha384].
    #[arg(long, value_name = "BANK")]
    bank: Vec<HashAlg>,
    /// Print a file of reference values instead of the prediction, with one generation of this name.
    #[arg(long, value_name = "NAME")]
    set: Option<String>,
}

/// Files that were read, by name and SHA-256: the origin of a prediction.
#[derive(Debug, Default)]
struct Files {
    read: RefCell<Vec<String>>,
}

impl Files {
    fn read(&self, path: &Path, limit_bytes: usize) -> anyhow::Result<Vec<u8>> {
        let bytes = files::read(path, u64::try_from(limit_bytes)?).with_context(|| path.display().to_string())?;
        self.note_file(path, &Bytes::from(&bytes).sha256()?);
        Ok(bytes)
    }

    /// An image, or an initrd: not in memory, if it is a file.
    fn image(&self, path: &Path) -> anyhow::Result<FirmwareImage> {
        let image = FirmwareImage::open(path).with_context(|| path.display().to_string())?;
        let digest = image.bytes().sha256().with_context(|| path.display().to_string())?;
        self.note_file(path, &digest);
        Ok(image)
    }

    fn note_file(&self, path: &Path, digest: &BankDigests) {
        let name: String = clean(&name(path)).chars().take(FILE_NAME_LIMIT_CHARACTERS).collect();
        self.note(&name, digest);
    }

    /// A file of a disk's: by the end of its path.
    fn read_on_disk(&self, path: &str, digest: &BankDigests) {
        let path = clean(path);
        let more = path.chars().count().saturating_sub(PATH_LIMIT_CHARACTERS);
        self.note(&path.chars().skip(more).collect::<String>(), digest);
    }

    fn note(&self, name: &str, digest: &BankDigests) {
        let Some(digest) = digest.get(HashAlg::Sha256) else { return };
        let told = format!("{name} sha256:{digest}");
        let mut read = self.read.borrow_mut();
        if !read.contains(&told) {
            read.push(told);
        }
    }
}

/// A file that may be large.
enum FirmwareImage {
    File {
        file: ImageFile,
        length: usize,
    },
    /// The content of a file that can be read only once, such as a shell's pipe.
    Memory(Vec<u8>),
}

struct ImageFile(File);

impl RandomAccess for ImageFile {
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ByteReadError> {
        let failed = |error: io::Error| ByteReadError::Failed(error.to_string());
        let start = u64::try_from(start).map_err(|_| ByteReadError::Failed("it is too long".to_owned()))?;
        self.0.read_exact_at(into, start).map_err(failed)
    }
}

impl FirmwareImage {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = files::open(path)?;
        let metadata = file.metadata()?;
        let limit = u64::try_from(IMAGE_LIMIT_BYTES)?;
        let (image, length) = if metadata.is_file() {
            let length = usize::try_from(metadata.len())?;
            (
                Self::File {
                    file: ImageFile(file),
                    length,
                },
                length,
            )
        } else {
            let mut bytes = Vec::new();
            let length = file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
            (Self::Memory(bytes), length)
        };
        if length > IMAGE_LIMIT_BYTES {
            bail!("it has more than the limit of {limit} bytes");
        }
        Ok(image)
    }

    fn bytes(&self) -> Bytes<'_> {
        match self {
            Self::File { file, length } => Bytes::from_file(file, *length),
            Self::Memory(bytes) => bytes.into(),
        }
    }
}

/// Keys whose signatures the machines' firmware accepts, and certificates that it will have used: for PCR 7.
#[derive(Debug, clap::Args)]
struct FirmwareKeys {
    /// Variable PK: signature lists, without the four attribute bytes that Linux prepends.
    #[arg(long, value_name = "FILE", requires_all = ["kek", "db"])]
    pk: Option<PathBuf>,
    /// Variable KEK, in the same form as PK.
    #[arg(long, value_name = "FILE", requires = "pk")]
    kek: Option<PathBuf>,
    /// Variable db, in the same form as PK.
    #[arg(long, value_name = "FILE", requires = "pk")]
    db: Option<PathBuf>,
    /// Variable dbx, in the same form as PK [default: absent].
    #[arg(long, value_name = "FILE", requires = "pk")]
    dbx: Option<PathBuf>,
    /// Certificate in db that signs a booted image; repeatable, in boot order.
    #[arg(long, value_name = "FILE", requires = "pk")]
    signed_by: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OnOff {
    On,
    Off,
}

impl From<OnOff> for SecureBoot {
    fn from(value: OnOff) -> Self {
        match value {
            OnOff::On => Self::On,
            OnOff::Off => Self::Off,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let banks: BTreeSet<HashAlg> = match arguments.bank.as_slice() {
        [] => [HashAlg::Sha256, HashAlg::Sha384].into(),
        some => some.iter().copied().collect(),
    };
    let banks: Vec<HashAlg> = banks.into_iter().collect();
    let mut prediction = Prediction::new(&banks);
    let files = Files::default();
    let mut has_shim = arguments.shim.is_some();
    match (&arguments.uki, &arguments.kernel, &arguments.disk) {
        (Some(uki), ..) => predict_uki(arguments, &files, uki, &mut prediction)?,
        (None, Some(kernel), _) => predict_kernel(arguments, &files, kernel, &mut prediction)?,
        (None, None, Some(path)) => {
            let disk = Disk::open(path).with_context(|| path.display().to_string())?;
            let boot = disk::read(&disk).with_context(|| path.display().to_string())?;
            has_shim = boot.has_shim();
            boot.predict(arguments.secure_boot.into(), &files, &mut prediction)?;
        }
        (None, None, None) => bail!("nothing to predict: pass --uki, --kernel or --disk"),
    }
    predict_keys(arguments, has_shim, &files, &mut prediction)?;
    prediction.omit(&OF_THE_MACHINE, WHY_OF_THE_MACHINE);
    let said = match &arguments.set {
        None => serde_json::to_string_pretty(&prediction)? + "\n",
        Some(name) => {
            let by = By::this_process();
            let by = format!("{}@{}", by.user.unwrap_or_else(|| by.uid.to_string()), by.host);
            set(&prediction, name, Time { at: now() }, by, files.read.take())?.to_json()?
        }
    };
    output::print(said)?;
    Ok(ExitCode::SUCCESS)
}

fn predict_uki(arguments: &Arguments, files: &Files, path: &Path, prediction: &mut Prediction) -> anyhow::Result<()> {
    let loader_files = arguments
        .loader
        .iter()
        .map(|path| files.image(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut loaders = Vec::new();
    for (path, file) in arguments.loader.iter().zip(&loader_files) {
        loaders.push((name(path), image(path, file)?));
    }
    let file = files.image(path)?;
    UkiBoot {
        loaders: &loaders,
        uki: &Uki::parse(file.bytes()).with_context(|| path.display().to_string())?,
        secure_boot: arguments.secure_boot.into(),
    }
    .predict(prediction)?;
    Ok(())
}

fn predict_kernel(arguments: &Arguments, files: &Files, path: &Path, prediction: &mut Prediction) -> anyhow::Result<()> {
    let kernel_file = files.image(path)?;
    let kernel = Kernel::parse(kernel_file.bytes()).with_context(|| path.display().to_string())?;
    let initrds = arguments
        .initrd
        .iter()
        .map(|path| files.image(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let initrds: Vec<Bytes<'_>> = initrds.iter().map(FirmwareImage::bytes).collect();
    let (Some(grub), Some(config)) = (&arguments.grub, &arguments.grub_config) else {
        let line = arguments.cmdline.as_deref().map(|line| CommandLine::parse(line.as_bytes()));
        let line = line.transpose().context("--cmdline")?;
        BootParts {
            name: "kernel",
            kernel: (kernel_file.bytes(), &kernel),
            initrds: &initrds,
            device_trees: &[],
            command_line: line.as_ref(),
        }
        .predict(prediction)?;
        return Ok(());
    };
    let grub_file = files.image(grub)?;
    let config_file = files.read(config, CONFIG_LIMIT_BYTES)?;
    let shim_file = arguments.shim.as_ref().map(|path| files.image(path)).transpose()?;
    let shim = match (&arguments.shim, &shim_file) {
        (Some(path), Some(file)) => Some(image(path, file)?),
        _ => None,
    };
    GrubBoot {
        shim: shim.as_ref(),
        grub: &image(grub, &grub_file)?,
        config: &config_file,
        kernel: (kernel_file.bytes(), &kernel),
        initrds: &initrds,
        secure_boot: arguments.secure_boot.into(),
    }
    .predict(prediction)?;
    Ok(())
}

fn predict_keys(arguments: &Arguments, has_shim: bool, files: &Files, prediction: &mut Prediction) -> anyhow::Result<()> {
    let keys = &arguments.keys;
    let (Some(pk), Some(kek), Some(db)) = (&keys.pk, &keys.kek, &keys.db) else {
        prediction.omit(
            &[SECURE_BOOT_PCR],
            "the machine's PK, KEK, db and dbx are missing: pass --pk, --kek, --db and --dbx",
        );
        return Ok(());
    };
    if has_shim {
        prediction.omit(
            &[SECURE_BOOT_PCR],
            "shim measures its SBAT level, which is in the machine's NVRAM, and the certificates of the images that it starts",
        );
        return Ok(());
    }
    let read = |path: &PathBuf| files.read(path, VARIABLE_LIMIT_BYTES);
    let (pk, kek, db) = (read(pk)?, read(kek)?, read(db)?);
    let dbx = keys.dbx.as_ref().map(read).transpose()?.unwrap_or_default();
    let variables = Variables {
        pk: &pk,
        kek: &kek,
        db: &db,
        dbx: &dbx,
    };
    let secure_boot = SecureBoot::from(arguments.secure_boot);
    if secure_boot == SecureBoot::On && keys.signed_by.is_empty() {
        bail!("with Secure Boot, PCR 7 depends on the certificates that signed the booted images: pass --signed-by");
    }
    let mut authorities = Vec::new();
    for path in &keys.signed_by {
        authorities.push(certificate(files, path)?);
    }
    let authorities: Vec<&[u8]> = authorities.iter().map(Vec::as_slice).collect();
    variables.predict(secure_boot, &authorities, prediction)?;
    Ok(())
}

/// A certificate, PEM or DER, as DER.
fn certificate(files: &Files, path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = files.read(path, VARIABLE_LIMIT_BYTES)?;
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return Ok(bytes);
    };
    let certificates = source::certificates_in(text).map_err(anyhow::Error::msg);
    match certificates.with_context(|| path.display().to_string())?.as_slice() {
        [only] => Ok(only.der.to_vec()),
        other => bail!("{}: expected one certificate, found {}", path.display(), other.len()),
    }
}

fn image<'f>(path: &Path, file: &'f FirmwareImage) -> anyhow::Result<PeImage<'f>> {
    PeImage::parse(file.bytes()).with_context(|| path.display().to_string())
}

/// A file's own name, for people.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
