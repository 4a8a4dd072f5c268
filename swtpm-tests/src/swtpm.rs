//! Software TPMs, and the authority that endorses some of them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::images::run;
use crate::pid_file::PidFile;
use crate::process::Process;

/// Maximum number of attempts to find free ports: other tests look for some at the same time.
const PORTS_ATTEMPTS: usize = 20;
/// Maximum duration of swtpm's start: tens of milliseconds usually; a loaded machine may need seconds.
const START_LIMIT: Duration = Duration::from_secs(20);

/// CA of a manufacturer: a root and the issuer of EK certificates.
#[derive(Debug, Clone)]
pub struct EkAuthority {
    folder: PathBuf,
}

impl EkAuthority {
    /// Creates a new authority in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("finding {}", folder.display()))?;
        let path = folder.display();
        fs::write(
            folder.join("setup.conf"),
            format!(
                "create_certs_tool = /usr/bin/swtpm_localca\ncreate_certs_tool_config = {path}/localca.conf\n\
                 create_certs_tool_options = {path}/localca.options\n"
            ),
        )?;
        fs::write(
            folder.join("localca.conf"),
            format!("statedir = {path}\nsigningkey = {path}/issuer.key\nissuercert = {path}/issuer.pem\ncertserial = {path}/serial\n"),
        )?;
        fs::write(
            folder.join("localca.options"),
            "--platform-manufacturer Tests\n--platform-version 1\n--platform-model Tests\n",
        )?;
        let authority = Self { folder };
        // swtpm's CA makes itself with the first TPM it endorses; nobody uses this one.
        manufacture(&authority.folder.join("first"), TestEndorsement::By(&authority))?;
        Ok(authority)
    }

    /// Returns the root and issuer certificates, PEM.
    #[must_use]
    pub fn certificates(&self) -> [PathBuf; 2] {
        [self.folder.join("swtpm-localca-rootca-cert.pem"), self.folder.join("issuer.pem")]
    }
}

/// Source of a TPM's endorsement.
#[derive(Debug, Clone, Copy)]
pub enum TestEndorsement<'a> {
    /// Endorsement by this authority: an EK certificate in NV.
    By(&'a EkAuthority),
    /// No authority: the TPM has no EK certificate.
    None,
}

/// TPM for a VM, at a socket that QEMU takes; killed on drop.
pub struct Swtpm {
    state: PathBuf,
    socket: PathBuf,
    process: Process,
}

/// TPM for a program on this machine, at a TCP port. It prints each command that it gets; killed on drop.
pub struct TpmServer {
    port: u16,
    process: Process,
}

impl Swtpm {
    /// Manufactures a TPM in `folder` and switches it on.
    pub fn start(folder: &Path, endorsement: TestEndorsement<'_>) -> Result<Self> {
        Self::switch_on(&manufacture(folder, endorsement)?)
    }

    /// Like [`Swtpm::start`], with these PCR banks, in the notation of `swtpm_setup`, in place of SHA-256's alone.
    pub fn start_with_banks(folder: &Path, endorsement: TestEndorsement<'_>, banks: &str) -> Result<Self> {
        Self::switch_on(&manufacture_with(folder, endorsement, &["--pcr-banks", banks])?)
    }

    /// Switches the TPM in `folder` on again, after the VM that had it has ended.
    pub fn restart(folder: &Path) -> Result<Self> {
        Self::switch_on(&folder.join("tpm").canonicalize()?)
    }

    fn switch_on(state: &Path) -> Result<Self> {
        let socket = state.join("control");
        let arguments = [
            "socket".to_owned(),
            "--tpm2".to_owned(),
            format!("--tpmstate=dir={}", state.display()),
            format!("--ctrl=type=unixio,path={}", socket.display()),
        ];
        match listening(state, &arguments)? {
            Some(process) => Ok(Self {
                state: state.to_path_buf(),
                socket,
                process,
            }),
            None => bail!("swtpm ended at once; see {}", state.join("swtpm.log").display()),
        }
    }

    /// Returns the path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes the same TPM, with its measurements, available to programs on this machine. Its VM must be gone without having switched itself
    /// off: a TPM that is switched off forgets its PCRs.
    pub fn taken_out(mut self) -> Result<TpmServer> {
        run(Command::new("swtpm_ioctl").arg("--unix").arg(&self.socket).arg("-v")).context("keeping what the TPM holds")?;
        // The next one finds the state locked otherwise.
        self.process.kill()?;
        TpmServer::switch_on(&self.state, "not-need-init")
    }
}

