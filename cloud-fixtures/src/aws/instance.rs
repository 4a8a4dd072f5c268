//! An EC2 instance, as AWS knows it.

use serde_json::{Value, json};

use crate::clock::rfc3339;

/// The facts that AWS states about an instance.
#[derive(Debug, Clone)]
pub struct AwsInstance {
    /// Account id, with twelve digits.
    pub account: String,
    /// Region, such as `eu-central-1`.
    pub region: String,
    /// Zone, such as `eu-central-1a`.
    pub availability_zone: String,
    /// Instance id, such as `i-0123456789abcdef0`.
    pub instance_id: String,
    /// Image id, such as `ami-0123456789abcdef0`.
    pub image_id: String,
    /// Type, such as `m7i.large`.
    pub instance_type: String,
    /// Time when it was started, in seconds since 1970.
    pub pending_time: u64,
    /// Private IPv4 address of the instance.
    pub private_ip: String,
    /// Name of the role of its instance profile.
    pub role: String,
}

impl AwsInstance {
    /// Returns an example, started at this time (seconds since 1970).
    #[must_use]
    pub fn example(pending_time: u64) -> Self {
        Self {
            account: "123456789012".to_owned(),
            region: "eu-central-1".to_owned(),
            availability_zone: "eu-central-1a".to_owned(),
            instance_id: "i-0123456789abcdef0".to_owned(),
            image_id: "ami-0b76fe9a9986f66a7".to_owned(),
            instance_type: "m7i.large".to_owned(),
            pending_time,
            private_ip: "10.0.1.242".to_owned(),
            role: "worker-role".to_owned(),
        }
    }

    /// Its identity document. AWS signs the text, which is this with line breaks.
    #[must_use]
    pub fn identity_document(&self) -> Value {
        json!({
            "accountId": self.account,
            "architecture": "x86_64",
            "availabilityZone": self.availability_zone,
            "billingProducts": null,
            "devpayProductCodes": null,
            "marketplaceProductCodes": null,
            "imageId": self.image_id,
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "kernelId": null,
            "pendingTime": rfc3339(self.pending_time),
            "privateIp": self.private_ip,
            "ramdiskId": null,
            "region": self.region,
            "version": "2017-09-30",
        })
    }
}
