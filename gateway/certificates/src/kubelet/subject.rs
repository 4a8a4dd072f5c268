//! Names in certificates: parsing of a node's name, and display of others.

use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::names::is_subdomain;

/// Prefix of the common names of nodes, in every cluster.
const NODE_PREFIX: &str = "system:node:";
/// The group of all nodes.
const NODE_GROUP: &str = "system:nodes";
const COMMON_NAME_OID: &str = "2.5.4.3";
const ORGANISATION_OID: &str = "2.5.4.10";
/// Longest name in an error or a record, in characters: a node's name with its prefix.
const SHOWN_LIMIT_CHARACTERS: usize = 320;

/// The reason why a subject is not a node's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Not exactly one common name.
    #[error("it has {found} common names, a node has one")]
    CommonNames { found: usize },
    /// A common name of another kind.
    #[error("its common name is {found:?}, a node's begins with \"system:node:\"")]
    Prefix {
        /// The common name as it was found.
        found: String,
    },
    /// A common name of no node that a cluster could have.
    #[error("its node name is {found:?}, a node's is a DNS name in lower case of at most 253 characters")]
    Name {
        /// The name, without its prefix.
        found: String,
    },
    /// Not exactly the group of nodes.
    #[error("its organisations are {found:?}, a node's are [\"system:nodes\"]")]
    Organisations { found: Vec<String> },
    /// Something else in the subject.
    #[error("its subject has an attribute {oid}, a node's has CN and O only")]
    Attribute {
        /// The attribute's object identifier.
        oid: String,
    },
    /// A value that is not text.
    #[error("the value of attribute {oid} in its subject is not text")]
    NoText {
        /// The attribute's object identifier.
        oid: String,
    },
}

/// Returns the name of the node that a subject is for.
pub fn node_name(subject: &X509Name<'_>) -> Result<String, SubjectError> {
    let (mut common_names, mut organisations) = (Vec::new(), Vec::new());
    for attribute in subject.iter_attributes() {
        let oid = attribute.attr_type().to_id_string();
        let to = match oid.as_str() {
            COMMON_NAME_OID => &mut common_names,
            ORGANISATION_OID => &mut organisations,
            _ => return Err(SubjectError::Attribute { oid }),
        };
        match attribute.as_str() {
            Ok(text) => to.push(text),
            Err(_) => return Err(SubjectError::NoText { oid }),
        }
    }
    let [common_name] = common_names.as_slice() else {
        return Err(SubjectError::CommonNames { found: common_names.len() });
    };
    let Some(name) = common_name.strip_prefix(NODE_PREFIX) else {
        return Err(SubjectError::Prefix { found: shown(common_name) });
    };
    if organisations != [NODE_GROUP] {
        return Err(SubjectError::Organisations {
            found: organisations.into_iter().map(shown).collect(),
        });
    }
    if !is_subdomain(name) {
        return Err(SubjectError::Name { found: shown(name) });
    }
    Ok(name.to_owned())
}

/// Formats a distinguished name for display.
pub(super) fn name_text(name: &X509Name<'_>) -> String {
    shown(&name.to_string())
}

/// Returns the issuer that a certificate names; it is not verified.
pub(super) fn issuer_of(certificate: &[u8]) -> String {
    X509Certificate::from_der(certificate).map_or_else(|_| "(unreadable)".to_owned(), |(_, parsed)| name_text(parsed.issuer()))
}

/// Returns text of an unauthenticated client, truncated for a log line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_LIMIT_CHARACTERS).collect()
}