impl TpmServer {
    /// Manufactures a TPM in `folder` and switches it on.
    pub fn start(folder: &Path, endorsement: TestEndorsement<'_>) -> Result<Self> {
        Self::switch_on(&manufacture(folder, endorsement)?, "not-need-init,startup-clear")
    }

    /// Like [`TpmServer::start`], with these PCR banks, in the notation of `swtpm_setup`, in place of SHA-256's alone.
    pub fn start_with_banks(folder: &Path, endorsement: TestEndorsement<'_>, banks: &str) -> Result<Self> {
        let state = manufacture_with(folder, endorsement, &["--pcr-banks", banks])?;
        Self::switch_on(&state, "not-need-init,startup-clear")
    }

    fn switch_on(state: &Path, flags: &str) -> Result<Self> {
        for _ in 0..PORTS_ATTEMPTS {
            if let Some(server) = Self::try_start(state, flags)? {
                return Ok(server);
            }
        }
        bail!("swtpm found no two free ports in {PORTS_ATTEMPTS} attempts")
    }

    /// Returns the TCTI string for tss-esapi and tpm2-tools.
    #[must_use]
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Returns the port for commands.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the TPM's process. Its output has each command as a line of bytes, like ` 80 01 00 00 00 0E …`.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Resets the TPM, as turning the machine off and on does; the next user has to send `TPM2_Startup`.
    pub fn reset(&self) -> Result<()> {
        let control = self.port.checked_add(1).context("a port")?;
        run(Command::new("swtpm_ioctl").args(["--tcp", &format!("127.0.0.1:{control}"), "-i"])).map(|_| ())
    }

    /// Starts swtpm, whose TCTI expects the control channel one port above the commands. Returns `None` if another process took the ports.
    fn try_start(state: &Path, flags: &str) -> Result<Option<Self>> {
        let port = free_port()?;
        let Some(control) = port
            .checked_add(1)
            .filter(|control| TcpListener::bind(("127.0.0.1", *control)).is_ok())
        else {
            return Ok(None);
        };
        let arguments = [
            "socket".to_owned(),
            "--tpm2".to_owned(),
            format!("--tpmstate=dir={}", state.display()),
            format!("--server=type=tcp,bindaddr=127.0.0.1,port={port}"),
            format!("--ctrl=type=tcp,bindaddr=127.0.0.1,port={control}"),
            format!("--flags={flags}"),
            // From 5 on libtpms tells much more.
            "--log=fd=1,level=4".to_owned(),
        ];
        let process = listening(state, &arguments)?;
        Ok(process.map(|process| Self { port, process }))
    }
}

/// Starts swtpm and waits until it listens. Returns `None` if it could not.
fn listening(state: &Path, arguments: &[String]) -> Result<Option<Process>> {
    // swtpm writes it when all its sockets listen.
    let pid_file = PidFile::new(&state.join("pid"))?;
    let pid = ["--pid".to_owned(), format!("file={}", pid_file.path().display())];
    let arguments = arguments.iter().chain(&pid);
    let process = Process::spawn(Path::new("swtpm"), arguments, &state.join("swtpm.log"), None)?;
    Ok(pid_file.wait(&process, START_LIMIT)?.then_some(process))
}

/// Returns an unused port of 127.0.0.1.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))
        .context("asking for a port")?
        .local_addr()?
        .port())
}

/// Manufactures a TPM's state in `folder`. Returns the state's folder.
pub fn manufacture(folder: &Path, endorsement: TestEndorsement<'_>) -> Result<PathBuf> {
    manufacture_with(folder, endorsement, &[])
}

fn manufacture_with(folder: &Path, endorsement: TestEndorsement<'_>, more: &[&str]) -> Result<PathBuf> {
    let state = folder.join("tpm");
    fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
    // Absolute: with a relative path the daemon goes into failure mode.
    let state = state.canonicalize()?;
    let mut setup = Command::new("swtpm_setup");
    setup.args(["--tpm2", "--overwrite", "--tpmstate"]).arg(&state).args(more);
    match endorsement {
        TestEndorsement::By(authority) => setup
            .arg("--config")
            .arg(authority.folder.join("setup.conf"))
            .arg("--create-ek-cert"),
        TestEndorsement::None => &mut setup,
    };
    run(&mut setup).context("manufacturing a TPM")?;
    Ok(state)
}
