//! PCRs 8, 9, 11, 12 and 14: the measurements of boot loaders.

use super::machine::*;
use super::{boot, lie, numbers, place, retyped, verdict};
use crate::log_builder::{EV_IPL, EV_SEPARATOR, LogBuilder, SHA256};
use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::{EventLog, Phase};
use attest::tpm::measured_boot::{GrubKind, Meaning, MeasuredBoot, Proof, UkiSection};
use aws_lc_rs::digest;

fn new() -> LogBuilder {
    LogBuilder::new(&[SHA256])
}

#[test]
fn uki_sections_are_pairs_of_name_and_content() {
    let read = boot(&uki_machine());
    let found: Vec<_> = read
        .uki_sections()
        .unwrap()
        .iter()
        .map(|found| (found.section, found.digest.clone()))
        .collect();
    let expect = [
        (UkiSection::Linux, sha256(b"kernel").into()),
        (UkiSection::Osrel, sha256(b"ID=debian").into()),
        (UkiSection::Cmdline, sha256(b"root=LABEL=root ro").into()),
        (UkiSection::Initrd, sha256(b"initrd").into()),
    ];
    assert_eq!(found, expect);
}

#[test]
fn unexpected_events_in_pcr_11_prove_no_uki() {
    let check = |log: LogBuilder, expect: &str| assert_eq!(verdict(&boot(&log).uki_sections()), expect);
    let good = || new().section(".linux", b"kernel").section(".cmdline", b"quiet");
    check(good(), "ok");
    check(new(), "missing");
    check(good().measured(11, EV_IPL, b".initrd\0", b""), "missing");
    check(good().measured(11, EV_IPL, b"more", b""), "unexpected");
    check(
        good().measured(11, EV_IPL, b".pcrsig\0", b"").measured(11, EV_IPL, b"x", b""),
        "unexpected",
    );
    check(good().measured(11, EV_IPL, b".linux", b".linux"), "unexpected");
    check(good().event(11, EV_SEPARATOR, &[0; 4]), "unexpected");
    check(
        new().measured(11, EV_IPL, b"before", b"").section(".linux", b"kernel"),
        "unexpected",
    );
    // What a section is, its name's digest says, whatever the log does.
    let relabelled = lie(&lie(&good(), 3, &utf16(".osrel\0")), 4, &utf16(".osrel\0"));
    assert_eq!(boot(&relabelled).uki_sections(), boot(&good()).uki_sections());
    assert_eq!(boot(&retyped(&good(), 1)).uki_sections(), boot(&good()).uki_sections());
    // A content that is the name of a section.
    let named = new().section(".osrel", b".cmdline\0").section(".linux", b"kernel");
    let sections: Vec<_> = boot(&named).uki_sections().unwrap().iter().map(|found| found.section).collect();
    assert_eq!(sections, [UkiSection::Osrel, UkiSection::Linux]);
}

/// PCR 11's quoted value after words that are in no log.
fn after(log: &LogBuilder, words: &[&[u8]]) -> std::collections::BTreeMap<u8, HexDigest> {
    let mut quoted = log.pcrs(HashAlg::Sha256);
    let mut value = quoted[&11].as_bytes().to_vec();
    for word in words {
        let extended = [value, sha256(word).to_vec()].concat();
        value = digest::digest(&digest::SHA256, &extended).as_ref().to_vec();
    }
    quoted.insert(11, HexDigest::new(&value).unwrap());
    quoted
}

#[test]
fn boot_phases_after_the_log_are_computed() {
    let log = uki_machine();
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    let phases = |words: &[&[u8]]| {
        let quoted = after(&log, words);
        let trusted = parsed.check_against(HashAlg::Sha256, &quoted).unwrap();
        let read = MeasuredBoot::from_events(&trusted);
        assert_eq!(read.uki_sections().is_ok(), read.explained_pcrs.contains(&11));
        read.explained_pcrs.contains(&11).then_some(read.phases)
    };
    let all: [&[u8]; 6] = [b"enter-initrd", b"leave-initrd", b"sysinit", b"ready", b"shutdown", b"final"];
    let expect = [
        Phase::EnterInitrd,
        Phase::LeaveInitrd,
        Phase::Sysinit,
        Phase::Ready,
        Phase::Shutdown,
        Phase::Final,
    ];
    for count in 0..=6 {
        assert_eq!(phases(&all[..count]).unwrap(), expect[..count]);
    }
    // An initrd that does not measure.
    assert_eq!(phases(&[b"sysinit", b"ready"]).unwrap(), [Phase::Sysinit, Phase::Ready]);
    for wrong in [
        &[b"leave-initrd".as_slice()] as &[&[u8]],
        &[b"ready"],
        &[b"enter-initrd", b"enter-initrd"],
        &[b"enter-initrd", b"sysinit"],
        &[b"enter-initrd\0"],
        &[b"os-separator"],
        &[b"enter-initrd", b"leave-initrd", b"something"],
    ] {
        assert_eq!(phases(wrong), None);
    }
}

