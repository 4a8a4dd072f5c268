//! PCRs 0, 1, 2, 4 and 5: the firmware, its settings, drivers, boot loaders, the disk, and the end of the boot services.

use super::machine::*;
use super::{boot, inserted, lie, numbers, place, retyped, verdict};
use crate::log_builder::{EV_IPL, EV_NO_ACTION, EV_SEPARATOR, LogBuilder, SHA256};
use attest::tpm::measured_boot::{BootValue, ExitBootServices, Meaning, PARTITIONS_LIMIT, Proof};

fn pcr_4() -> LogBuilder {
    LogBuilder::new(&[SHA256])
        .action(4, "Calling EFI Application from Boot Option")
        .separator(4)
        .image("shim", "\\EFI\\BOOT\\BOOTX64.EFI")
        .image("grub", "\\EFI\\debian\\grubx64.efi")
}

/// Checks which events of PCR 4 are images.
fn check(log: &LogBuilder, expect: Result<&[usize], &str>) {
    let read = boot(log);
    match (numbers(read.images(4)), expect) {
        (Ok(found), Ok(expect)) => assert_eq!(found, expect),
        (Err(error), Err(expect)) => assert_eq!(verdict::<()>(&Err(error)), expect),
        (found, _) => panic!("{found:?} is not {expect:?}"),
    }
}

#[test]
fn images_are_all_unidentified_events_of_pcr_4() {
    check(&pcr_4(), Ok(&[3, 4]));
    let read = boot(&pcr_4());
    let first = &read.images(4).unwrap()[0];
    assert_eq!((first.digest.as_bytes(), first.proof), (sha256(b"shim").as_slice(), Proof::Digest));
    assert!(matches!(&first.meaning, Meaning::Image { said_path: Some(path) } if path.whole() == Some("\\EFI\\BOOT\\BOOTX64.EFI")));
    // Before the separator the firmware runs its own.
    check(
        &inserted(&pcr_4(), 0, &LogBuilder::new(&[SHA256]).image("firmware's own", "")),
        Ok(&[1, 4, 5]),
    );
}

/// An image cannot be shown as something that is not checked: neither by its type, nor by its data, nor by data that its digest is the hash of.
#[test]
fn an_image_cannot_be_hidden() {
    for event_type in [EV_IPL, EV_SEPARATOR, EV_EFI_ACTION, FIRMWARE_BLOB, VARIABLE_BOOT, 2] {
        check(&retyped(&pcr_4(), event_type), Ok(&[3, 4]));
    }
    for shown in [
        b"shim".as_slice(),
        b"Calling EFI Application from Boot Option",
        &[0; 4],
        b"os-separator",
        b"",
        &variable(GLOBAL, "BootOrder", b"shim"),
    ] {
        check(&lie(&pcr_4(), 3, shown), Ok(&[3, 4]));
    }
    // Nor is it called anything else where the log shows all that was hashed.
    let shown = boot(&lie(&pcr_4(), 3, b"shim"));
    assert!(matches!(shown.events[2].meaning, Meaning::Image { .. }) && shown.events[2].proof == Proof::Digest);
    // Sentences that the firmware does not have.
    check(&pcr_4().action(4, "Calling EFI Application from Boot Option\n"), Ok(&[3, 4, 5]));
    check(&pcr_4().action(4, "Calling EFI Application from Boot Option\0\0"), Ok(&[3, 4, 5]));
    check(&pcr_4().action(4, "Booting something harmless"), Ok(&[3, 4, 5]));
    check(&pcr_4().event(4, EV_SEPARATOR, b"WBCL"), Ok(&[3, 4, 5]));
    check(&pcr_4().event(4, EV_IPL, b""), Ok(&[3, 4, 5]));
    // A note is not measured, so it is no event at all.
    check(&pcr_4().event(4, EV_NO_ACTION, &image_event("x")), Ok(&[3, 4]));
}

#[test]
fn pcr_4_requires_exactly_one_separator() {
    check(&LogBuilder::new(&[SHA256]).image("shim", ""), Err("missing"));
    check(&pcr_4().separator(4), Err("repeated"));
    check(&pcr_4().event(4, EV_SEPARATOR, &[1, 0, 0, 0]), Err("error separator"));
    check(
        &LogBuilder::new(&[SHA256])
            .measured(4, EV_SEPARATOR, &[1, 0, 0, 0], b"an error")
            .image("shim", ""),
        Err("error separator"),
    );
}

