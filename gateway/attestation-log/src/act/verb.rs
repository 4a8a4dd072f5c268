//! Kinds of acts, in stable words.

use serde::{Deserialize, Serialize};

/// Defines [`Verb`], its list, and the word of each.
macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident = $word:literal;)*) => {
        /// Kind of an act. Its words do not change, so that logs of all releases can be searched by them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Verb {
            $($(#[$doc])* #[serde(rename = $word)] $verb,)*
        }

        impl Verb {
            /// All verbs, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$verb),*];

            /// Returns the word that the log has.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$verb => $word,)*
                }
            }
        }
    };
}

verbs! {
    /// A provisioning token was made.
    TokenCreate = "token.create";
    /// A token that was made elsewhere was imported.
    TokenImport = "token.import";
    /// A token replaced another: by a command, or by its schedule.
    TokenRotate = "token.rotate";
    /// All tokens of a name became worthless.
    TokenRevoke = "token.revoke";
    /// The gateway has made, changed or ended a token to follow the cluster's bootstrap token.
    TokenFollow = "token.follow";
    /// The gateway has forgotten a token that had expired.
    TokenForget = "token.forget";
    /// An EK was endorsed, and perhaps given a name.
    EkAdd = "ek.add";
    /// An EK was removed from the allowlist.
    EkRemove = "ek.remove";
    /// An EK's entry was forgotten, so that the roots decide whether it is endorsed.
    EkForget = "ek.forget";
    /// Machines were put on the allowlist from a file.
    MachinesImport = "machines.import";
    /// Certificates of TPM manufacturers' CAs were imported from a bundle.
    EkRootsImport = "ek-roots.import";
    /// A node's name was released.
    NodeForget = "node.forget";
    /// The history of a machine's TPMs was forgotten.
    NodeForgetHistory = "node.forget-history";
    /// An instance of a cloud was released.
    NodeRelease = "node.release";
    /// A machine was revoked.
    NodeRevoke = "node.revoke";
    /// A revocation was withdrawn.
    NodeRestore = "node.restore";
    /// The gateway has asked about machines that wait.
    WaitingAsk = "waiting.ask";
    /// An administrator accepted what machines wait for.
    WaitingAccept = "waiting.accept";
    /// An administrator refused it, or took a refusal back.
    WaitingRefuse = "waiting.refuse";
    /// A kubelet's client certificate was approved, because its machine has attested.
    CsrApprove = "csr.approve";
    /// The seal got a new key: by a command, or by the gateway when one was due.
    SealRotate = "seal.rotate";
    /// The seal got a new key, and all others were dropped.
    SealDrop = "seal.drop";
    /// A store was accepted that is not the known one.
    StoreAccept = "store.accept";
    /// The store was restored from a backup.
    StoreRestore = "store.restore";
    /// The store was copied from another engine.
    StoreCopy = "store.copy";
    /// An incomplete copy of the store was undone.
    StoreCopyUndo = "store.copy-undo";
    /// The store's schema was raised.
    StoreUpgrade = "store.upgrade";
    /// The key file of replicas was made.
    StoreKey = "store.key";
    /// The key file of replicas got another key.
    StoreKeyRotate = "store.key-rotate";
    /// A chain of the log was abandoned as lost for good.
    LogAbandon = "log.abandon";
    /// A second CA was added to pointers.
    CaIntroduce = "ca.introduce";
    /// The newest CA signs the certificate.
    CaSwitch = "ca.switch";
    /// The older CA was removed from pointers.
    CaRetire = "ca.retire";
    /// The MCS certificate was replaced.
    CertificateRenew = "certificate.renew";
    /// The pointer of a machine set got other CAs.
    PointerRenew = "pointer.renew";
    /// A gateway has started with this configuration snapshot.
    GatewayStart = "gateway.start";
    /// A gateway has found changed files, and uses them from now on.
    GatewayReload = "gateway.reload";
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}
