use std::fmt;

use serde::{Deserialize, Serialize};

/// A partition of AWS: regions with accounts of their own. In another partition the same account number may belong to another customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AwsPartition {
    /// The commercial regions, `aws`.
    Aws,
    /// The regions in China, `aws-cn`.
    AwsCn,
    /// The regions of GovCloud (US), `aws-us-gov`.
    AwsUsGov,
    /// The European Sovereign Cloud.
    AwsEusc,
}

impl AwsPartition {
    /// Returns the partition of a region, by its name; `None` for a region of another partition, and for any other text.
    #[must_use]
    pub fn from_region(region: &str) -> Option<Self> {
        let parts: Vec<&str> = region.split('-').collect();
        let letters = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
        let number = |part: &str| !part.is_empty() && part.len() <= 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        match parts.as_slice() {
            ["us", "gov", place, count] if letters(place) && number(count) => Some(Self::AwsUsGov),
            ["cn", place, count] if letters(place) && number(count) => Some(Self::AwsCn),
            // `partitions.json` of AWS's SDKs (smithy-rs, botocore).
            ["eusc", country, place, count] if letters(country) && letters(place) && number(count) => Some(Self::AwsEusc),
            // The isolated partitions have us-iso-…, us-isob-…, eu-isoe-….
            [continent, place, count] if continent.len() == 2 && letters(continent) && letters(place) && number(count) => {
                (!place.starts_with("iso")).then_some(Self::Aws)
            }
            _ => None,
        }
    }
}

impl fmt::Display for AwsPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aws => "aws",
            Self::AwsCn => "aws-cn",
            Self::AwsUsGov => "aws-us-gov",
            Self::AwsEusc => "aws-eusc",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_is_derived_from_the_region() {
        let check = |region: &str, partition: Option<AwsPartition>| assert_eq!(AwsPartition::from_region(region), partition, "{region}");
        for region in ["us-east-1", "ap-southeast-2", "il-central-1", "mx-central-1", "eu-south-2"] {
            check(region, Some(AwsPartition::Aws));
        }
        check("cn-north-1", Some(AwsPartition::AwsCn));
        check("cn-northwest-1", Some(AwsPartition::AwsCn));
        check("us-gov-west-1", Some(AwsPartition::AwsUsGov));
        check("eusc-de-east-1", Some(AwsPartition::AwsEusc));
        for region in [
            "us-iso-east-1",
            "us-isob-east-1",
            "eu-isoe-west-1",
            "us-iso-1",
            "eusc-east-1",
            "eusc-de-east",
            "eusc-de-east-x",
            "eusc-de-east-1-1",
            "us-gov-1-1",
            "us-east",
            "us-east-",
            "us-east-1a",
            "US-east-1",
            "us-east-1-1",
            "",
            "--",
        ] {
            check(region, None);
        }
    }
}
