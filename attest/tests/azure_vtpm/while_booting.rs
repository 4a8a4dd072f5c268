//! Rule that accepts a machine only while it boots.

use attest_wire::tpm::boot_complete::{self, BOOT_COMPLETE_PCR, CLOSING_WORD, OS_SEPARATOR};

use super::*;

#[test]
fn attack_47_vtpm_after_boot_complete_is_refused() {
    let text = "only_while_booting = true\n[pcrs]\n\"0-7\" = \"not checked\"\n11 = \"not checked\"";
    let judged = |words: &[&[u8]], text: &str| {
        let value = words
            .iter()
            .fold(vec![0; 32], |value, word| boot_complete::extended(HashAlg::Sha256, &value, word));
        let case = Case::new().but(|case| {
            case.vtpm.pcrs.insert(BOOT_COMPLETE_PCR, value);
            case.quoted.push(BOOT_COMPLETE_PCR);
            case.asked.push(BOOT_COMPLETE_PCR);
        });
        appraise(
            &case.verify().unwrap(),
            &rules(text).unwrap(),
            UnixTime::since_unix_epoch(std::time::Duration::ZERO),
        )
        .map_err(|error| error.code())
    };
    assert_eq!(judged(&[], text), Ok(()));
    assert_eq!(judged(&[OS_SEPARATOR], text), Ok(()));
    for words in [&[CLOSING_WORD][..], &[OS_SEPARATOR, CLOSING_WORD], &[b"another"]] {
        assert_eq!(judged(words, text), Err("tpm-boot-is-over"));
    }
    let unchecked = format!("{text}\n{BOOT_COMPLETE_PCR} = \"not checked\"").replace("true", "false");
    assert_eq!(judged(&[CLOSING_WORD], &unchecked), Ok(()));
    let unasked = appraise(
        &Case::new().verify().unwrap(),
        &rules(text).unwrap(),
        UnixTime::since_unix_epoch(std::time::Duration::ZERO),
    )
    .map_err(|error| error.code());
    assert_eq!(unasked, Err("quote-selection"));
    assert!(rules(text).unwrap().selection().unwrap().pcrs().contains(&BOOT_COMPLETE_PCR));
    let read = rules(text).unwrap();
    let again: AzureVtpmRules = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
    assert_eq!(read, again);
    let without = rules(&text.replace("only_while_booting = true\n", "")).unwrap();
    assert!(serde_json::to_value(without).unwrap().get("only_while_booting").is_none());
}
