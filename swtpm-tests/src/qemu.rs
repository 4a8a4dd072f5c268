//! A VM: a kernel and an initrd, or firmware and what it boots; a pointer config in fw_cfg, perhaps a TPM and a disk, and a console.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::accelerator::Accelerator;
use crate::cloud::TestCloud;
use crate::firmware::{BootDisk, Firmware};
use crate::process::{OnLine, Process};
use crate::swtpm::Swtpm;

/// Address of the metadata server in all three clouds.
const METADATA_ADDRESS: &str = "169.254.169.254:80";
/// Network of that address; QEMU forwards no address outside of it.
const METADATA_NETWORK: &str = "169.254.0.0/16";

/// Time of the VM's real-time clock at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmClock {
    Right,
    /// Days ahead of the host; negative: behind it.
    OffByDays(i64),
}

/// A running VM; killed on drop.
pub struct Vm {
    console: Process,
}

/// Boot method of a VM.
enum Start {
    /// Kernel and initrd that QEMU loads itself.
    Kernel { kernel: PathBuf, initrd: PathBuf },
    /// Firmware that looks for something to boot.
    Firmware {
        code: PathBuf,
        variables: PathBuf,
        disks: Vec<PathBuf>,
    },
}

/// Parts of a VM that is not started yet.
pub struct VmBuilder {
    start: Start,
    kernel_arguments: Vec<String>,
    platform: Option<&'static str>,
    pointer: Option<String>,
    kubelet: Option<String>,
    tpm_socket: Option<PathBuf>,
    disks: Vec<PathBuf>,
    reboots: bool,
    disc: Option<PathBuf>,
    metadata: Option<(SocketAddr, PathBuf)>,
    smbios: Vec<String>,
    memory_mib: u32,
    accelerator: Option<Accelerator>,
    clock: VmClock,
    on_line: Option<OnLine>,
}

impl Vm {
    /// Returns a VM with one processor, 512 MiB, one network card whose 10.0.2.2 is the host's 127.0.0.1, and nothing else.
    #[must_use]
    pub fn builder(kernel: &Path, initrd: &Path) -> VmBuilder {
        Self::with_start(Start::Kernel {
            kernel: kernel.to_path_buf(),
            initrd: initrd.to_path_buf(),
        })
    }

    /// Returns the same machine with UEFI, which boots from the first bootable one of these disks. The kernel's command line is on the
    /// disk: see [`command_line`].
    #[must_use]
    pub fn with_firmware(firmware: &Firmware, disks: &[&BootDisk]) -> VmBuilder {
        Self::with_start(Start::Firmware {
            code: firmware.code().to_path_buf(),
            variables: firmware.variables().to_path_buf(),
            disks: disks.iter().map(|disk| disk.image().to_path_buf()).collect(),
        })
    }

    fn with_start(start: Start) -> VmBuilder {
        VmBuilder {
            start,
            kernel_arguments: Vec::new(),
            platform: None,
            pointer: None,
            kubelet: None,
            tpm_socket: None,
            disks: Vec::new(),
            reboots: false,
            disc: None,
            metadata: None,
            smbios: Vec::new(),
            memory_mib: 512,
            accelerator: None,
            clock: VmClock::Right,
            on_line: None,
        }
    }

    /// Returns the output of the serial console.
    #[must_use]
    pub fn console(&self) -> &Process {
        &self.console
    }

    /// Waits until the VM has switched itself off.
    pub fn wait_off(&mut self, limit: Duration) -> Result<()> {
        let status = self.console.wait(limit)?;
        if !status.success() {
            bail!("QEMU ended with {status}; see {}", self.console.log().display());
        }
        Ok(())
    }
}

impl VmBuilder {
    /// Adds the pointer config, at fw_cfg's `opt/com.coreos/config`.
    #[must_use]
    pub fn pointer(mut self, json: &str) -> Self {
        self.pointer = Some(json.to_owned());
        self
    }

    /// Adds the kubelet's client certificate and key, PEM, as the cluster would have approved it, at fw_cfg's
    /// `opt/attestation-gateway/kubelet-client`. The fast image's init takes it from there after Ignition.
    #[must_use]
    pub fn kubelet_client(mut self, pem: &str) -> Self {
        self.kubelet = Some(pem.to_owned());
        self
    }

