//! Configs of few keys, so that two of them collide.

use std::collections::HashSet;
use std::sync::OnceLock;

use data_encoding::BASE64;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

pub type Values = BoxedStrategy<Value>;

/// Returns a strategy for an object: each field is present with its likelihood.
fn object(fields: Vec<(&'static str, f64, Values)>) -> Values {
    let names: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
    let values: Vec<_> = fields
        .into_iter()
        .map(|(_, likelihood, values)| {
            if likelihood < 1.0 {
                proptest::option::weighted(likelihood, values).boxed()
            } else {
                values.prop_map(Some).boxed()
            }
        })
        .collect();
    values
        .prop_map(move |values| {
            let fields = names
                .iter()
                .zip(values)
                .filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(fields.collect())
        })
        .boxed()
}

fn one_of(values: &[&'static str]) -> Values {
    select(values.to_vec()).prop_map(Value::from).boxed()
}

fn flag() -> Values {
    any::<bool>().prop_map(Value::from).boxed()
}

fn number(values: &[i64]) -> Values {
    select(values.to_vec()).prop_map(Value::from).boxed()
}

fn list(entries: Values) -> Values {
    proptest::collection::vec(entries, 0..4).prop_map(Value::from).boxed()
}

/// Returns a strategy for a list whose entries have keys, made unique by them.
fn unique(entries: Values, key: &'static str) -> Values {
    list(entries)
        .prop_map(move |mut entries| {
            keep_first(&mut entries, key, &mut HashSet::new());
            entries
        })
        .boxed()
}

fn keep_first(entries: &mut Value, key: &str, seen: &mut HashSet<String>) {
    if let Some(entries) = entries.as_array_mut() {
        entries.retain(|entry| seen.insert(if key.is_empty() { entry } else { &entry[key] }.to_string()));
    }
}

/// Returns a strategy for an object whose lists share their keys.
fn family(object: Values, lists: &'static [&'static str], key: &'static str) -> Values {
    object
        .prop_map(move |mut object| {
            let mut seen = HashSet::new();
            for list in lists {
                keep_first(&mut object[list], key, &mut seen);
                if object[list].is_null() {
                    object.as_object_mut().unwrap().remove(*list);
                }
            }
            object
        })
        .boxed()
}

/// Returns a strategy for a config of spec 3.`minor` that is valid nearly always. It has few keys, so that two configs collide.
pub fn config(minor: u8) -> Values {
    let mut sections = vec![
        ("ignition", 1.0, ignition(minor)),
        ("passwd", 0.7, passwd(minor)),
        ("storage", 0.9, storage(minor)),
        ("systemd", 0.7, object(vec![("units", 1.0, units())])),
    ];
    if minor >= 3 {
        let arguments = || unique(one_of(&["a", "b=1", "c d"]), "");
        let both = object(vec![("shouldExist", 0.8, arguments()), ("shouldNotExist", 0.8, arguments())]);
        sections.push(("kernelArguments", 0.5, family(both, &["shouldExist", "shouldNotExist"], "")));
    }
    object(sections)
}

fn ignition(minor: u8) -> Values {
    let version = Just(Value::from(format!("3.{minor}.0"))).boxed();
    let times = number(&[0, 1, 30]);
    let authority = object(vec![("source", 1.0, select(authorities()).prop_map(Value::from).boxed())]);
    let mut fields = vec![
        ("version", 1.0, version),
        (
            "timeouts",
            0.3,
            object(vec![("httpTotal", 0.5, times.clone()), ("httpResponseHeaders", 0.5, times)]),
        ),
        (
            "security",
            0.3,
            object(vec![(
                "tls",
                1.0,
                object(vec![("certificateAuthorities", 1.0, unique(authority, "source"))]),
            )]),
        ),
    ];
    if minor >= 1 {
        let url = one_of(&["http://proxy:3128", "https://user:pw@proxy/"]);
        let hosts = unique(one_of(&["a", "b", "c"]), "");
        let proxy = object(vec![
            ("httpProxy", 0.5, url.clone()),
            ("httpsProxy", 0.5, url),
            ("noProxy", 0.5, hosts),
        ]);
        fields.push(("proxy", 0.3, proxy));
    }
    object(fields)
}

/// Returns real CAs, because Ignition loads them, in the form in which it then keeps them.
fn authorities() -> Vec<String> {
    static AUTHORITIES: OnceLock<Vec<String>> = OnceLock::new();
    let make = |name: &str| {
        let certificate = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        format!(
            "data:text/plain;charset=utf-8;base64,{}",
            BASE64.encode(certificate.cert.pem().as_bytes())
        )
    };
    AUTHORITIES.get_or_init(|| vec![make("a.example"), make("b.example")]).clone()
}

fn passwd(minor: u8) -> Values {
    let names = unique(one_of(&["g", "h", "wheel"]), "");
    let words = one_of(&["", "x", "y"]);
    let mut user = vec![
        ("name", 1.0, one_of(&["core", "admin"])),
        ("sshAuthorizedKeys", 0.6, unique(one_of(&["k1", "k2", "k3"]), "")),
        ("groups", 0.4, names),
        ("passwordHash", 0.3, words.clone()),
        ("gecos", 0.2, words.clone()),
        ("shell", 0.2, words),
        ("uid", 0.3, number(&[0, 1000, 1001])),
        ("noCreateHome", 0.2, flag()),
        ("system", 0.2, flag()),
    ];
    let mut group = vec![
        ("name", 1.0, one_of(&["g", "h"])),
        ("gid", 0.5, number(&[0, 100])),
        ("system", 0.3, flag()),
    ];
    if minor >= 2 {
        user.push(("shouldExist", 0.3, flag()));
        group.push(("shouldExist", 0.3, flag()));
    }
    object(vec![
        ("users", 0.8, unique(object(user), "name")),
        ("groups", 0.5, unique(object(group), "name")),
    ])
}

fn units() -> Values {
    let contents = one_of(&[
        "",
        "[Unit]\nDescription=a\n",
        "[Service]\nExecStart=/bin/true\n\n[Install]\nWantedBy=a.target",
    ]);
    let dropin = object(vec![
        ("name", 1.0, one_of(&["1.conf", "2.conf"])),
        ("contents", 0.8, contents.clone()),
    ]);
    let unit = object(vec![
        ("name", 1.0, one_of(&["a.service", "b.timer"])),
        ("enabled", 0.5, flag()),
        ("mask", 0.3, flag()),
        ("contents", 0.6, contents),
        ("dropins", 0.6, unique(dropin, "name")),
    ]);
    unique(unit, "name")
}

fn resource(minor: u8) -> Values {
    let sha256 = format!("sha256-{}", "0".repeat(64));
    let sha512 = format!("sha512-{}", "0".repeat(128));
    let hashes = if minor >= 1 { vec![sha256, sha512] } else { vec![sha512] };
    let hash = select(hashes).prop_map(Value::from).boxed();
    let fetched = |sources: &[&'static str]| {
        vec![
            ("source", 1.0, one_of(sources)),
            ("compression", 0.3, one_of(&["", "gzip"])),
            ("verification", 0.3, object(vec![("hash", 0.8, hash.clone())])),
        ]
    };
    let mut over_http = fetched(&["http://h/1", "https://h/2"]);
    if minor >= 1 {
        let header = object(vec![("name", 1.0, one_of(&["A", "B"])), ("value", 0.7, one_of(&["1", "2"]))]);
        over_http.push(("httpHeaders", 0.7, unique(header, "name")));
    }
    let mut sources = vec!["", "data:,1", "data:;base64,Mg==", "tftp://h/1", "s3://b/o?versionId=1"];
    if minor >= 2 {
        sources.push("gs://b/o");
    }
    prop_oneof![object(fetched(&sources)), object(over_http)].boxed()
}

fn node() -> Vec<(&'static str, f64, Values)> {
    let owner = || {
        prop_oneof![
            object(vec![("id", 0.8, number(&[0, 500]))]),
            object(vec![("name", 0.8, one_of(&["", "root", "u"]))])
        ]
        .boxed()
    };
    vec![
        ("path", 1.0, one_of(&["/a", "/b", "/c", "/d", "/d/e", "/d/e/f"])),
        ("user", 0.3, owner()),
        ("group", 0.3, owner()),
    ]
}

fn storage(minor: u8) -> Values {
    let with = |more: Vec<(&'static str, f64, Values)>| object(node().into_iter().chain(more).collect());
    let modes = number(&[0, 0o600, 0o644, 0o777]);
    let append = list(resource(minor));
    let file = prop_oneof![
        with(vec![
            ("contents", 1.0, resource(minor)),
            ("overwrite", 0.5, flag()),
            ("mode", 0.5, modes.clone()),
            ("append", 0.2, append.clone())
        ]),
        with(vec![
            ("overwrite", 0.3, Just(Value::Bool(false)).boxed()),
            ("mode", 0.5, modes.clone()),
            ("append", 0.7, append)
        ]),
    ]
    .boxed();
    let mut lists = vec![
        ("files", 0.9, list(file)),
        (
            "directories",
            0.4,
            list(with(vec![("mode", 0.5, modes), ("overwrite", 0.5, flag())])),
        ),
        (
            "links",
            0.4,
            list(with(vec![
                ("target", 1.0, one_of(&["/t", "t", "/b", "../d"])),
                ("hard", 0.3, flag()),
                ("overwrite", 0.5, flag()),
            ])),
        ),
        ("disks", 0.4, disks(minor)),
        ("raid", 0.3, raid()),
        ("filesystems", 0.4, filesystems(minor)),
    ];
    if minor >= 2 {
        lists.push(("luks", 0.4, luks(minor)));
    }
    family(object(lists), &["files", "directories", "links"], "path")
}

fn disks(minor: u8) -> Values {
    let guid = one_of(&["01234567-89AB-CDEF-EDCB-A98765432101", "00000000-0000-0000-0000-000000000000", ""]);
    let partition = |identity: Vec<(&'static str, f64, Values)>| {
        let mut fields = vec![
            ("startMiB", 0.3, number(&[0, 1, 100])),
            ("sizeMiB", 0.3, number(&[0, 50, 99, 100])),
            ("guid", 0.2, guid.clone()),
            ("typeGuid", 0.2, guid.clone()),
            ("wipePartitionEntry", 0.2, flag()),
            ("shouldExist", 0.2, Just(Value::Bool(true)).boxed()),
        ];
        if minor >= 2 {
            fields.push(("resize", 0.2, flag()));
        }
        fields.extend(identity);
        object(fields)
    };
    let (numbers, labels) = (number(&[1, 2, 3]), one_of(&["root", "boot", "var"]));
    let partitions = prop_oneof![
        unique(partition(vec![("number", 1.0, numbers.clone())]), "number"),
        unique(partition(vec![("label", 1.0, labels.clone())]), "label"),
        unique(partition(vec![("label", 0.5, labels), ("number", 1.0, numbers)]), "number"),
    ];
    let disk = object(vec![
        ("device", 1.0, one_of(&["/dev/a", "/dev/b"])),
        ("wipeTable", 0.3, flag()),
        ("partitions", 0.8, partitions.boxed()),
    ]);
    unique(disk, "device")
}

fn raid() -> Values {
    let devices = proptest::collection::vec(one_of(&["/dev/c", "/dev/d", "/dev/e"]), 1..4).prop_map(|mut devices| {
        devices.dedup();
        Value::from(devices)
    });
    let raid = object(vec![
        ("name", 1.0, one_of(&["r", "s"])),
        ("level", 1.0, one_of(&["raid1", "5", "raid10", "linear"])),
        ("devices", 1.0, devices.boxed()),
        ("spares", 0.3, number(&[0, 1])),
        ("options", 0.3, list(one_of(&["--a", "--b"]))),
    ]);
    unique(raid, "name")
}

fn filesystems(minor: u8) -> Values {
    let formats: &[&str] = if minor >= 3 {
        &["ext4", "xfs", "btrfs", "vfat", "swap", "none"]
    } else {
        &["ext4", "xfs", "btrfs", "vfat", "swap"]
    };
    let options = list(one_of(&["-a", "-b"]));
    let mut fields = vec![
        ("device", 1.0, one_of(&["/dev/a", "/dev/b", "/dev/f"])),
        ("format", 1.0, one_of(formats)),
        ("path", 0.5, one_of(&["/", "/var", ""])),
        ("label", 0.4, one_of(&["", "root", "sixteen-letters!"])),
        ("uuid", 0.2, one_of(&["u", "v"])),
        ("wipeFilesystem", 0.3, flag()),
        ("options", 0.3, options.clone()),
    ];
    if minor >= 1 {
        fields.push(("mountOptions", 0.3, options));
    }
    let bare = object(vec![("device", 1.0, one_of(&["/dev/a", "/dev/b"])), ("path", 0.2, one_of(&[""]))]);
    unique(prop_oneof![9 => object(fields), 1 => bare].boxed(), "device")
}

fn luks(minor: u8) -> Values {
    let tang = object(vec![
        ("url", 1.0, one_of(&["http://t/1", "https://t/2"])),
        ("thumbprint", 1.0, one_of(&["x", "y"])),
    ]);
    let custom = object(vec![
        ("pin", 1.0, one_of(&["tpm2", "sss"])),
        ("config", 1.0, one_of(&["{}", "{\"a\":1}"])),
        ("needsNetwork", 0.5, flag()),
    ]);
    let clevis = prop_oneof![
        object(vec![
            ("tang", 0.6, unique(tang, "url")),
            ("tpm2", 0.4, flag()),
            ("threshold", 0.4, number(&[0, 1, 2]))
        ]),
        object(vec![("custom", 1.0, custom)]),
    ];
    let luks = object(vec![
        ("name", 1.0, one_of(&["l", "m"])),
        ("device", 1.0, one_of(&["/dev/g", "/dev/h"])),
        ("label", 0.3, one_of(&["", "x"])),
        ("uuid", 0.2, one_of(&["u", "v"])),
        ("keyFile", 0.3, resource(minor)),
        ("options", 0.3, list(one_of(&["-a", "-b"]))),
        ("wipeVolume", 0.3, flag()),
        ("clevis", 0.6, clevis.boxed()),
    ]);
    unique(luks, "name")
}
