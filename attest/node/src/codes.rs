//! Table of the codes that this program gives by itself, without those of a gateway's refusals.

use attest_wire::protocol::{GATEWAY_UNREACHABLE, RETRY_LIMIT_EXCEEDED, TICKET_UNDELIVERABLE};

/// Explanation of one code: its name, its meaning, and the usual next step. A [`Failure`](crate::failure::Failure) may have a more exact one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCode {
    /// Stable identifier in kebab-case.
    pub code: &'static str,
    /// The meaning in a sentence.
    pub title: &'static str,
    /// The step that the person at the console, or the administrator, usually takes.
    pub next_step: &'static str,
}

macro_rules! codes {
    ($($code:expr, $title:literal, $next_step:literal;)*) => {
        /// The codes that this program gives by itself. `docs/reference/node-codes.md` is generated from this table.
        pub const CODES: &[NodeCode] = &[$(NodeCode { code: $code, title: $title, next_step: $next_step }),*];
    };
}

codes! {
    "pointer-not-found", "No pointer config was found. The console line lists the searched places: `user.ign`, QEMU's fw_cfg, the platform's user data.", "Put a pointer config into one of these places, or name its file with `--pointer`.";
    "pointer-overridden", "An argument on the kernel command line, or a `user.ign` in a higher folder, overrides the pointer config, so Ignition would not see the ticket. With only one of `ignition.config.device` and `ignition.config.path`, Ignition stops the boot.", "Remove the argument or file that the console line names. Put the pointer config into `user.ign` in the initramfs, or into the platform's user data. For `attest-node config`, name its file with `--pointer`.";
    "pointer-unclear", "Ignition does not report its version, and versions up to 2.26 read another pointer config than versions from 2.27 on. The cause is a `user.ign` in `/run/ignition` or `/etc/ignition`, or an argument that only some versions support.", "Keep one `user.ign`, in `/usr/lib/ignition`. Or name the pointer config with `--pointer`, and the file that Ignition reads with `--out`.";
    "pointer-malformed", "The pointer config is unreadable, empty, larger than 1 MiB, not JSON, or has no `ignition.version`.", "Give the node a valid pointer config: `attest-gateway pointer create` prints one.";
    "pointer-version", "The pointer config has a spec version other than 3.x.", "Write the pointer config in spec 3.1.0 or later: `attest-gateway pointer create` prints one.";
    "pointer-no-ca", "The pointer config names no CA, so the node can trust no gateway.", "Put the MCS CA into the pointer config: `attest-gateway pointer create` does so.";
    "pointer-ca", "A CA in the pointer config is not PEM, does not match its hash, or is not a `data:` URL while there is no other CA.", "Correct this entry of `ignition.security.tls.certificateAuthorities`.";
    "tpm-absent", "The node has no TPM 2.0 and runs in no supported cloud; or the firmware announces a TPM, and its device did not appear within `--deadline`.", "Enable the TPM 2.0 in the firmware setup, or give the virtual machine one. If the firmware announces a TPM, put its driver into the initramfs, or raise `--deadline`.";
    "tpm-failed", "A TPM command failed, the TCTI is invalid, or PCRs changed during each of five quotes. The console line has the command and the TPM's response code.", "Run `attest-node ek list` on the node. If the TPM keeps failing, switch the machine off and on, and update its firmware. Do not clear the TPM: disks may be sealed to it.";
    "tpm-busy", "The TPM answered a command with a warning until the deadline. The console line has the warning, the number of attempts and the time. The machine is not at fault.", "Boot again. If this repeats, find out which program uses the TPM, or raise `--deadline`.";
    "tpm-lockout", "The TPM is in dictionary-attack lockout, and refuses a key that needs a password. The console line has its counter.", "Leave the machine on for the interval that the console line names, and attest again; or run `tpm2_dictionarylockout --clear-lockout`. Do not clear the TPM: disks may be sealed to it.";
    "tpm-no-endorsement-key", "The TPM has no EK of the kind that `--ek` asks for.", "Use `--ek auto`. `attest-node ek list` lists the TPM's EKs.";
    "tpm-bank-missing", "The TPM lacks the PCR bank that the pool requires. The console line lists its banks.", "Enable the bank in the firmware setup, or change `tpm.bank` in the pool's `pool.toml`.";
    GATEWAY_UNREACHABLE, "Every connection to the gateway failed or was lost, for as long as `--wait` or `attest-node.wait=` allows. Without a limit, the node fails only if the server still serves configs, so that Ignition would not wait.", "Check that the gateway runs and that the node's network reaches it. If its configs can be fetched, check the load balancer before it.";
    "gateway-failing", "The gateway answered every request with a 5xx status, for as long as `--wait` or `attest-node.wait=` allows.", "Read the gateway's log.";
    RETRY_LIMIT_EXCEEDED, "The gateway answered 503 for as long as the pool lets nodes wait.", "On the gateway, answer what is open in `attest-gateway waiting list`, or find the bottleneck in its log and metrics. Then boot again. `attestation.hold_seconds` in the pool's `pool.toml` limits the wait.";
    "gateway-answer", "The gateway's answer does not follow the attestation protocol: not its JSON, too large, or with a malformed ticket or one for another pool.", "Check that the address in the pointer config is an attestation gateway's.";
    "gateway-protocol", "The gateway has another version of the protocol.", "Use the attest-node of the gateway's release.";
    "gateway-task", "The gateway requires something that attest-node does not support: an unknown purpose, nonce length or PCR bank, an empty or unordered list of PCRs, a PCR above 15, evidence that the node did not offer, or an identity token for a malformed host name.", "Check the gateway's release and its `pool.toml`.";
    "tls-unknown-ca", "No CA in the pointer config has issued the gateway's certificate.", "Put the gateway's current CA into the pointer config. If it is there, somebody else answers at this address.";
    "tls-wrong-name", "The gateway's certificate is for other names than the URL in the pointer config.", "Issue a certificate that has the name or address, or correct the URL in the pointer config.";
    "tls-not-yet-valid", "The node's clock is before the first day of the gateway's certificate.", "Set the node's clock (RTC, in UTC) in the firmware setup.";
    "tls-expired", "The node's clock is after the last day of the gateway's certificate.", "If the clock is wrong, set it. Otherwise renew the gateway's certificate.";
    "tls-failed", "The node refuses the gateway's certificate for a reason that the console line names.", "Check the certificate with `attest-gateway check`.";
    "tls-ca", "A CA in the pointer config is PEM, but cannot be used as a CA.", "Correct the CA in the pointer config.";
    "deadline", "The time of `--deadline` has passed, most likely because the TPM does not answer.", "Run `attest-node ek list` on the node. A slow TPM needs a longer `--deadline`.";
    TICKET_UNDELIVERABLE, "attest-node cannot write the file from which Ignition would read the ticket. The console line has the file and the system's error. The node reports this to the gateway.", "Start attest-node by its unit, or make the folder writable in the initramfs, or name another file that Ignition reads with `--out`.";
    "report-no-pointer", "The boot failed before attest-node had a pointer config with a gateway, so that no gateway gets a report.", "Read the failure on the console. On a booted system, run `attest-node report --pointer FILE`.";
    "report-deadline", "The time of `--deadline` of `attest-node report` has passed.", "Check the node's network, and run `attest-node report` again.";
    "output", "`attest-node config fetch` cannot write the config.", "Make the folder writable, or name another file with `--out`.";
    "internal", "attest-node has a defect, or the system denied it a thread or memory.", "Report the message.";
    "refused", "The gateway refused with a malformed code: a code has 1 to 64 lower-case letters, digits and `-`.", "Follow the text on the console line. Check that the address is an attestation gateway's.";
    "kubelet-certificate", "`attest-node config` cannot use the kubelet's certificate: the file is missing, not PEM, or has another certificate's key.", "Approve the node's CSR (`oc get csr`) and wait until its kubelet has the certificate, or name its file with `--certificate`.";
    "kubelet-certificate-unasked", "The gateway did not request the client certificate, so it would serve the config of an unauthenticated client. Nothing is written.", "Set `tls.client_ca` or `cluster.client_ca` in `gateway.toml`. If one is set, a proxy between node and gateway terminates TLS.";
    "config-source", "The pointer config names no URL of the form `https://…/config/<pool>`, or several; or `--url` has another form.", "Name the config with `--url https://HOST:PORT/config/POOL`.";
    "apply-unsupported", "`attest-node config apply` cannot repeat a first boot on this system. The console line names the missing part. Nothing is fetched.", "Fetch the config with `attest-node config fetch --out FILE`, and reinstall the machine with it. On openSUSE MicroOS, follow the console line.";
    "apply-arranged", "The stamp of a first boot exists already.", "Reboot; or run `attest-node config undo`, and try again.";
    "apply-failed", "The boot filesystem cannot be written. No part of the config is left there.", "Run the program as root, and make `/boot` writable: `mount -o remount,rw /boot`.";
    "install-unsupported", "`attest-node install` found no boot entry that loads an initrd from a file. The console line names what it found. Nothing is changed.", "[Put attest-node into the image](../how-to/images.md), or follow the console line.";
    "install-target", "The disk, image, folder or initrd is missing, in use, damaged, or of another kind. Nothing is changed.", "Follow the console line.";
    "install-failed", "A file of the boot filesystem cannot be read or written. The system boots as before, or with the initrd.", "Make the boot filesystem writable, with free space for the initrd, and run the command again.";
    "ignition-not-repeatable", "Ignition cannot apply the config on an installed system: it would stop the boot, or destroy data. A line on the console explains each entry.", "Change these entries in the pool's config, most often with `\"overwrite\": true`; or reinstall the machine.";
    "ignition-version", "The spec versions of this Ignition are unknown, or do not include the one of `--spec`.", "Pass a version that this Ignition supports with `--spec`.";
    "metadata-unreachable", "The cloud's metadata server gave no answer, or 5xx or 429, until the deadline.", "Check that the node's network is up and that its metadata service is enabled.";
    "metadata-refused", "The cloud's metadata server refuses the request. 403 at `/latest/api/token`: the instance's metadata service is off. 404 at `…/identity`: the instance has no service account.", "Enable the metadata service (IMDSv2) on Amazon EC2, or attach a service account on Google Compute Engine.";
    "metadata-answer", "The metadata server's answer has the wrong form: too large, not a token, not Base64, or another encoding.", "Find out which server answers at the metadata address. If it is the cloud's, report the message.";
    "provisioning-media", "An Azure virtual machine has no user data, and its custom data cannot be read: it has no optical drive, or no CD with `ovf-env.xml`.", "Give the virtual machine the pointer config as user data, or name its file with `--pointer`.";
    "config-drive", "The config drive of the platform did not appear before the deadline (IBM Cloud: within 30 s), or its user data cannot be read. The console line has its label.", "Attach the config drive, with the pointer config as its user data. Or put the pointer config into `user.ign` in the initramfs.";
    "guestinfo", "The guestinfo of a VMware machine cannot be read or decoded; or the platform is `vmware`, and the machine is not VMware's.", "Set `guestinfo.ignition.config.data` and `guestinfo.ignition.config.data.encoding` of the machine, and keep its backdoor enabled. Or put the pointer config into `user.ign` in the initramfs.";
    "nitro-tpm-failed", "AWS's program `nitro-tpm-attest` failed, took more than 30 s, or wrote nothing or too much. The console line has its last output.", "Run the program on the node. The instance's image must be registered with NitroTPM.";
    "sts-request", "attest-node cannot sign a request to AWS STS: the clock is before 1970, or the role's credentials have characters that a header cannot have.", "Set the node's clock. If it is right, report the message.";
    "no-accepted-evidence", "The node has no kind of evidence that the gateway accepts. The console line lists the accepted kinds.", "Enable the TPM 2.0. In a cloud, give the instance what its evidence needs: a service account, or a role.";
    "kubelet-key", "The attested key of the kubelet cannot be read from disk or written to it.", "Make `/var/lib/attest-node` writable, and run `systemctl restart attest-node-kubelet-certificate.service`.";
    "kubelet-kubeconfig", "The kubelet's bootstrap kubeconfig is missing or has an unsupported form. The console line names the defect.", "Correct it, or name another file with `--kubeconfig`.";
    "kubelet-request", "This machine's host name is not a valid node name.", "Set the host name before this runs, or pass a name with `--name` or `KUBELET_NODE_NAME`.";
    "kubelet-request-denied", "The CSR for the attested key was denied or has failed. The console line has the reason.", "If that was wrong, delete the CSR, and run `systemctl restart attest-node-kubelet-certificate.service`.";
    "kubelet-request-unanswered", "The CSR got no certificate within `--wait`. The console line names the missing step: the API's answer, the approval, or the signature.", "Run `kubectl describe csr` to see why the CSR is not approved. Then run `systemctl restart attest-node-kubelet-certificate.service kubelet.service`.";
    "kubelet-certificate-answer", "The signed certificate has another key or name than the CSR, or has expired.", "Check the signer of kubelets' certificates in this cluster. Delete the CSR, and run `systemctl restart attest-node-kubelet-certificate.service`.";
    "kubelet-store", "The kubelet's certificate directory cannot be read or written, or has a file in place of the kubelet's link.", "Make it writable, or name another directory with `--certificates`.";
}
