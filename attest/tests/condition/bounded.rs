//! Limits on the language of conditions, and on their cost.

use attest::condition::{
    Condition, DEPTH_LIMIT, LIST_LIMIT, NODES_LIMIT, OPENINGS_LIMIT, SOURCE_LIMIT_BYTES, STEPS_LIMIT, TEXT_LIMIT_BYTES,
};
use serde_json::json;

fn claims() -> serde_json::Value {
    json!({
        "identity": "tpm:ab",
        "kinds": ["tpm"],
        "pool": "worker",
        "name": null,
        "tpm": {
            "pcrs": {"0": "aa", "7": "bb"},
            "clock_ms": u64::MAX,
            "reset_count": 7,
            "clock_safe": true,
            "event_log": {"events": 3, "explained_pcrs": [0, 4, 7]},
            "boot": {"secure_boot": true, "images": ["aa", "bb"], "grub": [{"digest": "aa", "text": "set"}]},
        },
    })
}

#[test]
fn condition_evaluates_to_true_or_false() {
    let check = |source: &str, expect: bool| {
        let condition = Condition::parse(source).unwrap();
        assert_eq!(condition.evaluate(&claims()), Ok(expect), "{source}");
    };
    check("true", true);
    check("claims.pool == 'worker'", true);
    check("claims.pool == \"master\"", false);
    check("claims.pool != 'master' && claims.tpm.clock_safe", true);
    check("claims.tpm.reset_count < 8", true);
    check("claims.tpm.reset_count >= 8 || claims.tpm.reset_count == 7", true);
    check("claims.tpm.clock_ms > 9", true);
    check("claims.tpm.clock_ms == 18446744073709551615u", true);
    check("claims.tpm.pcrs['7'] in ['bb', 'cc']", true);
    check("claims.tpm.pcrs['7'] == 'aa'", false);
    check("'tpm' in claims.kinds && !('gcp' in claims.kinds)", true);
    check("has(claims.gcp) ? claims.gcp.project == 'p' : has(claims.tpm)", true);
    check("!has(claims.tpm.vtpm)", true);
    check("claims.name == null", true);
    check("claims.tpm.reset_count > -1", true);
    check("size(claims.kinds) == 1 && claims.kinds.size() == 1", true);
    check(
        "claims.identity.startsWith('tpm:') && claims.identity.endsWith('b') && claims.identity.contains(':')",
        true,
    );
    check("claims.tpm.event_log.explained_pcrs.exists(pcr, pcr == 4)", true);
    check("[0, 4].all(pcr, pcr in claims.tpm.event_log.explained_pcrs)", true);
    check("[0, 5].all(pcr, pcr in claims.tpm.event_log.explained_pcrs)", false);
    check("claims.tpm.event_log.explained_pcrs.exists_one(pcr, pcr > 4)", true);
    check("claims.tpm.pcrs.all(pcr, pcr in ['0', '7'])", true);
    check("// said why\nclaims.tpm.reset_count == 7", true);
}

#[test]
fn condition_on_missing_or_mistyped_claims_fails() {
    let check = |source: &str| {
        let found = Condition::parse(source).unwrap().evaluate(&claims());
        assert!(found.is_err(), "{source}: {found:?}");
    };
    check("claims");
    check("claims.pool");
    check("1");
    check("claims.gcp.project == 'p'");
    check("claims.tpm.pcrs['4'] == 'aa'");
    check("claims.tpm.event_log.explained_pcrs[3] == 0");
    check("claims.pool < 3");
    check("claims.pool && true");
    check("!claims.pool");
    check("claims.pool.all(x, x == 'w')");
    check("claims.tpm.startsWith('a')");
    check("size(claims.tpm.reset_count) == 1");
}