#[test]
fn boot_phases_extend_pcr_11_only() {
    let log = uki_machine();
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    for pcr in [8, 9, 12] {
        let mut quoted = log.pcrs(HashAlg::Sha256);
        let extended = [quoted[&pcr].as_bytes(), &sha256(b"enter-initrd")].concat();
        quoted.insert(pcr, sha256(&extended).into());
        let trusted = parsed.check_against(HashAlg::Sha256, &quoted).unwrap();
        assert!(trusted.unexplained_pcrs().eq([pcr]) && trusted.phases().is_empty());
    }
}

#[test]
fn grubs_texts_are_what_their_digests_say() {
    let log = grub_machine(true);
    let read = boot(&log);
    let found: Vec<_> = read
        .grub_texts()
        .unwrap()
        .iter()
        .map(|found| (found.said_kind, found.text.whole().unwrap()))
        .collect();
    let expect = [
        (GrubKind::Command, "set timeout=0"),
        (GrubKind::Command, "linux /vmlinuz root=LABEL=root ro"),
        (GrubKind::KernelCommandLine, "/vmlinuz root=LABEL=root ro"),
    ];
    assert_eq!(found, expect);
    assert!(
        read.events
            .iter()
            .filter(|event| event.pcr == 8)
            .all(|event| event.proof == Proof::Content)
    );

    // Which of them is the command line is the log's word: another prefix is as good.
    let command = place(&log, 8, 1);
    let relabelled = lie(&log, command, b"kernel_cmdline: linux /vmlinuz root=LABEL=root ro\0");
    assert_eq!(
        boot(&relabelled).grub_texts().unwrap()[1].text,
        boot(&log).grub_texts().unwrap()[1].text
    );
    // Another text is not.
    for shown in [
        b"grub_cmd: linux /vmlinuz quiet\0".as_slice(),
        b"grub_cmd: ",
        b"",
        b"linux /vmlinuz root=LABEL=root ro\0\0",
    ] {
        assert_eq!(verdict(&boot(&lie(&log, command, shown)).grub_texts()), "unexpected");
    }
    // Red Hat's older form.
    for measured in [b"blscfg".as_slice(), b"blscfg\0"] {
        let older = new().measured(8, EV_IPL, measured, b"grub_cmd blscfg\0");
        assert_eq!(boot(&older).grub_texts().unwrap()[0].text.whole(), Some("blscfg"));
    }
    assert_eq!(boot(&new()).grub_texts().unwrap(), []);
}

#[test]
fn files_are_everything_in_pcr_9() {
    let log = grub_machine(true);
    let read = boot(&log);
    let digests: Vec<_> = read.files().unwrap().iter().map(|event| event.digest.clone()).collect();
    let expect: [HexDigest; 3] = [sha256(b"configuration").into(), sha256(b"kernel").into(), sha256(b"initrd").into()];
    assert_eq!(digests, expect);
    // A file that has a word of the firmware's as its content is a file.
    let word = log
        .measured(9, EV_IPL, b"Exit Boot Services Invocation", b"/a\0")
        .measured(9, EV_IPL, &[0; 4], b"/b\0");
    let read = boot(&word);
    assert!(
        read.files().unwrap()[3..]
            .iter()
            .all(|event| matches!(event.meaning, Meaning::File { .. }))
    );
    let kernel = boot(&uki_machine());
    let found: Vec<_> = kernel.files().unwrap().iter().map(|event| &event.meaning).cloned().collect();
    assert_eq!(found, [Meaning::LoadOptions, Meaning::Initrd]);
    assert!(kernel.files().unwrap()[0].is_of(HashAlg::Sha256, &utf16("root=LABEL=root ro\0")));
    assert!(!kernel.files().unwrap()[0].is_of(HashAlg::Sha256, &utf16("root=LABEL=root ro quiet\0")));
}

#[test]
fn systemd_stub_command_lines_are_proven() {
    let texts = |log: &LogBuilder| {
        let read = boot(log);
        let text = |meaning: &Meaning| match meaning {
            Meaning::KernelCommandLine { text } => text.whole().map(str::to_owned),
            _ => None,
        };
        read.kernel_config()
            .unwrap()
            .iter()
            .map(|event| text(&event.meaning))
            .collect::<Vec<_>>()
    };
    let line = || Some("extra=1".to_owned());
    assert_eq!(texts(&uki_machine()), [line()]);
    // Older releases hash the zero at its end.
    assert_eq!(texts(&new().event(12, EV_IPL, &utf16("extra=1\0"))), [line()]);
    for log in [
        new().measured(12, EV_IPL, &utf16("extra=2"), &utf16("extra=1\0")),
        new().measured(12, EV_IPL, b"an archive", &utf16("Credentials initrd\0")),
        new().event(12, EV_IPL, &[0xff; 7]),
        new().event(12, EV_IPL, &[0, 0xd8, 0x41, 0]),
    ] {
        assert_eq!(texts(&log), [None]);
        assert_eq!(numbers(boot(&log).kernel_config()).unwrap(), [1]);
    }
}

#[test]
fn mok_variables_in_pcr_14_are_digests() {
    let read = boot(&grub_machine(true));
    let found = read.mok_variables().unwrap();
    assert!(matches!(&found[0].meaning, Meaning::MokVariable { said_name } if said_name.whole() == Some("MokList")));
    assert!(found[0].is_of(HashAlg::Sha256, b"the owner's keys"));
}
