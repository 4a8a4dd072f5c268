//! Checkpoints: altered, moved, taken from another gateway, or signed by another key.

use super::*;

#[tokio::test]
async fn audit_names_each_alteration_of_a_checkpoint() {
    let site = Site::new().await;
    let (a, b) = (&site.a, &site.b);
    let says = |what: &str, lines: &[String], expected: &str| site.says(what, &[lines], expected);
    let strangers = LogKey::open(&site.gateway.path("stranger.key")).unwrap();
    let field = |number: usize, name: &str| {
        let value: Value = serde_json::from_str(&a[number - 1]).unwrap();
        value["checkpoint"][name].as_str().unwrap().to_owned()
    };
    let anew = |lines: Lines, number: usize| rechained(&lines, number);
    // As whoever has no key makes them: the alteration, and then all hashes after it, those in checkpoints among them.
    let recomputed = anew(edited(a, 3, "nothing was", "something was"), 3);
    let holds = site.write_checkpoint(&a[8]);
    let holding = |what: &str, lines: &[String], expected: &str| site.says_with(what, &[lines], &["--holds", &holds], expected);
    let bare: Lines = recomputed
        .iter()
        .filter(|line| !line.contains("\"checkpoint\":{"))
        .cloned()
        .collect();
    let bare = (1..=bare.len()).fold(bare, |mut lines, number| {
        let value: Value = serde_json::from_str(&lines[number - 1]).unwrap();
        let from = format!("\"number\":{}", value["chain"]["number"]);
        lines[number - 1] = lines[number - 1].replace(&from, &format!("\"number\":{number}"));
        lines
    });
    let missed = [
        says(
            "its signature",
            &edited(a, 5, &field(5, "signature"), &field(9, "signature")),
            "checkpoint false: line 5",
        ),
        says(
            "its count",
            &anew(edited(a, 5, "\"count\":4", "\"count\":3"), 5),
            "checkpoint false: line 5",
        ),
        says(
            "its head",
            &anew(edited(a, 5, &field(5, "head"), &field(9, "head")), 5),
            "checkpoint false: line 5",
        ),
        says(
            "its name",
            &anew(edited(a, 5, "\"replica\":\"a\"", "\"replica\":\"b\""), 5),
            "checkpoint false: line 5",
        ),
        says(
            "its time, set back",
            &anew(edited(a, 5, "\"at\":1700000005", "\"at\":1600000005"), 5),
            "checkpoint false: line 5",
        ),
        says(
            "its key",
            &anew(edited(a, 5, &field(5, "key"), &strangers.public().to_string()), 5),
            "checkpoint false: line 5",
        ),
        says(
            "by another key",
            &anew(signed_by(a, 5, &strangers), 5),
            "checkpoint by an unknown key: line 5",
        ),
        says(
            "an earlier one in its place",
            &anew(replaced(a, 9, &placed(&a[4], &a[8])), 9),
            "checkpoint moved: line 9",
        ),
        says(
            "one in a record's place",
            &anew(replaced(a, 3, &placed(&a[4], &a[2])), 3),
            "checkpoint moved: line 3",
        ),
        says(
            "another's in its place",
            &anew(replaced(a, 5, &placed(&b[4], &a[4])), 5),
            "checkpoint false: line 5",
        ),
        says(
            "out of its place",
            &[&a[..4], &a[5..6], &a[4..5], &a[6..]].concat(),
            "out of order: line 5",
        ),
        says("the tail anew, without the key", &recomputed, "checkpoint false: line 5"),
        says(
            "the tail anew, by another key",
            &anew(signed_by(&recomputed, 5, &strangers), 5),
            "checkpoint by an unknown key: line 5",
        ),
        says("all of it anew, without checkpoints", &anew(bare.clone(), 1), "never signed"),
        holding("the tail anew, without checkpoints", &anew(bare, 1), "shortened after line 8"),
        says(
            "the highest number twice, and something between",
            &[
                edited(a, 2, "\"number\":2", &format!("\"number\":{}", u64::MAX)),
                vec!["x".to_owned()],
                vec![edited(a, 2, "\"number\":2", &format!("\"number\":{}", u64::MAX))[1].clone()],
            ]
            .concat(),
            "put in",
        ),
        holding(
            "what comes before it",
            &anew(edited(a, 8, "nothing was", "something was"), 8),
            "altered at or before line 9",
        ),
        says(
            "a whole log by another key",
            &written(&site.gateway.path("c"), "").await,
            "checkpoint by an unknown key: line 1",
        ),
    ];
    let old = site.says_with(
        "an old line after what verification begins after",
        &[&[&a[5..], &["x".to_owned()], &a[4..5]].concat()],
        &["--from", &site.write_checkpoint(&a[4])],
        "out of order: line 5",
    );
    let missed: Vec<String> = missed.into_iter().chain([old]).flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    // What is given as known is not taken from anybody.
    let refused = |line: &str, expected: &str| {
        for option in ["--from", "--holds"] {
            let file = site.write_checkpoint(line);
            let (sound, text) = site.audit(&[a], &[option, &file]);
            assert!(!sound && text.contains(expected), "{text}");
        }
    };
    let other = site.write_checkpoint(&b[4]);
    let elsewhere = site.says_with(
        "a checkpoint of another log",
        &[a],
        &["--from", &other],
        "missing, up to line 5 at least",
    );
    assert_eq!(elsewhere, None);
    refused(&edited(a, 5, "\"count\":4", "\"count\":3")[4], "invalid checkpoint");
    refused(&signed_by(a, 5, &strangers)[4], "unknown key");
    refused(&a[2], "not a checkpoint, which is one line of a log");
}

