//! Tests of the evidence that a pool can accept.

use super::*;

const TPM: &str = "[tpm.pcrs]\n\"0-7\" = \"not checked\"\n";
const GCP: &str = "[gcp]\nprojects = [{ id = \"my-project\", number = 1 }]\n";
const DOCUMENT: &str = "[aws_identity_document]\naccounts = [\"123456789012\"]\n";
const REPLAYABLE: &str = "[aws_identity_document]\naccept_replayable = true\naccounts = [\"123456789012\"]\n";
const NITRO_TPM: &str = "[aws_nitro_tpm]\naccounts = [\"123456789012\"]\n[aws_nitro_tpm.pcrs]\n\"0-7\" = \"not checked\"\n";
const ANY_ACCOUNT: &str = "[aws_nitro_tpm]\naccounts = \"not checked\"\n[aws_nitro_tpm.pcrs]\n\"0-7\" = \"not checked\"\n";
const STS: &str = "[aws_sts]\naccounts = [\"123456789012\"]\nroles = [\"worker\"]\nregions = [\"eu-central-1\"]\n";
const AZURE: &str = "[azure]\nsubscriptions = [\"8a205152-b25a-417f-a676-80465535a6c9\"]\n";
const ANY_TPM: &str = "[tpm]\nendorsement = \"any-tpm-of-a-trusted-maker\"\n";
const ALLOWLIST: &str = "[tpm]\nendorsement = \"allowlist\"\n";
const INVENTORY: &str = "[inventory]\ninstances = \"instances.txt\"\n";
const OF_GOOGLE: &str = "[tpm]\nendorsement = \"gcp-instance\"\n";

/// Loads a pool that accepts these kinds (the default, if empty) with these sections; `expect` is the accepted kinds, or part of the error.
fn check(accepts: &str, sections: &[&str], expect: Result<&str, &str>) {
    let accepts = if accepts.is_empty() {
        String::new()
    } else {
        format!("[attestation]\naccepts = {accepts}\n")
    };
    let text = format!("[grants]\n{accepts}{}", sections.concat());
    let loaded = load_with(|pool| {
        fs::write(pool.join("pool.toml"), &text).unwrap();
        fs::write(pool.join("instances.txt"), "").unwrap();
    });
    let loaded = loaded.map(|pool| {
        let accepted: Vec<String> = pool.policy.accepts().iter().map(ToString::to_string).collect();
        accepted.join(", or ")
    });
    match (loaded, expect) {
        (Ok(accepted), Ok(expect)) => assert_eq!(accepted, expect, "{text}"),
        (Err(error), Err(expect)) => assert!(error.contains(expect), "{expect:?} is not in {error:?}\n{text}"),
        (loaded, expect) => panic!("{loaded:?} instead of {expect:?}\n{text}"),
    }
}

#[test]
fn event_log_is_required_checked_or_recorded() {
    let says = |word: &str| format!("[tpm]\nevent_log = {word}\n");
    for word in ["\"required\"", "\"checked\"", "\"recorded\""] {
        check("", &[&says(word), TPM], Ok("tpm"));
    }
    for word in ["\"not checked\"", "\"\"", "true", "[]"] {
        check("", &[&says(word), TPM], Err("event_log"));
    }
}