    /// Adds a TPM 2.0.
    #[must_use]
    pub fn tpm(self, swtpm: &Swtpm) -> Self {
        self.tpm_socket(swtpm.socket())
    }

    /// Adds a TPM 2.0 by swtpm's control socket.
    #[must_use]
    pub fn tpm_socket(mut self, socket: &Path) -> Self {
        self.tpm_socket = Some(socket.to_path_buf());
        self
    }

    /// Adds a raw, writable disk.
    #[must_use]
    pub fn disk(mut self, image: &Path) -> Self {
        self.disks.push(image.to_path_buf());
        self
    }

    /// Lets the VM reboot instead of ending.
    #[must_use]
    pub fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// Adds a drive with a disc in it.
    #[must_use]
    pub fn disc(mut self, image: &Path) -> Self {
        self.disc = Some(image.to_path_buf());
        self
    }

    /// Sets Ignition's platform id, on the kernel command line.
    #[must_use]
    pub fn platform(mut self, id: &'static str) -> Self {
        self.platform = Some(id);
        self
    }

    /// Makes it a machine of this cloud: Ignition's platform id, and the SMBIOS tables of its firmware.
    #[must_use]
    pub fn cloud(self, cloud: TestCloud) -> Self {
        let mut vm = self.platform(cloud.platform_id());
        vm.smbios.extend(cloud.smbios().iter().map(|table| (*table).to_owned()));
        vm
    }

    /// Adds a metadata server at the clouds' address. On a second network card, 169.254.169.254:80 leads to `server` on the host, and no
    /// other address is reachable. QEMU starts `connect` (this package's program) for each connection.
    #[must_use]
    pub fn metadata(mut self, server: SocketAddr, connect: &Path) -> Self {
        self.metadata = Some((server, connect.to_path_buf()));
        self
    }

    /// Adds arguments to the kernel command line.
    #[must_use]
    pub fn kernel_argument(mut self, argument: &str) -> Self {
        self.kernel_arguments.push(argument.to_owned());
        self
    }

