//! Evidence from this node's cloud: the offer, and the answers to a gateway's task.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use attest_wire::Kind;
use attest_wire::aws::{nitro_tpm as nitro_tpm_document, sts};
use attest_wire::azure::attested_document::ImdsNonce;
use attest_wire::gcp::Audience;
use attest_wire::protocol::{
    Attester, AzureEvidence, BearerText, Evidence, GcpEvidence, GcpTask, IdentityDocumentEvidence, NitroTpmEvidence, Nothing, StsEvidence,
    Task,
};
use zeroize::Zeroizing;

use crate::cloud::{Cloud, CloudError, MetadataClient, aws, azure, gcp, nitro_tpm};
use crate::deadline::Deadline;
use crate::failure::{Failure, printable};
use crate::first_boot_secret::{ClaimPurpose, ClaimSecret, FirstBootSecret};
use crate::platform::CloudInstance;

use super::azure_vtpm::AzureVtpmSource;
use super::binding::ChallengeBinding;
use super::{refuse, sha256};

/// Kinds of evidence from a cloud.
pub const KINDS: [Kind; 6] = [
    Kind::Gcp,
    Kind::AwsIdentityDocument,
    Kind::AwsNitroTpm,
    Kind::AwsSts,
    Kind::Azure,
    Kind::AzureVtpm,
];
/// Time limit for finding the cloud's evidence, except for evidence that is provided late. The network is up by then: a gateway has
/// answered.
const FIND_LIMIT: Duration = Duration::from_secs(5);

/// Result of the search for the cloud's evidence.
#[derive(Debug, Default)]
pub struct CloudEvidence<'a> {
    /// Means of attestation that were found, if any.
    pub means: Option<CloudMeans<'a>>,
    /// Messages about means that are missing.
    pub notes: Vec<String>,
}

/// Cloud's evidence for this node, with the node's first-boot secret.
pub struct CloudMeans<'a> {
    source: CloudProvider<'a>,
    /// Secret that distinguishes this node from any other client with the cloud's evidence for the instance.
    secret: ClaimSecret,
}

enum CloudProvider<'a> {
    /// Identity tokens from GCP's metadata server.
    Gcp(&'a MetadataClient),
    /// Evidence from the metadata service, the role and the NitroTPM.
    Aws(Box<AwsMeans<'a>>),
    /// Attested documents, and the key that Azure has put into the vTPM.
    Azure(AzureMeans<'a>),
}

/// Sources of evidence on an EC2 instance.
pub struct AwsMeans<'a> {
    session: aws::ImdsSession<'a>,
    /// Name of the role. Without it there are no credentials for STS.
    role: Option<String>,
    /// AWS's program that asks the NitroTPM, if there are both.
    nitro_tpm: Option<NitroTpmSource>,
}

/// Access to the NitroTPM through AWS's program.
#[derive(Debug, Clone)]
pub struct NitroTpmSource {
    /// Path of AWS's program.
    pub program: PathBuf,
    /// Folder for the program's input file.
    pub folder: PathBuf,
}

/// Sources of evidence on an Azure VM.
struct AzureMeans<'a> {
    metadata: &'a MetadataClient,
    /// Its vTPM, if there is one with Azure's key.
    vtpm: Option<AzureVtpmSource>,
}

/// TPM access that a cloud's evidence may need.
#[derive(Debug, Clone, Default)]
pub struct OwnTpm {
    /// Access to a NitroTPM, if AWS's program is installed.
    pub nitro_tpm: Option<NitroTpmSource>,
    /// The TCTI of the TPM, if there is one.
    pub tcti: Option<String>,
    /// Path of the firmware's event log.
    pub event_log: PathBuf,
}

impl fmt::Debug for CloudMeans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            CloudProvider::Gcp(_) => "Gcp",
            CloudProvider::Aws(_) => "Aws",
            CloudProvider::Azure(_) => "Azure",
        })
    }
}