#[test]
fn only_while_booting_is_set_per_section() {
    let says = |section: &str, word: &str| section.replacen("]\n", &format!("]\nonly_while_booting = {word}\n"), 1);
    let vtpm = "[azure_vtpm]\nvm_ids = [\"b1310a36-d400-46f6-82cb-6217df846586\"]\n[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n";
    for (accepts, section) in [
        ("[[\"tpm\"]]", format!("{ALLOWLIST}{TPM}")),
        ("[[\"aws-nitro-tpm\"]]", ANY_ACCOUNT.to_owned()),
        ("[[\"azure-vtpm\"]]", vtpm.to_owned()),
    ] {
        for (word, only) in [("true", true), ("false", false)] {
            check(
                accepts,
                &[&says(&section, word), INVENTORY],
                Ok(accepts.trim_matches(['[', ']', '"'])),
            );
            let text = format!("[grants]\n[attestation]\naccepts = {accepts}\n{}", says(&section, word));
            let warned = load_text(&text).map(|pool| {
                pool.warnings(false, false)
                    .iter()
                    .any(|warning| warning.contains("accepts attestations after the boot"))
            });
            assert_eq!(warned, Ok(!only), "{text}");
        }
        check(accepts, &[&says(&section, "\"yes\""), INVENTORY], Err("only_while_booting"));
        // Nobody is taken at another time because the file was written before one could say so.
        let text = format!("[grants]\n[attestation]\naccepts = {accepts}\n{section}");
        assert!(
            load_text(&text)
                .unwrap()
                .warnings(false, false)
                .iter()
                .any(|warning| warning.contains("accepts attestations after the boot"))
        );
    }
    assert!(
        !load_text(SAMPLE)
            .unwrap()
            .warnings(false, false)
            .iter()
            .any(|warning| warning.contains("accepts attestations after the boot"))
    );
}

#[test]
fn attack_58_warns_of_machines_that_reopen_by_hibernation() {
    let check = |only: bool, boot: &str, pcr_7: &str, warned: bool| {
        let tpm = format!(
            "[tpm]\nbank = \"sha256\"\nendorsement = \"allowlist\"\nonly_while_booting = {only}\nboot = {boot}\n[tpm.pcrs]\n\"0-6\" = \"not checked\"\n\"8-14\" = \"not checked\"\n7 = {pcr_7}\n"
        );
        let text = format!("[grants]\n[attestation]\naccepts = [[\"tpm\"]]\n{tpm}");
        let warnings = load_text(&text).unwrap().warnings(false, false);
        let said = warnings
            .iter()
            .any(|warning| warning.contains("hibernated") && warning.contains("give no machine of the pool a swap"));
        assert_eq!(said, warned, "{text}{warnings:?}");
    };
    let (not_checked, listed) = ("\"not checked\"", format!("[\"{}\"]", "ab".repeat(32)));
    check(true, "[]", not_checked, true);
    check(true, "[\"secure-boot\"]", not_checked, false);
    check(true, "[]", &listed, false);
    // There, root attests without that.
    check(false, "[]", not_checked, false);
}

#[test]
fn warns_if_the_boot_loader_is_not_checked() {
    let check = |boot: &str, pcrs: &str, warned: bool| {
        let tpm = format!("[tpm]\nbank = \"sha256\"\nendorsement = \"allowlist\"\nboot = {boot}\n[tpm.pcrs]\n{pcrs}\n");
        let text = format!("[grants]\n[attestation]\naccepts = [[\"tpm\"]]\n{tpm}");
        let said = load_text(&text).map(|pool| {
            pool.warnings(false, false)
                .iter()
                .any(|warning| warning.contains("not the boot loader itself"))
        });
        assert_eq!(said, Ok(warned), "{text}");
    };
    let any = "\"0-14\" = \"not checked\"";
    let one = |pcr: u8| {
        let digest = "ab".repeat(32);
        format!("\"0-3\" = \"not checked\"\n\"8-14\" = \"not checked\"\n{pcr} = [\"{digest}\"]\n")
    };
    check("[\"secure-boot\"]", any, false);
    check("[]", any, false);
    for boot in ["kernel-config", "mok"] {
        check(&format!("[\"{boot}\"]"), any, true);
        check(&format!("[\"secure-boot\", \"{boot}\"]"), any, true);
    }
    let rest = |others: &[u8]| others.iter().map(|pcr| format!("{pcr} = \"not checked\"\n")).collect::<String>();
    check("[\"mok\"]", &(one(4) + &rest(&[5, 6, 7])), false);
    check("[\"mok\"]", &(one(7) + &rest(&[4, 5, 6])), false);
    check("[\"mok\"]", &(one(5) + &rest(&[4, 6, 7])), true);
}

