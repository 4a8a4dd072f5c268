//! Evidence that this node can show, of the kinds that its gateways accept.

use std::collections::BTreeSet;
use std::path::Path;

use attest_wire::Kind;
use attest_wire::protocol::{Attester, Blob, Nothing, TpmAttester};
use zeroize::Zeroizing;

use crate::tpm::{Attester as TpmKeys, EndorsementKey, IssuerCertificates};

use super::cloud::CloudMeans;
use super::event_log;

/// A TPM with its keys loaded.
#[derive(Debug)]
pub struct TpmMeans<'a> {
    /// Identity of the TPM: `tpm:<digest of the EK>`.
    pub identity: String,
    /// Public halves of the keys, with the EK certificate.
    pub presented: TpmAttester,
    /// The firmware's event log.
    pub event_log: Option<Blob>,
    pub keys: TpmKeys<'a>,
}

impl<'a> TpmMeans<'a> {
    /// Returns the evidence of loaded keys and of the event log at a path, with notes about parts that cannot be sent.
    #[must_use]
    pub fn new(ek: &EndorsementKey, issuers: IssuerCertificates, keys: TpmKeys<'a>, log: &Path) -> (Self, Vec<String>) {
        let presented = TpmAttester {
            ek_public: ek.public.clone().into(),
            ek_certificate: ek.certificate.clone().map(Blob::from),
            ek_certificate_unread: ek.unread.is_some(),
            ek_intermediates: issuers.certificates.into_iter().map(Blob::from).collect(),
            ak_public: keys.ak_public().to_vec().into(),
        };
        let (event_log, note) = event_log(log);
        let means = Self {
            identity: format!("tpm:{}", ek.digest),
            presented,
            event_log: event_log.map(Blob::from),
            keys,
        };
        let unread = ek.unread.as_ref().map(|unread| match ek.certificate {
            Some(_) => format!("{unread}; attesting with another EK, {}", ek.digest),
            None => format!("{unread}; attesting without an EK certificate"),
        });
        let unread_issuers = issuers
            .unread
            .map(|unread| format!("{unread}; attesting without them: put the CAs that the gateway lacks into its ek-roots"));
        (means, note.into_iter().chain(unread).chain(unread_issuers).collect())
    }
}

/// Evidence that this node can show.
#[derive(Debug, Default)]
pub struct Means<'a> {
    /// The name that the node wants, if it has one.
    pub name: Option<String>,
    pub tpm: Option<TpmMeans<'a>>,
    /// Cloud's evidence for the node.
    pub cloud: Option<CloudMeans<'a>>,
}

impl Means<'_> {
    /// Returns the offer to the gateway at `base`, which accepts the kinds in `takes`. A token is offered only together with evidence of
    /// the node's identity.
    #[must_use]
    pub fn offer(&self, takes: &BTreeSet<Kind>, base: &str, token: Option<&Zeroizing<String>>) -> Attester {
        let mut offer = Attester::default();
        if takes.contains(&Kind::Tpm) {
            offer.tpm = self.tpm.as_ref().map(|tpm| tpm.presented.clone());
        }
        if let Some(cloud) = &self.cloud {
            cloud.offer(takes, base, &mut offer);
        }
        if takes.contains(&Kind::Token) && !offer.kinds().is_empty() {
            offer.token = token.map(|_| Nothing {});
        }
        offer
    }
}
