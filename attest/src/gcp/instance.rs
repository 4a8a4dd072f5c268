use serde::Serialize;

use crate::gcp::GcpError;

/// Longest project id, in characters. Project ids have 30 at most, after a domain and a colon for old ones.
const PROJECT_ID_LIMIT_CHARS: usize = 128;

/// Longest zone and longest instance name, in characters (RFC 1035, 2.3.4: a label).
const LABEL_LIMIT_CHARS: usize = 63;

/// A virtual machine of Google Compute Engine, as Google names it. Only a verifier makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GceInstance {
    project_id: String,
    project_number: u64,
    zone: String,
    instance_id: String,
    instance_name: String,
}

impl GceInstance {
    /// Checks the form of each value: these texts get into logs, records and the node's identity.
    pub(crate) fn new(
        project_id: String,
        project_number: u64,
        zone: String,
        instance_id: String,
        instance_name: String,
    ) -> Result<Self, GcpError> {
        let malformed = |field, found: &str| Err(GcpError::claim_form(field, found));
        if !is_name(&project_id, PROJECT_ID_LIMIT_CHARS, b"-.:") {
            return malformed("project_id", &project_id);
        }
        if project_number == 0 {
            return malformed("project_number", "0");
        }
        if !is_name(&zone, LABEL_LIMIT_CHARS, b"-") {
            return malformed("zone", &zone);
        }
        // One spelling for each number: the identity is compared as text.
        let number: u64 = instance_id.parse().unwrap_or(0);
        if number == 0 || number.to_string() != instance_id {
            return malformed("instance_id", &instance_id);
        }
        if !is_name(&instance_name, LABEL_LIMIT_CHARS, b"-") {
            return malformed("instance_name", &instance_name);
        }
        Ok(Self {
            project_id,
            project_number,
            zone,
            instance_id,
            instance_name,
        })
    }

    /// The project's id, such as `my-project`. Google never gives one twice.
    #[must_use]
    pub fn project_id(&self) -> &str {
        &self.project_id
    }

    #[must_use]
    pub const fn project_number(&self) -> u64 {
        self.project_number
    }

    /// The zone, such as `europe-west3-a`.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The zone's region, such as `europe-west3`.
    #[must_use]
    pub fn region(&self) -> &str {
        self.zone.rsplit_once('-').map_or(self.zone.as_str(), |(region, _)| region)
    }

    /// The instance's id: a decimal number, which Google never gives twice.
    #[must_use]
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// The instance's name. Another instance can have it after this one was deleted.
    #[must_use]
    pub fn instance_name(&self) -> &str {
        &self.instance_name
    }

    /// The stable identity of a node on this instance: `gcp:<project id>/<instance id>`.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("gcp:{}/{}", self.project_id, self.instance_id)
    }
}

fn is_name(text: &str, limit: usize, punctuation: &[u8]) -> bool {
    let known = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || punctuation.contains(byte);
    (1..=limit).contains(&text.len()) && text.as_bytes().iter().all(known)
}