#[test]
fn rejects_an_unbounded_condition_with_its_position() {
    let says = |condition: &str| format!("[attestation]\ncondition = \"{condition}\"\n");
    check("", &[&says("claims.pool == 'worker'"), TPM], Ok("tpm"));
    for (condition, expect) in [
        ("claims.pool ==", "line 1, column"),
        ("claims.kinds.map(k, k) == []", "\"map() or filter()\"".trim_matches('"')),
        ("pool == 'worker'", "the condition uses \"pool\""),
        ("claims.a.all(x, x == claims.b)", "steps"),
    ] {
        check("", &[&says(condition), TPM], Err(expect));
        check("", &[&says(condition), TPM], Err("condition = "));
    }
    // What could never be there.
    for (condition, expect) in [
        ("claims.tpm.boot.secureboot", "claims.tpm.boot.secureboot does not exist"),
        ("claims.gcp.boot.secure_boot", "claims.gcp.boot does not exist"),
        (
            "claims.tpm.pcr['7'] == ''",
            "claims.tpm.pcr does not exist; claims.tpm has ak_name, ",
        ),
        (
            "claims.tpm.boot.grub == []",
            "claims.tpm.boot.grub comes from PCR 8, which is not in pcrs of [tpm]",
        ),
    ] {
        check("", &[&says(condition), TPM], Err(expect));
    }
    check("", &[&says("claims.tpm.boot.secure_boot"), TPM], Ok("tpm"));
}