#[test]
fn unbounded_or_malformed_conditions_are_rejected() {
    let check = |source: &str, expect: &str| {
        let error = Condition::parse(source).unwrap_err();
        let found = format!("{error:?}");
        assert!(found.starts_with(expect), "{source}: {found}");
    };
    check("", "Syntax");
    check("claims.", "Syntax");
    check("claims pool", "Syntax");
    check("claims.pool = 'worker'", "Syntax");
    check("claims.pool == 'worker", "Syntax");
    check("has(claims)", "Syntax");
    check("claims.kinds.all(1, true)", "Syntax");
    check("99999999999999999999 == 1", "Syntax");
    check("claims.?pool == 'worker'", "Syntax");
    check("pool == 'worker'", "NoSuchName");
    check(".claims.pool == 'worker'", "NoSuchName");
    check("type(claims) == map", "NotAllowed");
    check("claims.kinds.all(x, true) && x", "NoSuchName");
    check("claims.pool + 'x' == 'x'", "NotAllowed");
    check("1 - 1 == 0", "NotAllowed");
    check("2 * 2 == 4", "NotAllowed");
    check("1 / 0 == 4", "NotAllowed");
    check("1 % 2 == 1", "NotAllowed");
    check("-claims.x == 1", "NotAllowed");
    check("0.5 == claims.x", "NotAllowed");
    check("b'a' == claims.x", "NotAllowed");
    check("{'a': 1} == claims", "NotAllowed");
    check("claims.Name{a: 1} == claims", "NotAllowed");
    check("[claims] == claims", "NotAllowed");
    check("[[1]] == claims", "NotAllowed");
    check("claims.kinds.map(x, x) == []", "NotAllowed");
    check("claims.kinds.filter(x, true) == []", "NotAllowed");
    check("claims.kinds.map(x, true, x) == []", "NotAllowed");
    check("claims.pool.matches('(a+)+b')", "NotAllowed");
    check("matches(claims.pool, 'a')", "NotAllowed");
    check("string(1) == '1'", "NotAllowed");
    check("claims.pool.startsWith(claims.name)", "NotAllowed");
    check("duration('1s') == claims.x", "NotAllowed");
    check("optional.of(1).hasValue()", "NoSuchName");
    check("claims.kinds.all(claims, true)", "NotAllowed");
    check("claims.kinds.all(x, claims.kinds.all(x, true))", "NotAllowed");
    check("claims.pool == 'w\u{f6}rker'", "Character");
    check("claims.pool == 'work\\ner'", "Character");
    check("claims.`pool` == 'worker'", "Character");
    check("claims.pool\0", "Character");
    check(&format!("'{}' == claims.pool", "a".repeat(SOURCE_LIMIT_BYTES)), "TooLong");
    check(&"(".repeat(OPENINGS_LIMIT + 1), "Openings");
    check(&format!("{}true", "true ? true : ".repeat(OPENINGS_LIMIT + 1)), "Openings");
    check(&format!("claims{} == 1", ".a".repeat(DEPTH_LIMIT)), "TooDeep");
    check(&format!("claims.a in [{}1]", "1,".repeat(NODES_LIMIT)), "TooManyParts");
    let compared = "claims.kinds.all(x, x == claims.pool)";
    check(compared, "TooManySteps");
    check("claims.a.all(x, claims.b.all(y, claims.c.all(z, x == 'a')))", "TooManySteps");
}

/// An expression may cost more than its counted steps: this tests the step limit on the largest claims that are allowed.
#[test]
fn expression_at_its_limits_terminates() {
    let long: Vec<String> = (0..LIST_LIMIT).map(|number| format!("{number:064}")).collect();
    let claims = json!({"a": long, "b": long});
    let check = |source: &str, expect: bool| {
        let condition = Condition::parse(source).unwrap();
        assert!(condition.steps() <= STEPS_LIMIT);
        assert_eq!(condition.evaluate(&claims), Ok(expect), "{source}");
    };
    check("claims.a == claims.b && claims.a in [1, 2] == false", true);
    check("[1,2,3,4,5,6,7,8].all(n, claims.a.all(x, x != 'a'))", true);
    check("claims.a.exists(x, [1,2,3,4].exists(y, x == 'a'))", false);
    for (text, expect) in [(TEXT_LIMIT_BYTES, true), (TEXT_LIMIT_BYTES + 1, false)] {
        let claims = json!({"a": "a".repeat(text)});
        assert_eq!(Condition::parse("true").unwrap().evaluate(&claims).is_ok(), expect);
    }
    for (count, expect) in [(LIST_LIMIT, true), (LIST_LIMIT + 1, false)] {
        let members: serde_json::Map<_, _> = (0..count).map(|number| (number.to_string(), json!(1))).collect();
        for claims in [json!({"a": vec![1; count]}), json!({"a": members})] {
            assert_eq!(Condition::parse("true").unwrap().evaluate(&claims).is_ok(), expect);
        }
    }
    let deep = (0..32).fold(json!(1), |inner, _| json!([inner]));
    assert!(Condition::parse("true").unwrap().evaluate(&deep).is_err());
    let wide = json!(vec![vec![1; LIST_LIMIT]; LIST_LIMIT]);
    assert!(Condition::parse("true").unwrap().evaluate(&wide).is_err());
    let texts = json!(vec!["a".repeat(TEXT_LIMIT_BYTES); LIST_LIMIT]);
    assert!(Condition::parse("true").unwrap().evaluate(&texts).is_err());
}