#[test]
fn drivers_and_option_roms_are_images_too() {
    let log = LogBuilder::new(&[SHA256])
        .measured(2, 0x8000_0004, b"option ROM", &image_event(""))
        .measured(2, 0x8000_0005, b"runtime driver", b"")
        .event(2, EV_EVENT_TAG, b"a BIOS's own words")
        .separator(2);
    assert_eq!(numbers(boot(&log).images(2)).unwrap(), [1, 2, 3]);
    assert_eq!(verdict(&boot(&log).images(3)), "missing");
}

#[test]
fn firmware_version_is_the_measured_text() {
    let version = |log: &LogBuilder| {
        boot(log)
            .firmware_version()
            .map(|text| text.whole().unwrap().to_owned())
            .map_err(|_| ())
    };
    let log = |first: LogBuilder| inserted(&first, first.events.len(), &LogBuilder::new(&[SHA256]).separator(0));
    let new = || LogBuilder::new(&[SHA256]);
    assert_eq!(version(&log(new().firmware())), Ok("Firmware 1.2".to_owned()));
    assert_eq!(version(&log(new().event(0, EV_S_CRTM_VERSION, b"BIOS 7"))), Ok("BIOS 7".to_owned()));
    assert_eq!(
        version(&log(new().event(0, EV_S_CRTM_VERSION, &[0xfe, 0xdc]))),
        Ok("fedc".to_owned())
    );
    // Behind the hash of the S-CRTM (Boot Guard).
    assert_eq!(
        version(&log(new().measured(0, 7, b"S-CRTM", b"Boot Guard").firmware())),
        Ok("Firmware 1.2".to_owned())
    );
    // Only a digest; too late; behind the separator.
    assert_eq!(
        version(&log(new().measured(
            0,
            EV_S_CRTM_VERSION,
            b"Firmware 1.1",
            &utf16("Firmware 1.2\0")
        ))),
        Err(())
    );
    assert_eq!(version(&log(new().event(0, 1, b"a").event(0, 1, b"b").firmware())), Err(()));
    assert_eq!(version(&new().separator(0).firmware()), Err(()));
    assert_eq!(version(&new().firmware()), Err(()));
}

#[test]
fn blobs_of_the_firmware_are_digests_with_a_size() {
    let blob2 = [b"\x06volume".as_slice(), &[0; 8], &[0, 2, 0, 0, 0, 0, 0, 0]].concat();
    let log = LogBuilder::new(&[SHA256])
        .firmware()
        .measured(0, 0x8000_000a, b"another", &blob2)
        .separator(0);
    let read = boot(&log);
    assert!(matches!(
        &read.events[1].meaning,
        Meaning::FirmwareBlob {
            said_bytes: 4096,
            said_description: None
        }
    ));
    assert!(
        matches!(&read.events[2].meaning, Meaning::FirmwareBlob { said_bytes: 512, said_description: Some(text) } if text.whole() == Some("volume"))
    );
    assert!(read.events[1..3].iter().all(|event| event.proof == Proof::Digest));
    assert_eq!(read.firmware().unwrap().len(), 3);
}

#[test]
fn boot_variable_values_are_proven_without_names() {
    let order = |value: &[u8]| LogBuilder::new(&[SHA256]).measured(1, VARIABLE_BOOT, value, &variable(GLOBAL, "BootOrder", value));
    // 1, 0 has the bytes of the separator for errors.
    for value in [&[1, 0, 0, 0], &[0, 0, 1, 0], &[0xff; 4], &[0; 4]] {
        let read = boot(&order(value));
        let numbers = value
            .as_chunks::<2>()
            .0
            .iter()
            .map(|number| u16::from_le_bytes(*number))
            .collect::<Vec<_>>();
        assert!(matches!(&read.events[0].meaning, Meaning::BootVariable { value: BootValue::Order(order), .. } if *order == numbers));
        assert_eq!(read.events[0].proof, Proof::Content);
    }
    // By that a separator is hidden at most; and then it is missing.
    assert_eq!(verdict(&boot(&order(&[0; 4])).around_separator(1)), "missing");
    let option = [&[1, 0, 0, 0, 4, 0], utf16("Debian\0").as_slice(), &[0x7f, 0xff, 4, 0]].concat();
    let read = boot(&LogBuilder::new(&[SHA256]).measured(1, VARIABLE_BOOT, &option, &variable(GLOBAL, "Boot0001", &option)));
    assert!(
        matches!(&read.events[0].meaning, Meaning::BootVariable { value: BootValue::Option { description, .. }, .. } if description.whole() == Some("Debian"))
    );
    let lying = boot(&LogBuilder::new(&[SHA256]).measured(1, VARIABLE_BOOT, b"another", &variable(GLOBAL, "Boot0001", &option)));
    assert!(matches!(
        &lying.events[0].meaning,
        Meaning::BootVariable {
            value: BootValue::Bytes(_),
            ..
        }
    ));
    assert_eq!(lying.events[0].proof, Proof::Digest);
}