#[test]
fn accepted_kinds_require_their_sections() {
    check("", &[TPM], Ok("tpm"));
    check("", &[], Err("tpm is in accepts, so the section [tpm] is required"));
    check("[]", &[TPM], Err("accepts names no kind of evidence"));
    check(r#"[["tpm"], ["tpm"]]"#, &[TPM], Err("accepts names tpm twice"));
    check(r#"[["gcp"]]"#, &[GCP], Ok("gcp"));
    check(r#"[["tpm", "gcp"], ["gcp"]]"#, &[ALLOWLIST, TPM, GCP], Ok("tpm + gcp, or gcp"));
    check(r#"[["gcp"]]"#, &[TPM], Err("gcp is in accepts, so the section [gcp] is required"));
    check(r#"[["tpm"]]"#, &[GCP], Err("so the section [tpm] is required"));
    for (kind, section) in [
        ("aws-identity-document", "aws_identity_document"),
        ("aws-nitro-tpm", "aws_nitro_tpm"),
        ("aws-sts", "aws_sts"),
        ("azure", "azure"),
    ] {
        let error = format!("{kind} is in accepts, so the section [{section}] is required");
        check(&format!("[[\"{kind}\"]]"), &[TPM], Err(&error));
    }
    check("", &[TPM, GCP], Err("there is a section [gcp], but accepts does not list \"gcp\""));
    check(
        "",
        &[TPM, REPLAYABLE],
        Err("[aws_identity_document] is present, but aws-identity-document is not in accepts"),
    );
    check(
        "",
        &[TPM, NITRO_TPM],
        Err("[aws_nitro_tpm] is present, but aws-nitro-tpm is not in accepts"),
    );
    check("", &[TPM, STS], Err("[aws_sts] is present, but aws-sts is not in accepts"));
    check("", &[TPM, AZURE], Err("[azure] is present, but azure is not in accepts"));
    check(r#"[["sgx"]]"#, &[TPM], Err("unknown variant `sgx`"));
    check(r#"["tpm"]"#, &[TPM], Err("line 3"));
}

#[test]
fn a_combination_names_one_machine() {
    check(
        r#"[["gcp", "azure"]]"#,
        &[GCP, AZURE],
        Err("gcp and azure are evidence of different clouds"),
    );
    check(r#"[["gcp", "aws-sts", "tpm"]]"#, &[TPM, GCP, STS], Err("different clouds"));
    check(r#"[["gcp"], ["azure"]]"#, &[GCP, AZURE], Ok("gcp, or azure"));
    check(r#"[["token"]]"#, &[], Err("at least one kind that identifies the node"));
    check("[[]]", &[], Err("at least one kind"));
    check(r#"[["gcp", "token"]]"#, &[GCP], Ok("gcp + token"));
    check(r#"[["gcp", "gcp"]]"#, &[GCP], Err("gcp is named twice"));
}

#[test]
fn attack_29_tpm_and_instance_must_be_bound_together() {
    let apart = Err("this evidence does not prove that the TPM belongs to the instance");
    for (beside, sections) in [
        (r#""gcp""#, &[GCP][..]),
        (r#""azure""#, &[AZURE]),
        (r#""aws-sts""#, &[STS]),
        (r#""aws-identity-document", "aws-sts""#, &[DOCUMENT, STS]),
        (r#""aws-identity-document""#, &[REPLAYABLE]),
        (r#""aws-nitro-tpm""#, &[ANY_ACCOUNT]),
        (r#""azure", "token""#, &[AZURE]),
    ] {
        let accepts = format!("[[\"tpm\", {beside}]]");
        let expect = format!("tpm + {}", beside.replace('"', "").replace(", ", " + "));
        let with = |first: &'static str| [&[first, TPM][..], sections].concat();
        check(&accepts, &with(ANY_TPM), apart);
        // Left out, it is the allowlist.
        check(&accepts, &with(""), Ok(&expect));
        check(&accepts, &with(ALLOWLIST), Ok(&expect));
        check(&accepts, &[&[INVENTORY, ANY_TPM, TPM][..], sections].concat(), Ok(&expect));
        // Google's certificate says of which of its instances a TPM is, and nothing of others.
        let of_google = [&[OF_GOOGLE, TPM, GCP][..], sections].concat();
        match beside {
            r#""gcp""# => check(&accepts, &with(OF_GOOGLE), Ok(&expect)),
            _ => check(&accepts, &of_google, apart),
        }
        // A combination that is not the first is one, too.
        check(&format!("[[\"tpm\"], [\"tpm\", {beside}]]"), &with(ANY_TPM), apart);
    }
    // Each by itself needs nothing that joins it.
    check(r#"[["tpm"], ["gcp"]]"#, &[ANY_TPM, TPM, GCP], Ok("tpm, or gcp"));
}

#[test]
fn replayable_document_requires_accept_replayable() {
    const ALONE: &str = r#"[["aws-identity-document"]]"#;
    check(ALONE, &[REPLAYABLE], Ok("aws-identity-document"));
    check(ALONE, &[DOCUMENT], Err("set accept_replayable = true"));
    let beside = |kind: &str| format!("[[\"aws-identity-document\", \"{kind}\"]]");
    check(&beside("token"), &[DOCUMENT], Err("set accept_replayable = true"));
    check(&beside("token"), &[REPLAYABLE], Ok("aws-identity-document + token"));
    check(&beside("tpm"), &[TPM, DOCUMENT], Err("set accept_replayable = true"));
    check(&beside("aws-sts"), &[DOCUMENT, STS], Ok("aws-identity-document + aws-sts"));
    check(
        &beside("aws-nitro-tpm"),
        &[DOCUMENT, NITRO_TPM],
        Ok("aws-identity-document + aws-nitro-tpm"),
    );
    let also_alone = r#"[["aws-identity-document", "aws-sts"], ["aws-identity-document"]]"#;
    check(also_alone, &[DOCUMENT, STS], Err("set accept_replayable = true"));
}

#[test]
fn nitro_tpm_evidence_needs_an_account_source() {
    check(r#"[["aws-nitro-tpm"]]"#, &[NITRO_TPM], Err("a NitroTPM document names no account"));
    check(r#"[["aws-nitro-tpm"]]"#, &[ANY_ACCOUNT], Ok("aws-nitro-tpm"));
    check(
        r#"[["tpm", "aws-nitro-tpm"]]"#,
        &[TPM, NITRO_TPM],
        Err("a NitroTPM document names no account"),
    );
    check(
        r#"[["aws-nitro-tpm", "aws-sts"]]"#,
        &[NITRO_TPM, STS],
        Ok("aws-nitro-tpm + aws-sts"),
    );
    let also_alone = r#"[["aws-nitro-tpm", "aws-sts"], ["aws-nitro-tpm"]]"#;
    check(
        also_alone,
        &[NITRO_TPM, STS],
        Err("aws-nitro-tpm: [aws_nitro_tpm] restricts accounts"),
    );
}

#[test]
fn refuses_azure_vtpm_pools_open_to_every_customer() {
    const ALONE: &str = r#"[["azure-vtpm"]]"#;
    const NOTHING: &str = "[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n";
    let pcr_4 = format!(
        "[azure_vtpm.pcrs]\n\"0-3\" = \"not checked\"\n4 = [\"{}\"]\n\"5-7\" = \"not checked\"\n",
        "04".repeat(32)
    );
    let any = |rest: &str| format!("[azure_vtpm]\naccept_any_subscription = true\n{rest}");
    let named = format!("[azure_vtpm]\nvm_ids = [\"b1310a36-d400-46f6-82cb-6217df846586\"]\n{NOTHING}");
    let every_customer = Err("machines of every customer of Azure's would get the attested grant");
    check(ALONE, &[&any(NOTHING)], every_customer);
    check(
        r#"[["azure-vtpm", "azure"], ["azure-vtpm"]]"#,
        &[AZURE, &any(NOTHING)],
        every_customer,
    );
    check(ALONE, &[&any(&pcr_4)], Ok("azure-vtpm"));
    check(ALONE, &[INVENTORY, &any(NOTHING)], Ok("azure-vtpm"));
    check(ALONE, &[&named], Ok("azure-vtpm"));
    check(r#"[["azure-vtpm", "azure"]]"#, &[AZURE, &any(NOTHING)], Ok("azure + azure-vtpm"));
    check(r#"[["azure-vtpm", "token"]]"#, &[&any(NOTHING)], Ok("azure-vtpm + token"));
    check(
        r#"[["azure-vtpm", "tpm"]]"#,
        &[ALLOWLIST, TPM, &any(NOTHING)],
        Ok("tpm + azure-vtpm"),
    );

    let warnings = |accepts: &str, sections: &[&str]| {
        let text = format!("[grants]\n[attestation]\naccepts = {accepts}\n{}", sections.concat());
        let pool = load_with(|pool| {
            fs::write(pool.join("pool.toml"), &text).unwrap();
            fs::write(pool.join("instances.txt"), "").unwrap();
        });
        pool.unwrap().warnings(true, true).join("\n")
    };
    let (customers, account, boot) = (
        "any customer of Azure's",
        "any instance of the account",
        "accepts any measured boot",
    );
    let check = |accepts: &str, sections: &[&str], expect: &[&str]| {
        let said = warnings(accepts, sections);
        for one in [customers, account, boot] {
            assert_eq!(said.contains(one), expect.contains(&one), "{one:?}: {sections:?}\n{said}");
        }
    };
    check(ALONE, &[&any(&pcr_4)], &[customers]);
    check(ALONE, &[&named], &[boot]);
    check(ALONE, &[INVENTORY, &any(NOTHING)], &[boot]);
    check(ALONE, &[INVENTORY, &any(&pcr_4)], &[]);
    check(r#"[["azure-vtpm", "azure"]]"#, &[AZURE, &any(&pcr_4)], &[account]);
    check(r#"[["azure-vtpm", "azure"]]"#, &[AZURE, &any(NOTHING)], &[account, boot]);
}

#[test]
fn google_vtpm_pool_requires_gcp_instance_rules() {
    let vtpm = format!("{OF_GOOGLE}{TPM}");
    check("", &[&vtpm, GCP], Ok("tpm"));
    check("", &[&vtpm], Err("so [gcp] must name the accepted instances"));
    for rule in [
        "service_accounts = [\"a@b\"]\n",
        "licenses = [\"1\"]\n",
        "max_instance_age_seconds = 1\n",
    ] {
        let rules = format!("{GCP}{rule}");
        check("", &[&vtpm, &rules], Err("cannot be proven by a TPM alone"));
        check(r#"[["tpm", "gcp"]]"#, &[&vtpm, &rules], Ok("tpm + gcp"));
    }
}

#[test]
fn names_the_invalid_key_of_a_cloud_section() {
    let wrong = |accepts: &str, section: &str, from: &str, to: &str, error: &str| {
        assert!(section.contains(from), "{from:?} is not in {section:?}");
        check(accepts, &[&section.replace(from, to)], Err(error));
    };
    wrong(r#"[["gcp"]]"#, GCP, "[gcp]", "[gcp]\nproject = 1", "unknown field `project`");
    wrong(r#"[["gcp"]]"#, GCP, ", number = 1", "", "missing field `number`");
    wrong(
        r#"[["gcp"]]"#,
        GCP,
        "[gcp]",
        "[gcp]\ninstance_names = [\"Worker\"]",
        "not a pattern of an instance name",
    );
    wrong(
        r#"[["aws-identity-document"]]"#,
        REPLAYABLE,
        "accounts = [\"123456789012\"]\n",
        "",
        "missing field `accounts`",
    );
    wrong(
        r#"[["aws-sts"]]"#,
        STS,
        "eu-central-1",
        "us-iso-east-1",
        "is not a valid AWS region",
    );
    wrong(r#"[["aws-sts"]]"#, STS, "123456789012", "12", "is not a valid AWS account");
    wrong(r#"[["aws-sts"]]"#, STS, "roles = [\"worker\"]\n", "", "missing field `roles`");
    wrong(r#"[["aws-nitro-tpm"]]"#, ANY_ACCOUNT, "0-7", "0-6", "PCR 7 is not named");
    wrong(r#"[["aws-nitro-tpm"]]"#, ANY_ACCOUNT, "0-7", "0-16", "PCR 16 can be reset");
    wrong(
        r#"[["azure"]]"#,
        AZURE,
        "subscriptions",
        "subscription",
        "unknown field `subscription`",
    );
}

#[test]
fn cloud_sections_of_the_sample_pool_load() {
    // As an administrator would: the "# " taken away.
    let settings = |line: &&str| {
        line.strip_prefix("# ").is_some_and(|rest| {
            let key = rest.split_once(" = ").map_or("", |(key, _)| key);
            let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '"' | '-');
            (rest.starts_with('[') && rest.ends_with(']') && !rest.contains(' ')) || (!key.is_empty() && key.chars().all(word))
        })
    };
    let (_, rest) = SAMPLE.split_once("# Machines of clouds").unwrap();
    let (clouds, _) = rest.split_once("\n[source]").unwrap();
    let sections: String = clouds.lines().filter(settings).map(|line| format!("{}\n", &line[2..])).collect();
    let accepts = r#"[["tpm", "gcp"], ["aws-identity-document", "aws-nitro-tpm"], ["aws-sts"], ["azure"], ["azure-vtpm", "azure"]]"#;
    let expect = "tpm + gcp, or aws-identity-document + aws-nitro-tpm, or aws-sts, or azure, or azure + azure-vtpm";
    check(accepts, &[OF_GOOGLE, TPM, &sections], Ok(expect));
    let default = SAMPLE.replace("#: ", "");
    assert_eq!(load_text(&default).unwrap().policy, load_text(SAMPLE).unwrap().policy);
}

#[test]
fn hold_seconds_has_a_maximum() {
    let load = |text: &str| load_text(&format!("[grants]\n[attestation]\n{text}\n{TPM}")).map(|pool| pool.hold_seconds);
    assert_eq!(load(""), Ok(3600));
    assert_eq!(load("hold_seconds = 0"), Ok(0));
    assert_eq!(load("hold_seconds = 14400"), Ok(14_400));
    let error = load("hold_seconds = 14401").unwrap_err();
    assert!(error.contains("[attestation]: hold_seconds is 14401; the most is 14400"), "{error}");
    assert!(load("hold_seconds = -1").is_err());
}

#[test]
fn inventory_machines_must_select_machine_objects() {
    let machines = |said: &str| format!("[inventory]\nmachines = {{ {said} }}\n");
    let gcp = |said: &str, expect| check(r#"[["gcp"]]"#, &[GCP, &machines(said)], expect);
    let ok = Ok("gcp");
    gcp("machine_sets = [\"a-worker-*\", \"b.c\"]", ok);
    gcp("control_plane = true", ok);
    gcp("control_plane = true, max_age_seconds = 60, wait_seconds = 0", ok);
    gcp("control_plane = true, max_age_seconds = 86400, wait_seconds = 3600", ok);
    for (said, expect) in [
        ("", "machines must name machine_sets"),
        ("machine_sets = []", "machines must name machine_sets"),
        ("control_plane = false, wait_seconds = 9", "machines must name machine_sets"),
        ("machine_sets = [\"\"]", "is not a pattern of machine set names"),
        ("machine_sets = [\"Worker\"]", "is not a pattern of machine set names"),
        ("machine_sets = [\"a/b\"]", "is not a pattern of machine set names"),
        ("machine_sets = \"a\"", "machine_sets"),
        (
            "control_plane = true, max_age_seconds = 59",
            "max_age_seconds is 59; allowed are 60 to 86400",
        ),
        ("control_plane = true, max_age_seconds = 86401", "max_age_seconds is 86401"),
        (
            "control_plane = true, wait_seconds = 3601",
            "wait_seconds is 3601; the most is 3600",
        ),
        ("control_plane = true, namespace = \"a\"", "unknown field"),
    ] {
        gcp(said, Err(expect));
    }
    gcp(
        &format!("machine_sets = [{}]", "\"a\", ".repeat(101)),
        Err("has 101 patterns; at most 100"),
    );
    check(r#"[["gcp"]]"#, &[GCP, "[inventory]\n"], Err("it names no machine"));
}

#[test]
fn attack_30_refuses_machine_objects_for_evidence_they_cannot_name() {
    let objects = "[inventory]\nmachines = { machine_sets = [\"a\"] }\n";
    let both = "[inventory]\ninstances = \"instances.txt\"\nmachines = { machine_sets = [\"a\"] }\n";
    let unnamed = Err("no Machine object of a cluster names what this evidence is about");
    check(
        r#"[["aws-identity-document"]]"#,
        &[REPLAYABLE, objects],
        Ok("aws-identity-document"),
    );
    check(r#"[["aws-nitro-tpm"]]"#, &[ANY_ACCOUNT, objects], Ok("aws-nitro-tpm"));
    check(r#"[["tpm"]]"#, &[OF_GOOGLE, TPM, GCP, objects], Ok("tpm"));
    check(r#"[["tpm"]]"#, &[TPM, objects], unnamed);
    check(r#"[["azure"]]"#, &[AZURE, objects], unnamed);
    check(r#"[["azure"]]"#, &[AZURE, both], Ok("azure"));
    // It joins no TPM to an instance.
    check(
        r#"[["tpm", "gcp"]]"#,
        &[ANY_TPM, TPM, GCP, objects],
        Err("this evidence does not prove that the TPM belongs to the instance"),
    );
    check(r#"[["tpm", "gcp"]]"#, &[ALLOWLIST, TPM, GCP, objects], Ok("tpm + gcp"));
}

/// With observation, the machines of a public cloud must be identified by something else than their boot.
#[test]
fn observing_pool_must_still_identify_cloud_machines() {
    let observing = |accepts: &str, sections: &[&str], expect: Result<&str, &str>| {
        // The sections stand before what it loads: observe is before any of them.
        let text = format!(
            "observe = true\n[grants]\n[attestation]\naccepts = {accepts}\n{}",
            sections.concat()
        );
        let loaded = load_with(|pool| {
            fs::write(pool.join("pool.toml"), &text).unwrap();
            fs::write(pool.join("instances.txt"), "").unwrap();
        });
        match (loaded, expect) {
            (Ok(pool), Ok(_)) => assert!(pool.policy.observes() && pool.warnings(false, true).iter().any(|said| said.contains("observes"))),
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{expect:?} is not in {error:?}\n{text}"),
            (loaded, expect) => panic!("{loaded:?} instead of {expect:?}\n{text}"),
        }
    };
    let checked = |section: &str| {
        section.replacen(
            "\"0-7\" = \"not checked\"",
            &format!(
                "\"0-6\" = \"not checked\"\n7 = [\"{}\"]",
                "ab".repeat(if section.contains("nitro") { 48 } else { 32 })
            ),
            1,
        )
    };
    let vtpm = |rest: &str| checked(&format!("[azure_vtpm]\n{rest}\n[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n"));
    let (any, named) = (
        "accept_any_subscription = true",
        "vm_ids = [\"b1310a36-d400-46f6-82cb-6217df846586\"]",
    );
    let everybody = Err("every customer of that cloud");
    let azure = r#"[["azure-vtpm"]]"#;
    check(azure, &[&vtpm(any)], Ok("azure-vtpm"));
    observing(azure, &[&vtpm(any)], everybody);
    observing(azure, &[&vtpm(any), INVENTORY], Ok(""));
    observing(azure, &[&vtpm(named)], Ok(""));
    observing(r#"[["azure-vtpm", "azure"]]"#, &[AZURE, &vtpm("")], Ok(""));
    observing(r#"[["azure-vtpm", "azure"], ["azure-vtpm"]]"#, &[AZURE, &vtpm(any)], everybody);
    let aws = r#"[["aws-nitro-tpm"]]"#;
    let any_account = checked(ANY_ACCOUNT);
    check(aws, &[&any_account], Ok("aws-nitro-tpm"));
    observing(aws, &[&any_account], everybody);
    observing(aws, &[&any_account, INVENTORY], Ok(""));
    let instances = any_account.replace("not checked\"\n", "not checked\"\ninstances = [\"i-0123456789abcdef0\"]\n");
    observing(
        aws,
        &[&instances.replacen("instances = [\"i-0123456789abcdef0\"]\n7", "7", 1)],
        Ok(""),
    );
    observing(r#"[["aws-nitro-tpm", "aws-identity-document"]]"#, &[&any_account, DOCUMENT], Ok(""));
    observing(r#"[["aws-nitro-tpm", "token"]]"#, &[&any_account], Ok(""));
    observing(r#"[["tpm"]]"#, &[ALLOWLIST, TPM], Ok(""));
    observing(r#"[["gcp"]]"#, &[GCP], Ok(""));
}

#[test]
fn warns_about_a_condition_enforced_despite_observe() {
    let warned = |condition: &str| {
        let text = format!("observe = true\n[grants]\n[attestation]\ncondition = \"{condition}\"\n{ALLOWLIST}{TPM}");
        let warnings = load_text(&text).unwrap().warnings(false, true);
        warnings
            .iter()
            .any(|said| said.contains("its condition refuses machines although the pool observes"))
    };
    assert!(!warned("claims.tpm.pcrs['7'] == 'ab'"));
    assert!(warned("claims.tpm.clock_safe"));
}