/// Text made of known and unknown parts of the language: a linear generator, so that each run makes the same.
struct Mutations(u64);

impl Mutations {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }

    fn text(&mut self) -> String {
        const PARTS: [&str; 51] = [
            "claims",
            ".pool",
            ".tpm",
            ".boot",
            ".images",
            "claims.tpm.boot",
            ".kinds",
            "[",
            "]",
            "(",
            ")",
            "{",
            "}",
            "?",
            ":",
            ".",
            ",",
            "&&",
            "||",
            "!",
            "-",
            "==",
            "!=",
            "<",
            ">=",
            " in ",
            "+",
            "'a'",
            "\"b\"",
            "1",
            "2u",
            "0x",
            "1e9",
            "true",
            "null",
            "has(",
            ".all(x, ",
            ".exists(x, ",
            ".exists_one(x, ",
            ".map(x, ",
            "x",
            "size(",
            ".startsWith('",
            "'''",
            "r'",
            "b\"",
            "//",
            "\n",
            " ",
            "as",
            "@result",
        ];
        let parts = 1 + self.next(60);
        let mut text = String::new();
        for _ in 0..parts {
            let repeated = if self.next(40) == 0 { 1 + self.next(200) } else { 1 };
            text.push_str(&PARTS[self.next(PARTS.len())].repeat(repeated));
        }
        text
    }

    fn mutate(&mut self, known: &str) -> String {
        let mut bytes = known.as_bytes().to_vec();
        for _ in 0..=self.next(4) {
            let (at, byte) = (self.next(bytes.len()), u8::try_from(0x20 + self.next(0x5f)).unwrap());
            match self.next(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        String::from_utf8(bytes).unwrap()
    }
}

/// Runs in a thread with a small stack: recursion has to fit into it.
#[test]
fn attack_23_condition_parser_never_panics_or_recurses() {
    const STACK_BYTES: usize = 1024 * 1024;
    let run = || {
        let known = [
            "claims.tpm.pcrs['7'] in ['bb', 'cc'] && has(claims.tpm) ? size(claims.kinds) == 1 : claims.pool.startsWith('a')",
            "claims.tpm.boot.secure_boot && claims.tpm.boot.images == ['aa', 'bb'] && claims.tpm.boot.grub.all(g, g.text.startsWith('set'))",
            "[0, 4].all(pcr, pcr in claims.tpm.event_log.explained_pcrs) || claims.kinds.exists_one(k, k == \"tpm\")",
        ];
        let mut mutations = Mutations(1);
        let (mut read, mut decided) = (0, 0);
        for turn in 0..4_000 {
            let text = match turn % 4 {
                0 => mutations.text(),
                other => mutations.mutate(known[other - 1]),
            };
            let Ok(condition) = Condition::parse(&text) else { continue };
            assert!(condition.steps() <= STEPS_LIMIT, "{text}");
            read += 1;
            decided += usize::from(condition.evaluate(&claims()).is_ok());
        }
        (read, decided)
    };
    let (read, decided) = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
    assert!(read > 200 && decided > 100, "{read} {decided}: this test would see it");
}

#[test]
fn condition_serializes_to_its_source_text() {
    let read: Result<Condition, _> = serde_json::from_str("\"claims.pool == 'worker'\"");
    let read = read.unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), "\"claims.pool == 'worker'\"");
    assert!(serde_json::from_str::<Condition>("\"claims.pool == \"").is_err());
}