impl<'a> CloudMeans<'a> {
    /// Finds the cloud's evidence for this instance, of the kinds in `takes`.
    ///
    /// # Errors
    /// The reason why the instance cannot show its cloud's evidence.
    pub fn find(
        instance: &'a CloudInstance,
        takes: &BTreeSet<Kind>,
        own_tpm: OwnTpm,
        claimants: &mut FirstBootSecret,
        deadline: Deadline,
    ) -> Result<CloudEvidence<'a>, Failure> {
        let mut notes = Vec::new();
        let Some(source) = CloudProvider::find(instance, takes, own_tpm, deadline, &mut notes)? else {
            return Ok(CloudEvidence { means: None, notes });
        };
        // Whatever else the gateway may ask for: which kinds it does is known only when it has been told who claims them.
        let secret = claimants.secret(deadline)?;
        let means = Some(Self { source, secret });
        Ok(CloudEvidence { means, notes })
    }

    /// Adds the cloud's evidence to an offer for the gateway at this base.
    pub(super) fn offer(&self, takes: &BTreeSet<Kind>, base: &str, offer: &mut Attester) {
        self.source.offer(takes, offer);
        if offer.kinds().iter().any(|kind| kind.is_of_a_cloud()) {
            offer.claimant_sha256 = sha256(&self.claimant(base)).ok();
        }
    }

    fn claimant(&self, base: &str) -> Zeroizing<Vec<u8>> {
        self.secret.claimant(ClaimPurpose::Instance, base)
    }

    /// Answers the cloud's members of a task, which were offered. Returns the instance's identities, as far as they can be read.
    pub(super) fn answer(
        &self,
        task: &Task,
        binding: &ChallengeBinding<'_>,
        base: &str,
        evidence: &mut Evidence,
        deadline: Deadline,
    ) -> Result<Option<String>, Failure> {
        // Told to nobody who has not asked for the instance.
        if task.kinds().iter().any(|kind| kind.is_of_a_cloud()) {
            evidence.claimant = Some(self.claimant(base).to_vec().into());
        }
        self.source.answer(task, binding, evidence, deadline)
    }
}

impl<'a> CloudProvider<'a> {
    fn find(
        instance: &'a CloudInstance,
        takes: &BTreeSet<Kind>,
        own_tpm: OwnTpm,
        deadline: Deadline,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, Failure> {
        let metadata = &instance.metadata;
        let soon = deadline.at_most(FIND_LIMIT);
        Ok(match instance.cloud {
            Cloud::Gcp if takes.contains(&Kind::Gcp) => gcp::has_identity(metadata, soon)?.then_some(Self::Gcp(metadata)),
            Cloud::Aws
                if takes
                    .iter()
                    .any(|kind| matches!(kind, Kind::AwsIdentityDocument | Kind::AwsNitroTpm | Kind::AwsSts)) =>
            {
                let session = aws::ImdsSession::open(metadata, soon)?;
                let role = if takes.contains(&Kind::AwsSts) { session.role(soon)? } else { None };
                let nitro_tpm = own_tpm.nitro_tpm;
                Some(Self::Aws(Box::new(AwsMeans { session, role, nitro_tpm })))
            }
            Cloud::Azure => AzureMeans::find(metadata, takes, own_tpm, deadline, notes)?.map(Self::Azure),
            Cloud::Gcp | Cloud::Aws => None,
        })
    }

    fn offer(&self, takes: &BTreeSet<Kind>, offer: &mut Attester) {
        let if_taken = |kind: Kind| takes.contains(&kind).then_some(Nothing {});
        match self {
            Self::Gcp(_) => offer.gcp = if_taken(Kind::Gcp),
            Self::Azure(azure) => {
                offer.azure = if_taken(Kind::Azure);
                let vtpm = azure.vtpm.as_ref().filter(|_| takes.contains(&Kind::AzureVtpm));
                offer.azure_vtpm = vtpm.map(AzureVtpmSource::presented);
            }
            Self::Aws(aws) => {
                offer.aws_identity_document = if_taken(Kind::AwsIdentityDocument);
                offer.aws_nitro_tpm = aws.nitro_tpm.as_ref().and_then(|_| if_taken(Kind::AwsNitroTpm));
                offer.aws_sts = aws.role.as_ref().and_then(|_| if_taken(Kind::AwsSts));
            }
        }
    }

    fn answer(
        &self,
        task: &Task,
        binding: &ChallengeBinding<'_>,
        evidence: &mut Evidence,
        deadline: Deadline,
    ) -> Result<Option<String>, Failure> {
        match self {
            Self::Gcp(metadata) => {
                let Some(GcpTask { gateway }) = &task.gcp else { return Ok(None) };
                if !gcp::is_gateway_name(gateway) {
                    return Err(refuse(format!(
                        "an identity token for {:?}, which is not a host name",
                        printable(gateway)
                    )));
                }
                let audience = Audience::new(gateway, binding.purpose, binding.pool, binding.nonce, binding.server_key);
                let token = gcp::identity_token(metadata, &audience, deadline)?;
                let identity = gcp::instance_of(&token);
                evidence.gcp = Some(GcpEvidence {
                    token: BearerText(token.to_string()),
                });
                Ok(identity)
            }
            Self::Azure(azure) => azure.answer(task, binding, evidence, deadline),
            Self::Aws(aws) => {
                aws.answer(task, binding, evidence, deadline)?;
                let asked = task.aws_identity_document.is_some() || task.aws_nitro_tpm.is_some() || task.aws_sts.is_some();
                Ok(asked.then(|| aws.session.instance(deadline)).flatten())
            }
        }
    }
}

impl<'a> AzureMeans<'a> {
    fn find(
        metadata: &'a MetadataClient,
        takes: &BTreeSet<Kind>,
        own_tpm: OwnTpm,
        deadline: Deadline,
        notes: &mut Vec<String>,
    ) -> Result<Option<Self>, Failure> {
        let found = match own_tpm.tcti.filter(|_| takes.contains(&Kind::AzureVtpm)) {
            // What is waited for leaves as much time for what comes after it.
            Some(tcti) => AzureVtpmSource::find(tcti, &own_tpm.event_log, metadata, deadline.share(2)),
            None => Ok(None),
        };
        let vtpm = match found {
            Ok(found) => found.map(|(vtpm, note)| {
                notes.extend(note);
                vtpm
            }),
            // Of two that a pool may take, one may be out of order.
            Err(failure) if takes.contains(&Kind::Azure) => {
                notes.push(format!("evidence left out: {}: {failure}", Kind::AzureVtpm));
                None
            }
            Err(failure) => return Err(failure),
        };
        Ok((takes.contains(&Kind::Azure) || vtpm.is_some()).then_some(Self { metadata, vtpm }))
    }

