//! Disclosure in refusals: a refused node learns what it showed, and nothing of what the pool accepts.
use std::collections::BTreeSet;

use attest::aws::identity_document::{IdentityDocumentError, ValueRule as DocumentRule};
use attest::aws::nitro_tpm::NitroTpmError;
use attest::aws::sts::StsError;
use attest::azure::attested_document::{AttestedDocumentError, AzureValueRule as AzureRule};
use attest::azure::vtpm::AzureVtpmError;
use attest::condition::ConditionRefusal;
use attest::gcp::GcpError;
use attest::tpm::rules::{BootRefusal, Check, EventDetail, Excerpt};
use attest::tpm::vtpm::VtpmError;
use attest::{HashAlg, Kind, Reject, TpmEvidenceError, Withheld};

const MARK: &str = "what-the-pool-accepts";

fn withheld() -> Withheld {
    Withheld::from_text(MARK)
}

fn found() -> String {
    "what-the-node-showed".to_owned()
}

/// Lists the variants that withhold something from a refused node. The match has no `_`: a new variant does not compile until it is listed.
macro_rules! keeps {
    ($error:ident, tells: $($tells:ident)*, keeps: $($keeps:ident)*) => {
        impl Kept for $error {
            const KEEPS: &'static [&'static str] = &[$(stringify!($keeps)),*];
            fn keeps(&self) -> Option<&'static str> {
                match self {
                    $($error::$tells { .. } => None,)*
                    $($error::$keeps { .. } => Some(stringify!($keeps)),)*
                }
            }
        }
    };
}

trait Kept {
    const KEEPS: &'static [&'static str];
    fn keeps(&self) -> Option<&'static str>;
}

keeps!(Reject,
    tells: Request ChallengeExpired KindsShown NothingToHoldAgainst IdentitiesDiffer NotInInventory ClaimantMissing Claimant TokenMissing NamedTwice
        MachineEnds HasNode OlderThanMachine Tpm Gcp AwsIdentityDocument AwsNitroTpm AwsSts Azure AzureVtpm Condition,
    keeps: KindsOffered KindsAccepted InventoryTpm OfAnotherSet OfTwoPools);
keeps!(BootRefusal,
    tells: NotProven SecureBootOff Nothing,
    keeps: Dbx NotAccepted FirmwareVersion);
keeps!(ConditionRefusal,
    tells:,
    keeps: NotMet Undecided);
keeps!(TpmEvidenceError,
    tells: BootIsOver Wire EkTemplate EkNotEndorsed EkUnknown EkCertificateUnread EkCertificate EkCertificateMismatch AkAttributes AkAlgorithm AkHierarchy CredentialMismatch
        SignatureScheme Signature ExtraData Selection PcrDigest PcrNotQuoted PcrMissing PcrLength EventLogMissing EventLog EventLogMismatch Vtpm Boot,
    keeps: PcrMismatch ReferenceSelection);
keeps!(VtpmError,
    tells: Certificate Usage ExtensionMissing Extension NotProduction EkMismatch Instance,
    keeps:);
keeps!(GcpError,
    tells: TooLarge Parts Malformed Algorithm HeaderField KeyIdMissing KeyUnknown Signature Issuer Audience AudienceCount Expired TooOld
        IssuedInFuture Lifetime NotAnInstance ClaimMissing ClaimForm CreatedAfterIssue AuthorizedParty EmailNotVerified
        InstanceMismatch,
    keeps: ProjectRefused LocationRefused NameRefused ServiceAccountRefused LicenseRefused InstanceTooOld RuleNotProvable);
keeps!(IdentityDocumentError,
    tells: Pkcs7 SignerUnknown CertificateValidity Json Field RegionMismatch Replayable Future,
    keeps: TooOld NotAccepted);
keeps!(NitroTpmError,
    tells: BootIsOver TooLarge Cbor Cose Tag Algorithm Unprotected SignatureLength FieldMissing FieldRepeated FieldLength CabundleLength
        CertificateUnreadable CertificateRepeated UnknownIssuer NotYetValid Expired ChainSignature ChainAlgorithm CertificateUsage Path
        LeafKey Signature Shape Digest PcrIndex PcrRepeated PcrLength ModuleId ModuleIdNotCertified Nonce UserData AccountForm
        OtherInstance PcrMissing,
    keeps: AccountUnknown Account Region Instance Age PcrMismatch);
keeps!(StsError,
    tells: Method Body HeaderUnknown HeaderRepeated HeaderMissing HeaderValue DateForm Date ServerId ServerIdNotSigned SignedHeaders
        Authorization Scope SecurityToken Refused Status ContentType AnswerTooLarge Answer AnswerAccount NotAnInstance UserId,
    keeps: Url Account Role Instance);
keeps!(AttestedDocumentError,
    tells: Pkcs7 Chain Json Field Nonce Future Expired,
    keeps: TooOld NotAccepted);
// What its machines and PCRs keep, those keep themselves.
keeps!(AzureVtpmError,
    tells: Certificate Usage Name OtherKey VmId Machine Tpm,
    keeps:);

