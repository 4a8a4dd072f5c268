//! Comparison of two boots.

use super::machine::*;
use super::{boot, inserted, place, without};
use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{BootDifference, DifferenceRow, MeasuredBoot};

/// Rows of one PCR by their marks: `=`, `≠`, `<` or `>`, with the numbers of the events.
fn rows(first: &LogBuilder, second: &LogBuilder, pcr: u8) -> String {
    let (first, second) = (boot(first), boot(second));
    let difference = BootDifference::between(&first, &second);
    let of_pcr = difference.pcrs.iter().find(|found| found.pcr == pcr).unwrap();
    let row = |row: &DifferenceRow<'_>| match row {
        DifferenceRow::Same(one, other) => format!("{}={}", one.number, other.number),
        DifferenceRow::Changed(one, other) => format!("{}≠{}", one.number, other.number),
        DifferenceRow::First(one) => format!("{}<", one.number),
        DifferenceRow::Second(other) => format!(">{}", other.number),
    };
    of_pcr.rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

fn images(names: &str) -> LogBuilder {
    names.chars().fold(LogBuilder::new(&[SHA256]), |log, name| {
        log.image(&name.to_string(), &name.to_string())
    })
}

#[test]
fn difference_aligns_equal_events() {
    let check = |first: &str, second: &str, expect: &str| assert_eq!(rows(&images(first), &images(second), 4), expect);
    check("", "", "");
    check("abc", "abc", "1=1 2=2 3=3");
    check("abc", "axc", "1=1 2≠2 3=3");
    check("abc", "ac", "1=1 2< 3=2");
    check("ac", "abc", "1=1 >2 2=3");
    check("abc", "bcd", "1< 2=1 3=2 >3");
    check("abc", "cab", ">1 1=2 2=3 3<");
    check("aab", "ab", "1=1 2< 3=2");
    check("abcd", "xbyd", "1≠1 2=2 3≠3 4=4");
    check("ab", "", "1< 2<");
    check("", "ab", ">1 >2");
}

#[test]
fn difference_lists_every_event_once() {
    let log = grub_machine(true);
    for event in 1..=log.events.len() {
        let other = without(&log, event);
        let (first, second) = (boot(&log), boot(&other));
        let difference = BootDifference::between(&first, &second);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for row in difference.pcrs.iter().flat_map(|pcr| &pcr.rows) {
            match row {
                DifferenceRow::Same(one, other) | DifferenceRow::Changed(one, other) => (left.push(one.number), right.push(other.number)).0,
                DifferenceRow::First(one) => left.push(one.number),
                DifferenceRow::Second(other) => right.push(other.number),
            }
        }
        left.sort_unstable();
        right.sort_unstable();
        assert!(left.into_iter().eq(1..=log.events.len()) && right.into_iter().eq(1..log.events.len()));
        assert!(!difference.is_empty());
    }
    assert!(BootDifference::between(&boot(&log), &boot(&log)).is_empty());
}

#[test]
fn long_differences_are_aligned_by_position() {
    let many = |text: &str| {
        (0..1100).fold(LogBuilder::new(&[SHA256]), |log, number| {
            log.event(9, EV_IPL, format!("{text}{number}").as_bytes())
        })
    };
    let (first, second) = (boot(&many("a")), boot(&many("b")));
    let difference = BootDifference::between(&first, &second);
    let of_pcr = difference.pcrs.iter().find(|found| found.pcr == 9).unwrap();
    assert_eq!(of_pcr.rows.len(), 1100);
    assert!(of_pcr.rows.iter().all(|row| matches!(row, DifferenceRow::Changed(..))));
}

#[test]
fn difference_text_marks_unproven_values() {
    let log = grub_machine(true);
    let grub = place(&log, 4, 3);
    let other = inserted(
        &without(&log, grub),
        grub - 1,
        &LogBuilder {
            events: Vec::new(),
            ..log.clone()
        }
        .image("grub 2", "\\EFI\\debian\\grubx64.efi"),
    );
    let text = BootDifference::between(&boot(&log), &boot(&other)).to_string();
    assert!(text.contains("PCR 4: 1 of 5 differ\n"), "{text}");
    assert!(text.contains("≠") && text.contains("image “\\EFI\\debian\\grubx64.efi”"), "{text}");
    assert!(text.contains("PCR 7: the same, 10 events\n"), "{text}");
    let off = BootDifference::between(&boot(&log), &boot(&grub_machine(false))).to_string();
    assert!(off.contains("Secure Boot is on") && off.contains("Secure Boot is off"), "{off}");
}

#[test]
fn unexplained_pcr_counts_as_different() {
    let log = grub_machine(true);
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    let mut quoted = log.pcrs(HashAlg::Sha256);
    quoted.insert(9, sha256(b"something else").into());
    let other = MeasuredBoot::from_events(&parsed.check_against(HashAlg::Sha256, &quoted).unwrap());
    let whole = boot(&log);
    let difference = BootDifference::between(&whole, &other);
    assert!(!difference.is_empty());
    assert!(difference.to_string().contains("the second log does not match the PCR"));
    assert!(
        BootDifference::between(&other, &whole)
            .html("a", "b")
            .contains("the first log does not match the PCR")
    );
}

#[test]
fn difference_output_escapes_markup_and_terminal_sequences() {
    let evil = "<script>alert('1')</script>&\"\x1b[2J";
    let log = |text: &str| {
        LogBuilder::new(&[SHA256])
            .image("x", text)
            .grub(text)
            .measured(9, EV_IPL, text.as_bytes(), b"/a\0")
            .event(12, EV_IPL, &utf16(text))
            .event(0, EV_S_CRTM_VERSION, text.as_bytes())
            .event(7, VARIABLE_AUTHORITY, &variable(SHIM, text, text.as_bytes()))
            .event(7, VARIABLE_AUTHORITY, &variable(SHIM, "SbatLevel", text.as_bytes()))
    };
    let (one, other) = (boot(&log(evil)), boot(&log(&format!("{evil}2"))));
    let difference = BootDifference::between(&one, &other);
    let html = difference.html(evil, "second");
    assert!(!html.contains("<script") && !html.contains('\x1b') && html.contains("&lt;script&gt;"));
    assert!(!difference.to_string().contains('\x1b'));
    for event in &one.events {
        assert!(!event.summary().contains(char::is_control), "{}", event.summary());
    }
}

/// A command that was typed at GRUB's menu differs at its end.
#[test]
fn differing_part_of_a_long_text_is_shown() {
    let log = |added: &str| grub_machine(true).grub(&format!("linux /vmlinuz {}{added} ro", "root=LABEL=root ".repeat(30)));
    let (one, other) = (boot(&log("")), boot(&log("init=/bin/sh ")));
    let difference = BootDifference::between(&one, &other);
    let text = difference.to_string();
    assert!(
        text.contains("GRUB “command”: linux /v…") && text.contains("init=/bin/sh"),
        "{text}"
    );
    let html = difference.html("one", "other");
    let whole = "root=LABEL=root ".repeat(30);
    assert!(html.contains(&format!("{whole}<mark>init=/bin/sh </mark> ro")), "{html}");
    assert!(html.contains(&format!("{whole} ro<br>")), "{html}");
    // One that is not in the other boot at all is shown whole.
    let added = boot(&grub_machine(true).grub(&format!("{}init=/bin/sh", "a ".repeat(200))));
    let first = boot(&grub_machine(true));
    let difference = BootDifference::between(&first, &added);
    let unwrapped: String = difference.to_string().split_whitespace().collect();
    assert!(unwrapped.contains("init=/bin/sh"), "{difference}");
}