    fn answer(
        &self,
        task: &Task,
        binding: &ChallengeBinding<'_>,
        evidence: &mut Evidence,
        deadline: Deadline,
    ) -> Result<Option<String>, Failure> {
        let mut identity = None;
        if let (Some(task), Some(vtpm)) = (&task.azure_vtpm, &self.vtpm) {
            evidence.azure_vtpm = Some(vtpm.quote(task, binding, deadline)?);
            identity = Some(vtpm.identity());
        }
        if task.azure.is_some() {
            let nonce = ImdsNonce::derive(&binding.qualifying_data());
            let signature = azure::attested_document(self.metadata, &nonce, deadline)?;
            identity = azure::machine_of(&signature).or(identity);
            evidence.azure = Some(AzureEvidence {
                signature: BearerText(signature),
            });
        }
        Ok(identity)
    }
}

impl AwsMeans<'_> {
    fn answer(&self, task: &Task, binding: &ChallengeBinding<'_>, evidence: &mut Evidence, deadline: Deadline) -> Result<(), CloudError> {
        let ChallengeBinding {
            nonce,
            purpose,
            pool,
            server_key,
        } = *binding;
        if task.aws_identity_document.is_some() {
            evidence.aws_identity_document = Some(IdentityDocumentEvidence {
                pkcs7: BearerText(self.session.identity_document(deadline)?),
            });
        }
        if let (Some(_), Some(NitroTpmSource { program, folder })) = (task.aws_nitro_tpm, &self.nitro_tpm) {
            let user_data = nitro_tpm_document::expected_user_data(nonce, purpose, pool, server_key);
            let document = nitro_tpm::document(program, folder, nonce, &user_data, deadline)?;
            evidence.aws_nitro_tpm = Some(NitroTpmEvidence { document: document.into() });
        }
        if let (Some(_), Some(role)) = (task.aws_sts, &self.role) {
            let server_id = sts::expected_server_id(nonce, purpose, pool, server_key);
            let request = self.session.sts_request(role, &server_id, SystemTime::now(), deadline)?;
            evidence.aws_sts = Some(StsEvidence { request });
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest_wire::azure::vtpm::{AzureVtpmAttester, VmId};
    use attest_wire::protocol::Blob;

    use super::*;
    use crate::cloud::MetadataAddress;

    /// A gateway refuses unknown kinds, regardless of other gateways in the pointer.
    #[test]
    fn offers_each_gateway_only_its_accepted_kinds() {
        let presented = AzureVtpmAttester {
            ak_public: Blob::default(),
            ak_certificate: Blob::default(),
            ak_intermediates: Vec::new(),
            vm_id: VmId::try_from("b1310a36-d400-46f6-82cb-6217df846586".to_owned()).unwrap(),
        };
        let metadata = MetadataClient::new(&MetadataAddress::default()).unwrap();
        let source = CloudProvider::Azure(AzureMeans {
            metadata: &metadata,
            vtpm: Some(AzureVtpmSource::presenting(presented)),
        });
        let check = |takes: &[Kind]| {
            let takes: BTreeSet<Kind> = takes.iter().copied().collect();
            let mut offer = Attester::default();
            source.offer(&takes, &mut offer);
            assert_eq!(offer.kinds(), takes);
        };
        check(&[Kind::Azure, Kind::AzureVtpm]);
        check(&[Kind::Azure]);
        check(&[Kind::AzureVtpm]);
        check(&[]);
    }
}
