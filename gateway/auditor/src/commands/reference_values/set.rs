//! A prediction as a set of reference values of one generation.

use attest::HashAlg;
use attest::reference_sets::{EventValue, Generation, PcrValue, ReferenceSet, ReferenceSetError, SectionValue, Time, ValueOrigin, Values};
use attest::tpm::prediction::boot::BESIDE_PCR;
use attest::tpm::prediction::{BankDigests, DigestSubject, Prediction};

/// Longest name of a value, in characters: what a file of reference values takes in bytes is four times as much.
const NAME_LIMIT_CHARACTERS: usize = 64;

/// Returns a set with a generation of this name, time and author, made from files: each with its SHA-256.
///
/// For PCR 11 it has the values up to systemd's report that the initrd has begun, and right after it. A node attests in its initrd, and
/// later measurements are not part of the boot.
///
/// # Errors
/// [`ReferenceSetError`], if it could not be read again.
pub(crate) fn set(
    prediction: &Prediction,
    name: &str,
    added: Time,
    by: String,
    files: Vec<String>,
) -> Result<ReferenceSet, ReferenceSetError> {
    let banks = prediction.banks();
    let mut values = Values::default();
    for value in prediction.pcrs().iter().filter(|value| !value.is_behind_the_initrd()) {
        values.pcrs.push(PcrValue {
            pcr: value.pcr,
            digests: select_banks(banks, &value.values),
        });
    }
    for event in prediction.events() {
        let digests = select_banks(banks, &event.digests);
        let named = EventValue {
            digests: digests.clone(),
            name: Some(short(&event.what)),
        };
        match &event.what {
            DigestSubject::Image(_) => put(&mut values.images, named),
            // A certificate has one digest, whatever the bank is.
            DigestSubject::Authority(certificate) => put(
                &mut values.authorities,
                EventValue {
                    digests: [(HashAlg::Sha256, certificate.clone())].into(),
                    name: None,
                },
            ),
            DigestSubject::Command(_) | DigestSubject::GrubCommandLine(_) => put(&mut values.grub, named),
            DigestSubject::CommandLine(_) if event.pcr == BESIDE_PCR => put(&mut values.kernel_config, named),
            DigestSubject::File(_) | DigestSubject::Initrd | DigestSubject::CommandLine(_) => put(&mut values.files, named),
            DigestSubject::Section(section) => {
                let section = section.to_string().trim_start_matches('.').to_owned();
                put(&mut values.uki_sections, SectionValue { section, digests });
            }
            DigestSubject::BootOption
            | DigestSubject::Separator
            | DigestSubject::Variable(_)
            | DigestSubject::SectionName(_)
            | DigestSubject::Phase(_) => {}
        }
    }
    ReferenceSet::new(vec![Generation {
        name: name.to_owned(),
        added,
        by,
        from: ValueOrigin::Predicted { files },
        expires: None,
        values,
    }])
}

/// Adds a value, unless it is there: GRUB reads a file twice.
fn put<T: PartialEq>(list: &mut Vec<T>, value: T) {
    if !list.contains(&value) {
        list.push(value);
    }
}

fn select_banks(banks: &[HashAlg], digests: &BankDigests) -> attest::reference_sets::Digests {
    banks.iter().filter_map(|&bank| Some((bank, digests.get(bank)?.clone()))).collect()
}

fn short(what: &DigestSubject) -> String {
    let text = what.to_string();
    match text.char_indices().nth(NAME_LIMIT_CHARACTERS - 1) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
