//! An instance of Compute Engine, as Google knows it.

use serde_json::{Value, json};

pub const PROJECT_ID: &str = "example-project";
pub const PROJECT_NUMBER: u64 = 739_419_398_126;
pub const ZONE: &str = "europe-west3-a";
pub const INSTANCE_ID: u64 = 152_986_662_232_938_449;
pub const INSTANCE_NAME: &str = "worker-7";
/// The unique id of its service account.
pub const SERVICE_ACCOUNT_ID: &str = "104029292853099978293";

/// Lifetime of an identity token.
const LIFETIME_SECONDS: u64 = 3600;

/// The facts that Google states about an instance.
#[derive(Debug, Clone)]
pub struct GoogleInstance {
    /// Project id, such as `example-project`.
    pub project_id: String,
    pub project_number: u64,
    /// Zone, such as `europe-west3-a`.
    pub zone: String,
    /// Instance id, of 64 bits.
    pub instance_id: u64,
    /// Name, such as `worker-7`.
    pub instance_name: String,
    /// Time when it was created, in seconds since 1970.
    pub created: u64,
    /// Email address of its service account.
    pub service_account: String,
    /// Unique id of its service account.
    pub service_account_id: String,
    /// Licence codes of its image.
    pub licenses: Vec<String>,
}

impl GoogleInstance {
    /// Returns an example, made at this time (seconds since 1970).
    #[must_use]
    pub fn example(created: u64) -> Self {
        Self {
            project_id: PROJECT_ID.to_owned(),
            project_number: PROJECT_NUMBER,
            zone: ZONE.to_owned(),
            instance_id: INSTANCE_ID,
            instance_name: INSTANCE_NAME.to_owned(),
            created,
            service_account: format!("{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"),
            service_account_id: SERVICE_ACCOUNT_ID.to_owned(),
            licenses: vec!["1000204".to_owned(), "5926592092274602096".to_owned()],
        }
    }

    /// Returns the claims of an identity token for `format=full&licenses=TRUE`, issued at this time (seconds since 1970).
    #[must_use]
    pub fn claims(&self, audience: &str, issued: u64) -> Value {
        let mut claims = self.standard_claims(audience, issued);
        claims["email"] = json!(self.service_account);
        claims["email_verified"] = json!(true);
        claims["google"] = json!({"compute_engine": {
            "instance_confidentiality": 1,
            "instance_creation_timestamp": self.created,
            "instance_id": self.instance_id.to_string(),
            "instance_name": self.instance_name,
            "license_id": self.licenses,
            "project_id": self.project_id,
            "project_number": self.project_number,
            "zone": self.zone,
        }});
        claims
    }

    /// Returns the claims for `format=standard`, the default, which do not name the instance.
    #[must_use]
    pub fn standard_claims(&self, audience: &str, issued: u64) -> Value {
        json!({
            "aud": audience,
            "azp": self.service_account_id,
            "exp": issued + LIFETIME_SECONDS,
            "iat": issued,
            "iss": "https://accounts.google.com",
            "sub": self.service_account_id,
        })
    }
}