    /// Sets the memory, in MiB.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets the executor of the guest's instructions.
    #[must_use]
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.accelerator = Some(accelerator);
        self
    }

    #[must_use]
    pub fn clock(mut self, clock: VmClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets a function that is called with each line of the console.
    #[must_use]
    pub fn on_line(mut self, on_line: impl FnMut(&str) + Send + 'static) -> Self {
        self.on_line = Some(Box::new(on_line));
        self
    }

    /// Returns QEMU's arguments, without the program's name; files go to `folder`.
    pub fn arguments(&self, folder: &Path) -> Result<Vec<String>> {
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"]);
        if !self.reboots {
            add(&["-no-reboot"]);
        }
        add(&[
            "-machine",
            match self.start {
                Start::Kernel { .. } => "q35",
                // Only what runs in system management mode can write the variables of Secure Boot.
                Start::Firmware { .. } => "q35,smm=on",
            },
            // Emulated ones beside each other do not all see what a kernel changes in its own code: Debian 13's panics once in a while.
            "-smp",
            "1",
            "-m",
            &self.memory_mib.to_string(),
        ]);
        let accelerator = self.accelerator.unwrap_or(Accelerator::Tcg);
        add(&accelerator.arguments());
        match &self.start {
            Start::Kernel { kernel, initrd } => {
                let platform = self.platform.map(|id| format!("ignition.platform.id={id}"));
                let more: Vec<&str> = platform
                    .as_deref()
                    .into_iter()
                    .chain(self.kernel_arguments.iter().map(String::as_str))
                    .collect();
                add(&[
                    "-kernel",
                    text(kernel)?,
                    "-initrd",
                    text(initrd)?,
                    "-append",
                    &command_line(accelerator, &more),
                ]);
            }
            Start::Firmware { code, variables, disks } => {
                if self.platform.is_some() || !self.kernel_arguments.is_empty() {
                    bail!("arguments for a kernel that firmware boots are on its disk");
                }
                add(&["-global", "driver=cfi.pflash01,property=secure,value=on"]);
                let flash = |unit: u8, more: &str, file: &Path| {
                    Ok::<_, anyhow::Error>(format!("if=pflash,format=raw,unit={unit}{more},file={}", text(file)?))
                };
                add(&["-drive", &flash(0, ",readonly=on", code)?, "-drive", &flash(1, "", variables)?]);
                // Nothing else has a place in the boot order, and so nothing else is tried: no network card.
                for (place, disk) in disks.iter().enumerate() {
                    let drive = format!("if=none,id=boot{place},format=raw,readonly=on,file={}", text(disk)?);
                    let device = format!("virtio-blk-pci,drive=boot{place},bootindex={place}");
                    add(&["-drive", &drive, "-device", &device]);
                }
            }
        }
        // No boot ROM on the card: it would only be searched.
        add(&["-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0,romfile="]);
        if let Some((server, connect)) = &self.metadata {
            // Forwarding without a program would take one connection only. In an option's value a comma is written twice.
            let program = text(connect)?.replace(',', ",,");
            let forward = format!("guestfwd=tcp:{METADATA_ADDRESS}-cmd:'{program}' {server}");
            add(&["-netdev", &format!("user,id=metadata,net={METADATA_NETWORK},restrict=on,{forward}")]);
            add(&["-device", "virtio-net-pci,netdev=metadata,romfile="]);
        }
        for table in &self.smbios {
            add(&["-smbios", table]);
        }
        if let Some(json) = &self.pointer {
            let file = folder.join("pointer.ign");
            fs::write(&file, json).with_context(|| format!("writing {}", file.display()))?;
            add(&["-fw_cfg", &format!("name=opt/com.coreos/config,file={}", text(&file)?)]);
        }
        if let Some(pem) = &self.kubelet {
            let file = folder.join("kubelet-client.pem");
            fs::write(&file, pem).with_context(|| format!("writing {}", file.display()))?;
            add(&[
                "-fw_cfg",
                &format!("name=opt/attestation-gateway/kubelet-client,file={}", text(&file)?),
            ]);
        }
        if let Some(socket) = &self.tpm_socket {
            add(&["-chardev", &format!("socket,id=tpm-socket,path={}", text(socket)?)]);
            add(&["-tpmdev", "emulator,id=tpm0,chardev=tpm-socket", "-device", "tpm-crb,tpmdev=tpm0"]);
        }
        for disk in &self.disks {
            add(&["-drive", &format!("file={},format=raw,if=virtio,cache=unsafe", text(disk)?)]);
        }
        if let Some(disc) = &self.disc {
            // SCSI, as Hyper-V's second generation has it. The cloud kernel has no driver for the machine's SATA.
            let drive = format!("if=none,id=disc,media=cdrom,readonly=on,file={}", text(disc)?);
            add(&["-drive", &drive, "-device", "virtio-scsi-pci", "-device", "scsi-cd,drive=disc"]);
        }
        if let VmClock::OffByDays(days) = self.clock {
            let now = std::process::Command::new("date")
                .args(["-u", "+%Y-%m-%dT%H:%M:%S", "-d", &format!("{days} days")])
                .output()?;
            add(&["-rtc", &format!("base={}", String::from_utf8_lossy(&now.stdout).trim())]);
        }
        Ok(arguments)
    }

    /// Boots the VM; its console's log and its files are in `folder`.
    pub fn start(mut self, folder: &Path) -> Result<Vm> {
        let on_line = self.on_line.take();
        let arguments = self.arguments(folder)?;
        Ok(Vm {
            console: Process::spawn(Path::new("qemu-system-x86_64"), arguments, &folder.join("console.log"), on_line)?,
        })
    }
}

/// Returns the kernel's command line, with `more` at its end.
#[must_use]
pub fn command_line(accelerator: Accelerator, more: &[&str]) -> String {
    // "no_timer_check": the kernel tries its timer for some milliseconds, in which a loaded host may not run an emulated guest at all.
    let mut words = vec!["console=ttyS0", "panic=-1", "no_timer_check", accelerator.kernel_arguments()];
    words.extend_from_slice(more);
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
