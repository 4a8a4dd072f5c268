//! The four VMs: the evidence that each presents to the gateway, and the expected result. The demo shows it, the tests assert it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::accelerator::Accelerator;
use crate::attestation_log::LogRecord;
use crate::core_os;
use crate::expected_files::{RESULT_FILE, expected_files};
use crate::firmware::loaders::make_uki;
use crate::gateway::TestGateway;
use crate::images::{DebianRelease, Images, WholeBoot};
use crate::outcome::IgnitionOutcome;
use crate::process::OnLine;
use crate::qemu::{Vm, VmBuilder, command_line};
use crate::swtpm::{EkAuthority, Swtpm, TestEndorsement, free_port, manufacture};

/// Maximum duration of a fast VM. Emulated, together with another VM, it needs 10-20 s; the node program by itself has 60 s.
pub const VM_LIMIT: Duration = Duration::from_secs(180);

/// Evidence or credential that a VM presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// A TPM whose EK certificate is from an authority the gateway trusts.
    EndorsedTpm,
    /// Nothing: no TPM, no token.
    Nothing,
    /// A provisioning token in the pointer, no TPM.
    Token,
    /// A TPM without EK certificate, on no list.
    UnendorsedTpm,
}

impl Scenario {
    /// All scenarios in the order of the demo.
    pub const ALL: [Self; 4] = [Self::EndorsedTpm, Self::Nothing, Self::Token, Self::UnendorsedTpm];

    /// Returns the name for folders.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EndorsedTpm => "endorsed-tpm",
            Self::Nothing => "nothing",
            Self::Token => "token",
            Self::UnendorsedTpm => "unendorsed-tpm",
        }
    }

    /// Returns a description of the presented evidence, for people.
    #[must_use]
    pub fn shows(self) -> &'static str {
        match self {
            Self::EndorsedTpm => "a TPM that we endorse",
            Self::Nothing => "nothing",
            Self::Token => "a provisioning token",
            Self::UnendorsedTpm => "a TPM nobody endorsed",
        }
    }

    /// Returns the config that the VM must get, by its folder's name in the pool.
    #[must_use]
    pub fn expected_grant(self) -> &'static str {
        match self {
            Self::EndorsedTpm | Self::Token => "full",
            Self::Nothing | Self::UnendorsedTpm => "pre-approved",
        }
    }
}

impl VmRun {
    /// Returns the decision about the VM's evidence, and its reason: the first recorded one.
    #[must_use]
    pub fn decision(&self) -> (&str, &str) {
        let Some(record) = self.records.first() else {
            return ("none", "");
        };
        let reason = [record.code().unwrap_or_default(), record.reason(), record.shown()];
        (
            record.verdict(),
            reason.into_iter().find(|text| !text.is_empty()).unwrap_or_default(),
        )
    }
}

/// Gateway, the authority that it trusts, and the image that all VMs boot.
pub struct Site {
    folder: PathBuf,
    images: Images,
    initrd: PathBuf,
    accelerator: Accelerator,
    authority: EkAuthority,
    gateway: TestGateway,
}

/// Run of a VM, from power-on to power-off.
pub struct VmRun {
    /// Report on the VM's console.
    pub outcome: IgnitionOutcome,
    /// Decisions that the gateway recorded during the run.
    pub records: Vec<LogRecord>,
    /// Wall time from start to power-off.
    pub duration: Duration,
    /// Path of the console's log.
    pub console: PathBuf,
}

impl Site {
    /// Creates everything in `folder`; the gateway is not started yet. TPMs accept only short paths that AppArmor's swtpm profile allows: a
    /// folder in the system's temporary folder is one.
    pub fn new(folder: &Path) -> Result<Self> {
        let mut site = Self::with_defaults(folder)?;
        site.gateway.set_port(free_port()?)?;
        Ok(site)
    }

    /// Like [`Site::new`], but the gateway has its default settings, including its port.
    pub fn with_defaults(folder: &Path) -> Result<Self> {
        let images = Images::fast()?;
        let site = Self {
            initrd: images.node_initrd(folder)?,
            accelerator: Accelerator::detect(&images),
            images,
            authority: EkAuthority::new(&folder.join("manufacturer"))?,
            gateway: TestGateway::init(&folder.join("gateway"))?,
            folder: folder.to_path_buf(),
        };
        site.gateway.trust(&site.authority)?;
        // Tokens are off in the sample pool until somebody wants them.
        site.gateway.edit_pool("token = \"refuse\"", "token = \"full\"")?;
        Ok(site)
    }

