//! `attest-node kubelet-certificate request`: gets the kubelet's client certificate for the key that this node has attested, before the kubelet asks for one.
//!
//! With `rotateCertificates: true` a kubelet makes a key of its own for each request (`generateCSR` in
//! `client-go/util/certificate/certificate_manager.go`), which cannot have been attested. But it requests no certificate while
//! `kubelet-client-current.pem` is good (`getCurrentCertificateOrBootstrap` there). So the key is made in the initramfs ([`key`]), and its
//! digest goes into the evidence that is signed there. In the booted system this program requests the certificate as the kubelet would
//! ([`csr`], [`api`]), with the kubelet's own bootstrap credential ([`kubeconfig`]), and puts both where the kubelet has them ([`store`]).
//! A unit that the initramfs leaves starts it there ([`unit`]). If it fails, the kubelet requests one itself: with a key that is not
//! attested.

pub mod api;
pub mod csr;
pub mod key;
pub mod kubeconfig;
mod pem;
pub mod store;
pub mod unit;
mod validity;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use attest_wire::names::is_node_name;

use self::api::{CsrApi, KubeletCertificateRequest};
use self::key::{KeyPaths, KubeletKeyPair};
use self::kubeconfig::Kubeconfig;
use self::store::KubeletStore;
use crate::console::{self, print_line};
use crate::deadline::Deadline;
use crate::failure::{Failure, printable};

/// File in which the kernel exposes this node's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The variable in which OpenShift has the name that the kubelet is given (`templates/worker/01-worker-kubelet/_base/units/kubelet.service.yaml` in
/// openshift/machine-config-operator).
pub const NAME_VARIABLE: &str = "KUBELET_NODE_NAME";

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct KubeletOptions {
    /// The kubelet's bootstrap kubeconfig: one of these, the first that is there.
    pub kubeconfigs: Vec<PathBuf>,
    /// Node's name, if it differs from [`NAME_VARIABLE`] and the kernel's.
    pub name: Option<String>,
    /// The kubelet's certificate directory.
    pub folder: PathBuf,
    /// Locations of the key.
    pub places: KeyPaths,
    /// The most time that all of it may take.
    pub wait: Duration,
}

/// Returns the key that the kubelet will have, and whether this run has made it. Without one the kubelet makes its own; a node that
/// `is_told_to` attest one prints the reason.
#[must_use]
pub fn key_of_this_boot(places: &KeyPaths, is_told_to: bool) -> (Option<KubeletKeyPair>, bool) {
    match places.load_or_create() {
        Ok(Some((key, is_new))) => (Some(key), is_new),
        Ok(None) | Err(_) if !is_told_to => (None, false),
        Ok(None) => {
            print_line(
                "note: no key is attested for the kubelet: the folder for the booted system is missing; `attest-node program copy` creates it",
            );
            (None, false)
        }
        Err(error) => {
            print_line(&format!(
                "note: no key is attested for the kubelet: it cannot be stored for the booted system: {error}"
            ));
            (None, false)
        }
    }
}

/// Runs, says on stderr how it went, and returns 0 if there is a certificate or nothing to ask for, and 1 if not.
#[must_use]
pub fn run(settings: &KubeletOptions) -> ExitCode {
    match certificate(settings) {
        Ok(said) => {
            print_line(&said);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print_line(&format!(
                "no certificate for the kubelet: {failure}; the kubelet creates a CSR with its own key, which is not attested"
            ));
            ExitCode::FAILURE
        }
    }
}

fn certificate(settings: &KubeletOptions) -> Result<String, Failure> {
    let store = KubeletStore::new(&settings.folder);
    if store.has_valid()? {
        settings.places.forget().map_err(key::unreadable)?;
        return Ok(format!("the kubelet has a certificate already: {}", store.current().display()));
    }
    // On the disk first: whatever comes now, a boot that ends here can go on with it.
    let Some(key) = settings.places.settle().map_err(key::unreadable)? else {
        return Ok("nothing to do: this node has attested no key for its kubelet".to_owned());
    };
    let deadline = Deadline::after(settings.wait);
    console::extend(settings.wait, "Asking for the kubelet's certificate");
    let config = Kubeconfig::read(&settings.kubeconfigs)?;
    let name = name(settings)?;
    let wanted = KubeletCertificateRequest::new(&key, &name)?;
    let certificate = CsrApi::new(&config)?.certificate(&wanted, deadline)?;
    let path = store.write(&certificate, &key)?;
    // Both are in the kubelet's file now.
    settings.places.forget().map_err(key::unreadable)?;
    Ok(format!("the kubelet's certificate as {name} is in {}", path.display()))
}

/// The name that the kubelet will ask for.
fn name(settings: &KubeletOptions) -> Result<String, Failure> {
    let given = settings.name.clone();
    let given = given.or_else(|| std::env::var(NAME_VARIABLE).ok().filter(|name| !name.is_empty()));
    // As the kubelet does it: in lower case, and without blanks around it (`pkg/util/node/node.go`, GetHostname).
    let name = given.unwrap_or_else(|| std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_lowercase());
    if is_node_name(&name) && name != "localhost" {
        return Ok(name);
    }
    Err(Failure::new(
        "kubelet-request",
        format!("{:?} is not a valid node name", printable(&name)),
        format!("set the host name before this runs, or pass a name with --name or {NAME_VARIABLE}"),
    ))
}