#[test]
fn partition_table_is_proven_completely() {
    let read = boot(&LogBuilder::new(&[SHA256]).event(5, GPT_EVENT, &gpt(&["EFI system", "root"])));
    let Meaning::PartitionTable { table } = &read.events[0].meaning else {
        panic!("{:?}", read.events[0])
    };
    assert_eq!(table.disk.to_string(), OWNER);
    let names: Vec<_> = table.partitions.iter().map(|partition| partition.name.whole().unwrap()).collect();
    assert_eq!((names, table.left_out), (vec!["EFI system", "root"], 0));
    let many = boot(&LogBuilder::new(&[SHA256]).event(5, GPT_EVENT, &gpt(&["p"; PARTITIONS_LIMIT + 3])));
    assert!(
        matches!(&many.events[0].meaning, Meaning::PartitionTable { table } if table.partitions.len() == PARTITIONS_LIMIT && table.left_out == 3)
    );
    for shown in [
        &gpt(&["root"])[..91],
        &gpt(&["root"])[..100],
        &[gpt(&["root"]), vec![0]].concat(),
        b"EFI PART",
    ] {
        let read = boot(&LogBuilder::new(&[SHA256]).event(5, GPT_EVENT, shown));
        assert!(matches!(&read.events[0].meaning, Meaning::Data { .. }));
    }
    let lying = boot(&LogBuilder::new(&[SHA256]).measured(5, GPT_EVENT, b"another", &gpt(&["root"])));
    assert_eq!(lying.events[0].proof, Proof::Digest);
}

#[test]
fn exit_boot_services_is_derived_from_its_actions() {
    let log = || LogBuilder::new(&[SHA256]).separator(5);
    let check = |log: LogBuilder, expect| assert_eq!(boot(&log).exit_boot_services(), Ok(expect));
    check(log(), ExitBootServices::NotCalled);
    check(log().action(5, "Exit Boot Services Invocation"), ExitBootServices::Invoked);
    let failed = log()
        .action(5, "Exit Boot Services Invocation")
        .action(5, "Exit Boot Services Returned with Failure");
    check(failed.clone(), ExitBootServices::Invoked);
    check(failed.exit_boot_services(), ExitBootServices::Success);
    check(
        log().measured(5, EV_EFI_ACTION, b"x", b"Exit Boot Services Returned with Success"),
        ExitBootServices::NotCalled,
    );
    check(
        log().event(4, EV_EFI_ACTION, b"Exit Boot Services Returned with Success"),
        ExitBootServices::NotCalled,
    );
}

#[test]
fn reference_manifest_locations_are_unproven() {
    let text = |text: &str| [&[u8::try_from(text.len() + 1).unwrap()], text.as_bytes(), &[0]].concat();
    let data = [
        b"SP800-155 Event3".as_slice(),
        &[0; 4],
        &guid(OWNER),
        &text("Maker"),
        &text("Model"),
        &text("1"),
        &text("Firmware's maker"),
        &[0; 4],
        &text("2.7"),
    ]
    .concat();
    let log = grub_machine(true);
    let noted = |data: &[u8]| {
        inserted(
            &log,
            0,
            &LogBuilder {
                events: Vec::new(),
                ..log.clone()
            }
            .event(0, EV_NO_ACTION, data),
        )
    };
    let read = boot(&noted(&data));
    assert_eq!(read.said_manifests[0].model.whole(), Some("Model"));
    assert_eq!(read.said_manifests[0].firmware_version.whole(), Some("2.7"));
    assert_eq!(read.said_manifests[0].number, 1);
    assert!(boot(&noted(&data[..data.len() - 1])).said_manifests.is_empty());
    assert_eq!(read.secure_boot(), boot(&log).secure_boot());
    let measured = boot(&LogBuilder::new(&[SHA256]).event(0, 1, &data));
    assert!(measured.said_manifests.is_empty());
    assert_eq!(place(&log, 0, 0), 1);
}
