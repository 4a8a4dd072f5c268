//! Machines with software TPMs of one manufacturer, made once and kept in a file for later runs.

use std::fs;
use std::path::{Path, PathBuf};

use attest::protocol::Blob;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde::{Deserialize, Serialize};

use crate::results;
use crate::support::SoftKey;
use crate::support::node::Node;
use crate::support::soft_tpm::activation::SoftTpm;
use crate::support::soft_tpm::maker::Maker;

#[derive(Serialize, Deserialize)]
pub struct Fleet {
    /// Root certificate of the manufacturer, DER.
    root: Blob,
    machines: Vec<Machine>,
}

#[derive(Serialize, Deserialize)]
struct Machine {
    ek: Blob,
    ek_certificate: Blob,
    /// Private key in PKCS#8.
    ak: Blob,
}

impl Fleet {
    /// Returns at least this number of machines: those in the file if they are enough, or new ones, which are kept there.
    pub fn load_or_create(file: &Path, count: usize) -> Self {
        let kept = fs::read(file).ok().and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        if let Some(kept) = kept.filter(|kept| kept.machines.len() >= count) {
            return kept;
        }
        let maker = Maker::new("A maker of TPMs");
        let made = Self {
            root: Blob(maker.root()),
            machines: std::iter::repeat_with(|| Machine::new(&maker)).take(count).collect(),
        };
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, serde_json::to_vec(&made).unwrap()).unwrap();
        made
    }

    /// Returns the manufacturer's root certificate, DER.
    pub fn root(&self) -> &[u8] {
        self.root.as_ref()
    }

    /// Returns this number of machines as nodes, ready to boot.
    pub fn nodes(&self, count: usize) -> Vec<Node> {
        self.machines.iter().take(count).map(Machine::node).collect()
    }
}

/// Returns the path of the file with the machines.
pub fn file() -> PathBuf {
    results::folder().join("fleet/machines.json")
}

impl Machine {
    fn new(maker: &Maker) -> Self {
        let tpm = SoftTpm::p256();
        let ak = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self {
            ek: Blob(tpm.secret()),
            ek_certificate: Blob(maker.certificate(&tpm.ek)),
            ak: Blob(ak.to_pkcs8v1().unwrap().as_ref().to_vec()),
        }
    }

    fn node(&self) -> Node {
        let ak = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, self.ak.as_ref()).unwrap();
        Node::from_parts(
            SoftTpm::p256_of(self.ek.as_ref()),
            SoftKey::P256(ak),
            self.ek_certificate.as_ref().to_vec(),
        )
    }
}