    pub fn gateway(&mut self) -> &mut TestGateway {
        &mut self.gateway
    }

    /// Returns the authority whose TPMs the gateway accepts.
    #[must_use]
    pub fn authority(&self) -> &EkAuthority {
        &self.authority
    }

    /// Returns the boot images of the VMs.
    #[must_use]
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Returns the accelerator of the VMs.
    #[must_use]
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Returns a VM with the fast image and attest-node, without pointer or TPM.
    #[must_use]
    pub fn vm(&self) -> VmBuilder {
        Vm::builder(&self.images.kernel(), &self.initrd)
            .accelerator(self.accelerator)
            .kernel_argument("quiet")
    }

    /// Makes an unsigned unified kernel image of the fast image with attest-node in `folder`, for [`Vm::with_firmware`]. `more` is at the
    /// end of its command line.
    pub fn uki(&self, more: &[&str], folder: &Path) -> Result<PathBuf> {
        let words: Vec<&str> = ["quiet"].into_iter().chain(more.iter().copied()).collect();
        let line = command_line(self.accelerator, &words);
        make_uki(DebianRelease::Bookworm, &self.images.kernel(), &self.initrd, &line, folder)
    }

    /// Returns a VM of the whole system, and its disk in `folder`: dracut's initrd with node-initrd appended, systemd, a real root.
    pub fn whole_vm(&self, release: DebianRelease, folder: &Path) -> Result<(VmBuilder, PathBuf)> {
        let boot = Images::whole(release)?.whole_boot(folder)?;
        let vm = self.vm_of(release, &boot, "root=LABEL=root rw ignition.firstboot=1 ip=dhcp rd.neednet=1")?;
        Ok((vm, boot.disk))
    }

    /// Returns the VM of [`Site::whole_vm`] in `folder` for another boot that is not a first boot.
    pub fn later_vm(&self, release: DebianRelease, folder: &Path) -> Result<VmBuilder> {
        self.vm_of(release, &WholeBoot::in_folder(folder), "root=LABEL=root rw")
    }

    fn vm_of(&self, release: DebianRelease, boot: &WholeBoot, arguments: &str) -> Result<VmBuilder> {
        Ok(Vm::builder(&Images::whole(release)?.kernel(), &boot.initrd)
            .accelerator(self.accelerator)
            .memory_mib(1024)
            .disk(&boot.disk)
            .platform("qemu")
            .kernel_argument(arguments)
            // A failed unit must end the boot, not wait for somebody at the emergency shell.
            .kernel_argument("rd.shell=0 rd.emergency=poweroff"))
    }

    /// Returns the same VM with a tree's `usr` laid over the initrd.
    pub fn changed_vm(&self, release: DebianRelease, tree: &Path, folder: &Path) -> Result<(VmBuilder, PathBuf)> {
        let whole = self.whole_vm(release, folder)?;
        // In the place of the initrd that this one boots.
        Images::whole(release)?.changed_initrd(tree, true, folder)?;
        Ok(whole)
    }

    /// Installs that system in `folder` with a first boot like that of CoreOS ([`crate::core_os`]). Its initrd has node-initrd appended,
    /// and its disk has a tree laid onto it.
    pub fn installed(&self, release: DebianRelease, tree: &Path, folder: &Path) -> Result<WholeBoot> {
        let images = Images::whole(release)?;
        let (boot, initramfs) = (images.whole_boot(folder)?, folder.join("initramfs"));
        core_os::initramfs(&initramfs)?;
        core_os::disk(tree)?;
        core_os::add_to_disk(&boot.disk, tree)?;
        let initrd = images.changed_initrd(&initramfs, true, folder)?;
        Ok(WholeBoot { initrd, ..boot })
    }

    /// Returns a VM of that system, with the kernel arguments that its boot loader gives.
    pub fn installed_vm(&self, release: DebianRelease, boot: &WholeBoot) -> Result<VmBuilder> {
        self.vm_of(release, boot, &core_os::kernel_arguments(&boot.disk)?)
    }