/// A forger of a log can sign it with a key of their own, or empty the file that says what was signed.
#[tokio::test]
async fn attack_34_audit_needs_trusted_checkpoints_or_log_keys() {
    let site = Site::new().await;
    let log = site.gateway.path("given.jsonl");
    fs::write(&log, site.a.join("\n") + "\n").unwrap();
    let (elsewhere, empty) = (site.gateway.path("elsewhere"), site.gateway.path("empty.jsonl"));
    fs::create_dir(&elsewhere).unwrap();
    fs::write(&empty, "").unwrap();
    let audit = |options: &[&str]| {
        let arguments = [
            "log",
            "audit",
            "--state",
            elsewhere.to_str().unwrap(),
            "--log",
            log.to_str().unwrap(),
        ];
        let output = site.gateway.try_command(&[&arguments[..], options].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (sound, text) = audit(&[]);
    assert!(
        !sound && text.contains("NOT KNOWN") && text.contains("pass --log-key FILE"),
        "{text}"
    );
    let key = site.gateway.path("a/log.pub");
    let (sound, text) = audit(&["--log-key", key.to_str().unwrap()]);
    assert!(sound && text.contains(" whole") && !text.contains("NOT KNOWN"), "{text}");
    let (sound, text) = audit(&["--log-key", key.to_str().unwrap(), "--checkpoints", empty.to_str().unwrap()]);
    assert!(!sound && text.contains("no checkpoints found"), "{text}");
}

#[tokio::test]
async fn audit_detects_checkpoints_by_another_gateways_key() {
    let site = Site::new().await;
    let (a, b) = (&site.a, &site.b);
    let key_of_b = LogKey::open(&site.gateway.path("b/log.key")).unwrap();
    // As whoever has that key makes them: the alteration, each line after it, and these checkpoints.
    let forged = |checkpoints: &[usize]| {
        let altered = rechained(&edited(a, 3, "nothing was", "something was"), 3);
        let sign = |lines: Lines, number: &usize| rechained(&signed_by(&lines, *number, &key_of_b), *number);
        checkpoints.iter().fold(altered, sign)
    };
    let [pub_a, pub_b] = ["a", "b"].map(|name| site.gateway.path(&format!("{name}/log.pub")).display().to_string());
    let is_a = |file: &str| format!("a={file}");
    let (a_is_a, b_is_a, b_is_b) = (is_a(&pub_a), is_a(&pub_b), format!("b={pub_b}"));
    let named = ["--log-key", &a_is_a, "--log-key", &b_is_b];
    let (some, all) = (forged(&CHECKPOINTS[1..]), forged(&CHECKPOINTS));
    let missed = [
        site.says("from some line on", &[&some, b], "line 5 is signed by another key"),
        site.says_with(
            "so, by names",
            &[&some, b],
            &named,
            "by another gateway's key: line 5 says it is of a",
        ),
        site.says_with(
            "all of it, by names",
            &[&all, b],
            &named,
            "by another gateway's key: line 1 says it is of a",
        ),
    ];
    assert_eq!(missed, [const { None }; 3]);
    let told = |files: &[&[String]], options: &[&str], expected: &str| {
        let (sound, text) = site.audit(files, options);
        assert!(sound && text.contains(expected), "{text}");
    };
    told(&[a, b], &named, "16 as recorded");
    // Who says no names is told what may be well.
    told(&[&all, b], &[], "one key signs as a and b");
    let lost = ["--log-key", &a_is_a, "--log-key", &b_is_a];
    told(
        &[&some],
        &lost,
        "from line 5 on it is signed by another key, which is its gateway's",
    );
    let anew = written(&site.gateway.path("anew/a"), "").await;
    let pub_anew = site.gateway.path("anew/a/log.pub").display().to_string();
    told(&[a, &anew], &["--log-key", &pub_a, "--log-key", &pub_anew], "a signs with 2 keys");
}

/// A forger who shortens a log can leave its gateway out of the file that says what was signed.
#[tokio::test]
async fn attack_34_audit_reports_a_gateway_without_given_checkpoint() {
    let site = Site::new().await;
    let (a, b) = (&site.a, &site.b);
    let kept = |of: &[&String]| {
        let file = site.gateway.path("some.jsonl");
        let lines = of
            .iter()
            .map(|line| LastCheckpoint::new(line, None).unwrap().to_json().unwrap() + "\n");
        fs::write(&file, lines.collect::<String>()).unwrap();
        file.display().to_string()
    };
    let (of_a, of_b) = (&a[CHECKPOINTS[2] - 1], &b[CHECKPOINTS[2] - 1]);
    let (sound, text) = site.audit(&[a, b], &["--checkpoints", &kept(&[of_a, of_b])]);
    assert!(sound, "{text}");
    let (sound, text) = site.audit(&[&a[..CHECKPOINTS[1]], b], &["--checkpoints", &kept(&[of_b])]);
    assert!(!sound && text.contains("--checkpoints has no checkpoint of gateway a"), "{text}");
}

#[tokio::test]
async fn audit_refuses_a_named_pipe_as_log_file() {
    let site = Site::new().await;
    let pipe = site.gateway.path("a/checkpoints.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let key = site.gateway.path("a/log.pub");
    let folder = site.gateway.path("a");
    let options = [
        "log",
        "audit",
        "--log",
        folder.to_str().unwrap(),
        "--log-key",
        key.to_str().unwrap(),
    ];
    let output = site.gateway.try_command(&options);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && said.contains("not a regular file"), "{said}");
}
