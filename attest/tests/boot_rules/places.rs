//! Part of a boot that a refusal is about, and the values of another boot in that part.

use attest::TpmEvidenceError;
use attest::tpm::rules::{BootLocation, values as values_at};

use super::*;

fn found(check: Check, log: &LogBuilder) -> Option<Vec<String>> {
    let (_, claims) = claims(log);
    values_at(check, claims.measured_boot().unwrap())
}

#[test]
fn values_of_a_check_equal_the_recorded_values() {
    for log in [grub_machine(true), uki_machine()] {
        let recorded = values_of(&log);
        let digests = |values: &[attest::reference_sets::EventValue]| -> Vec<String> {
            values
                .iter()
                .flat_map(|value| value.digests.values().map(ToString::to_string))
                .collect()
        };
        let sections = recorded.uki_sections.iter();
        let sections = sections
            .flat_map(|section| section.digests.values().map(ToString::to_string))
            .collect();
        for (check, expected) in [
            (Check::Images, digests(&recorded.images)),
            (Check::Drivers, digests(&recorded.drivers)),
            (Check::Authorities, digests(&recorded.authorities)),
            (Check::Grub, digests(&recorded.grub)),
            (Check::Files, digests(&recorded.files)),
            (Check::UkiSections, sections),
            (Check::KernelConfig, digests(&recorded.kernel_config)),
            (Check::Mok, digests(&recorded.mok)),
            (Check::FirmwareVersion, recorded.firmware_versions.clone()),
        ] {
            assert_eq!(found(check, &log).unwrap_or_default(), expected, "{check}");
        }
        for check in [Check::SecureBoot, Check::Dbx] {
            assert_eq!(found(check, &log), None);
        }
    }
}

#[test]
fn boot_refusal_names_its_place() {
    let (uki, sets) = (uki_machine(), sets(vec![generation("first", 1, None, values_of(&uki_machine()))]));
    let place = |log: &LogBuilder, policy: &AppraisalPolicy| {
        let (_, claims) = claims(log);
        match appraise(claims, policy, at(5)).unwrap_err() {
            Reject::Tpm(error) => error.place(),
            _ => None,
        }
    };
    let more = uki
        .clone()
        .measured(4, crate::measured_boot::machine::APPLICATION, b"another image", b"");
    let value = found(Check::Images, &more).unwrap().pop().unwrap();
    let check = Check::Images;
    assert_eq!(place(&more, &policy(&[check], &sets)), Some(BootLocation::Value { check, value }));
    let off = grub_machine(false);
    assert_eq!(
        place(&off, &AppraisalPolicy::for_tpm(values(&[Check::SecureBoot], BTreeMap::new()))),
        Some(BootLocation::Pcr(7))
    );
    let pcr = BTreeMap::from([(4, AcceptedValues::AnyOf(vec![[1; 32].into()]))]);
    assert_eq!(place(&uki, &AppraisalPolicy::for_tpm(values(&[], pcr))), Some(BootLocation::Pcr(4)));
    assert_eq!(TpmEvidenceError::Signature.place(), None);
}