#[track_caller]
fn check<E: Kept + Clone + std::fmt::Debug + Into<Reject>>(refusals: Vec<E>) {
    let tested: BTreeSet<&str> = refusals.iter().filter_map(Kept::keeps).collect();
    assert_eq!(
        tested,
        E::KEEPS.iter().copied().collect(),
        "each variant that keeps something is tested"
    );
    for refusal in refusals {
        let reject: Reject = refusal.clone().into();
        let (told, detail) = (reject.client_message(), reject.detail());
        assert!(!told.contains(MARK), "{refusal:?}: {told}");
        assert!(!format!("{refusal:?} {reject:?} {reject}").contains(MARK), "{told}");
        assert_eq!(
            detail,
            format!("{told}; the pool accepts {MARK}"),
            "the log and the record have both"
        );
    }
}

#[test]
fn attack_32_refusals_do_not_disclose_accepted_values() {
    check(vec![
        Reject::KindsOffered {
            offered: BTreeSet::from([Kind::Tpm]),
            accepted: withheld(),
        },
        Reject::KindsAccepted {
            shown: BTreeSet::from([Kind::Tpm]),
            accepted: withheld(),
        },
        Reject::InventoryTpm {
            machine: found(),
            found: found(),
            accepted: withheld(),
        },
        Reject::OfAnotherSet {
            machine: found(),
            accepted: withheld(),
        },
        Reject::OfTwoPools {
            machine: found(),
            accepted: withheld(),
        },
    ]);
    let boot = [
        BootRefusal::Dbx {
            found: 1,
            accepted: withheld(),
        },
        BootRefusal::NotAccepted {
            check: Check::Images,
            event: 17,
            bank: HashAlg::Sha256,
            digest: found(),
            said: EventDetail::Nothing,
            accepted: withheld(),
        },
        BootRefusal::FirmwareVersion {
            found: Excerpt::new(&found()),
            accepted: withheld(),
        },
    ];
    check(boot.to_vec());
    check(vec![
        ConditionRefusal::NotMet { accepted: withheld() },
        ConditionRefusal::Undecided { accepted: withheld() },
    ]);
    check(vec![
        TpmEvidenceError::PcrMismatch {
            index: 4,
            bank: HashAlg::Sha256,
            quoted: found(),
            accepted: withheld(),
        },
        TpmEvidenceError::ReferenceSelection {
            quoted: found(),
            accepted: withheld(),
        },
    ]);
    check(vec![
        AzureVtpmError::Machine(AttestedDocumentError::NotAccepted {
            rule: AzureRule::Vm,
            found: found(),
            accepted: withheld(),
        }),
        AzureVtpmError::Tpm(TpmEvidenceError::PcrMismatch {
            index: 4,
            bank: HashAlg::Sha256,
            quoted: found(),
            accepted: withheld(),
        }),
    ]);
}

#[test]
fn instance_refusals_do_not_disclose_accepted_values() {
    let (found, accepted) = (found(), withheld());
    macro_rules! refusals {
        ($error:ident: $($variant:ident)*) => {
            vec![$($error::$variant { found: found.clone(), accepted: accepted.clone() }),*]
        };
    }
    let mut gcp = refusals!(GcpError: ProjectRefused LocationRefused NameRefused ServiceAccountRefused LicenseRefused);
    gcp.push(GcpError::InstanceTooOld {
        age: 1,
        accepted: withheld(),
    });
    gcp.push(GcpError::RuleNotProvable { accepted: withheld() });
    check(gcp);
    check(vec![
        IdentityDocumentError::TooOld {
            age_seconds: 1,
            accepted: withheld(),
        },
        IdentityDocumentError::NotAccepted {
            rule: DocumentRule::Account,
            found: found.clone(),
            accepted: withheld(),
        },
    ]);
    let mut nitro = refusals!(NitroTpmError: Account Region Instance);
    nitro.push(NitroTpmError::AccountUnknown {
        instance: found.clone(),
        accepted: withheld(),
    });
    nitro.push(NitroTpmError::Age {
        made_ms: 1,
        now_ms: 2,
        accepted: withheld(),
    });
    nitro.push(NitroTpmError::PcrMismatch {
        index: 4,
        found: [4; 32].into(),
        accepted: withheld(),
    });
    check(nitro);
    check(refusals!(StsError: Url Account Role Instance));
    check(vec![
        AttestedDocumentError::TooOld {
            age_seconds: 1,
            accepted: withheld(),
        },
        AttestedDocumentError::NotAccepted {
            rule: AzureRule::Subscription,
            found: found.clone(),
            accepted: withheld(),
        },
    ]);
}

#[test]
fn log_lists_first_accepted_values_and_counts_rest() {
    let says = |accepted: Withheld| {
        let told = GcpError::NameRefused { found: found(), accepted };
        let detail = Reject::from(told).detail();
        detail.split_once("; the pool accepts ").unwrap().1.to_owned()
    };
    assert_eq!(says(Withheld::one_of::<u8>(&[])), "none");
    assert_eq!(says(Withheld::one_of(&[1, 2])), "1, 2");
    assert_eq!(says(Withheld::one_of(&[1, 2, 3, 4, 5, 6, 7, 8])), "1, 2, 3, 4, 5, 6, 7, 8");
    assert_eq!(
        says(Withheld::one_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9])),
        "1, 2, 3, 4, 5, 6, 7, 8 or 1 more"
    );
    assert_eq!(says(Withheld::at_most_seconds(60)), "at most 60 s");
}