    /// Returns a VM of that system's initrd with a tree's `usr` laid over it, which ends before it has a root; with or without attest-node.
    pub fn initrd_vm(&self, release: DebianRelease, tree: &Path, with_node: bool, folder: &Path) -> Result<VmBuilder> {
        let images = Images::whole(release)?;
        let initrd = images.changed_initrd(tree, with_node, folder)?;
        Ok(Vm::builder(&images.kernel(), &initrd)
            .accelerator(self.accelerator)
            .memory_mib(1024)
            .kernel_argument("root=LABEL=root rw ignition.firstboot=1 ip=dhcp rd.neednet=1")
            .kernel_argument("rd.shell=0 rd.emergency=poweroff"))
    }

    /// Creates a folder for one VM.
    pub fn vm_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join("vms").join(name);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }

    /// Creates the TPM of the scenario, if it has one.
    pub fn tpm(&self, scenario: Scenario, folder: &Path) -> Result<Option<Swtpm>> {
        match scenario {
            Scenario::EndorsedTpm => Swtpm::start(folder, TestEndorsement::By(&self.authority)).map(Some),
            Scenario::UnendorsedTpm => Swtpm::start(folder, TestEndorsement::None).map(Some),
            Scenario::Nothing | Scenario::Token => Ok(None),
        }
    }

    /// Manufactures an endorsed TPM. Returns the shell commands that boot a VM with it by hand.
    pub fn vm_by_hand(&self) -> Result<Vec<String>> {
        let folder = self.vm_folder("by-hand")?;
        let state = manufacture(&folder, TestEndorsement::By(&self.authority))?;
        let socket = state.join("control");
        let mut vm = vec!["qemu-system-x86_64".to_owned()];
        vm.extend(
            self.vm()
                .pointer(&self.gateway.pointer(None)?)
                .tpm_socket(&socket)
                .arguments(&folder)?,
        );
        let vm: Vec<String> = vm
            .into_iter()
            .map(|word| if word.contains(' ') { format!("'{word}'") } else { word })
            .collect();
        Ok(vec![
            format!(
                "swtpm socket --tpm2 --tpmstate=dir={} --ctrl=type=unixio,path={} --daemon --terminate",
                state.display(),
                socket.display()
            ),
            vm.join(" "),
        ])
    }

    /// Boots the scenario's VM and waits until it is off.
    pub fn run(&self, scenario: Scenario, on_line: Option<OnLine>) -> Result<VmRun> {
        let folder = self.vm_folder(scenario.name())?;
        let tpm = self.tpm(scenario, &folder)?;
        let token = match scenario {
            Scenario::Token => Some(self.gateway.create_token("rack7")?),
            _ => None,
        };
        let mut vm = self.vm().pointer(&self.gateway.pointer(token.as_deref())?);
        if let Some(tpm) = &tpm {
            vm = vm.tpm(tpm);
        }
        if let Some(on_line) = on_line {
            vm = vm.on_line(on_line);
        }
        self.boot(vm, &folder)
    }

    /// Boots any VM of the fast image and waits until it is off.
    pub fn boot(&self, vm: VmBuilder, folder: &Path) -> Result<VmRun> {
        let recorded = self.gateway.records()?.len();
        let started = Instant::now();
        let mut vm = vm.start(folder)?;
        vm.wait_off(VM_LIMIT)?;
        let duration = started.elapsed();
        let console = vm.console().log().to_path_buf();
        let outcome = IgnitionOutcome::parse(&vm.console().lines()).with_context(|| format!("the VM's console{}", vm.console().tail()))?;
        Ok(VmRun {
            outcome,
            records: self.gateway.records()?.split_off(recorded),
            duration,
            console,
        })
    }

    /// Fails unless Ignition succeeded in the VM and wrote exactly the files of that config, with their contents and modes.
    pub fn prove_exactly(&self, grant: &str, outcome: &IgnitionOutcome) -> Result<usize> {
        if !outcome.ignition_succeeded() {
            bail!("Ignition failed: {:?}", outcome.exit_codes);
        }
        let expected = expected_files(&self.gateway.pool_config(grant)?)?;
        let mut found = outcome.files.clone();
        found
            .remove(RESULT_FILE)
            .with_context(|| format!("no {RESULT_FILE}: Ignition did not finish"))?;
        if found != expected {
            bail!("the {grant} config would leave\n  {expected:#?}\nbut the VM has\n  {found:#?}");
        }
        Ok(expected.len())
    }
}
