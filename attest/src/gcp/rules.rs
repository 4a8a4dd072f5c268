use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use crate::gcp::{GceInstance, GcpError, VerifiedIdentity};
use crate::withheld::Withheld;

/// A pool's rules for instances. Rules that are left out are not checked, except for the project; an empty list accepts nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GceRules {
    /// The instance is in one of these.
    pub projects: Vec<Project>,
    /// The instance is in one of these zones, or in one of `regions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
    /// The instance is in one of these regions, or in one of `zones`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<String>>,
    /// The instance's name matches one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_names: Option<Vec<NamePattern>>,
    /// The instance runs as one of these service accounts: email addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_accounts: Option<Vec<String>>,
    /// The instance has at least one of these licences: codes, decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licenses: Option<Vec<String>>,
    /// The instance was created at most this long ago, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instance_age_seconds: Option<u64>,
}

/// A project, by both of its names: Google gives neither twice, and a mistyped id does not have the number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Project {
    /// The id, such as `my-project`.
    pub id: String,
    pub number: u64,
}

/// Longest name pattern, in characters: an instance's name has 63 at most.
const PATTERN_LIMIT_CHARS: usize = 63;

/// A pattern for instance names: `*` stands for any characters, also for none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(String);

impl TryFrom<String> for NamePattern {
    type Error = String;

    fn try_from(pattern: String) -> Result<Self, Self::Error> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'*');
        if !(1..=PATTERN_LIMIT_CHARS).contains(&pattern.len()) || !pattern.bytes().all(known) {
            return Err(format!(
                "{pattern:?} is not a pattern of an instance name: 1 to {PATTERN_LIMIT_CHARS} of a-z, 0-9, '-' and '*'"
            ));
        }
        Ok(Self(pattern))
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0
    }
}

impl NamePattern {
    /// Returns whether the pattern matches all of `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.0, name)
    }
}

/// Returns whether the pattern matches all of `name`: `*` matches any characters, also none.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        // The earliest place leaves most for the pieces after it.
        let Some((_, after)) = rest.split_once(piece) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

/// Compares what an identity token has proven with a pool's rules.
///
/// # Errors
/// [`GcpError`]: the variant of the first rule that refuses.
pub fn appraise(identity: &VerifiedIdentity, rules: &GceRules, now: UnixTime) -> Result<(), GcpError> {
    appraise_instance(&identity.instance, rules)?;
    let email = &identity.service_account.email;
    if let Some(accepted) = &rules.service_accounts
        && !accepted.contains(email)
    {
        return Err(GcpError::ServiceAccountRefused {
            found: email.clone(),
            accepted: Withheld::one_of(accepted),
        });
    }
    if let Some(accepted) = &rules.licenses
        && !identity.licenses.iter().any(|license| accepted.contains(license))
    {
        return Err(GcpError::LicenseRefused {
            found: list(&identity.licenses),
            accepted: Withheld::one_of(accepted),
        });
    }
    if let Some(limit) = rules.max_instance_age_seconds {
        let age = now.as_secs().saturating_sub(identity.created);
        if age > limit {
            return Err(GcpError::InstanceTooOld {
                age,
                accepted: Withheld::at_most_seconds(limit),
            });
        }
    }
    Ok(())
}

/// Compares what a vTPM's certificate has proven with a pool's rules. A rule about something that certificates do not state refuses.
///
/// # Errors
/// [`GcpError`]: the variant of the first rule that refuses.
pub fn appraise_vtpm(instance: &GceInstance, rules: &GceRules) -> Result<(), GcpError> {
    appraise_instance(instance, rules)?;
    let unprovable = [
        ("service_accounts", rules.service_accounts.is_some()),
        ("licenses", rules.licenses.is_some()),
        ("max_instance_age_seconds", rules.max_instance_age_seconds.is_some()),
    ];
    match unprovable.into_iter().find(|(_, given)| *given) {
        Some((rule, _)) => Err(GcpError::RuleNotProvable {
            accepted: Withheld::from_text(format!("the values of its rule {rule}")),
        }),
        None => Ok(()),
    }
}

fn appraise_instance(instance: &GceInstance, rules: &GceRules) -> Result<(), GcpError> {
    let (id, number) = (instance.project_id(), instance.project_number());
    if !rules.projects.iter().any(|project| project.id == id && project.number == number) {
        let accepted: Vec<String> = rules
            .projects
            .iter()
            .map(|project| format!("{} ({})", project.id, project.number))
            .collect();
        return Err(GcpError::ProjectRefused {
            found: format!("{id} ({number})"),
            accepted: Withheld::one_of(&accepted),
        });
    }
    let places = |rule: &Option<Vec<String>>| rule.clone().unwrap_or_default();
    let (zones, regions) = (places(&rules.zones), places(&rules.regions));
    let given = rules.zones.is_some() || rules.regions.is_some();
    if given && !zones.iter().any(|zone| zone == instance.zone()) && !regions.iter().any(|region| region == instance.region()) {
        return Err(GcpError::LocationRefused {
            found: instance.zone().to_owned(),
            accepted: Withheld::one_of(&[zones, regions].concat()),
        });
    }
    let name = instance.instance_name();
    match &rules.instance_names {
        Some(patterns) if !patterns.iter().any(|pattern| pattern.matches(name)) => Err(GcpError::NameRefused {
            found: name.to_owned(),
            accepted: Withheld::one_of(&patterns.iter().map(|pattern| pattern.0.as_str()).collect::<Vec<_>>()),
        }),
        _ => Ok(()),
    }
}

/// Values for a message.
fn list(values: &[String]) -> String {
    if values.is_empty() { "none".to_owned() } else { values.join(", ") }
}
