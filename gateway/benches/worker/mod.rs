//! MachineConfigs like those of a real worker, the same ones each time, and their YAML. The benchmarks serve and render them; a VM of
//! swtpm-tests boots with them.

#![allow(dead_code, reason = "each user of it uses its part")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

/// Marker of the files that a node gets only after approval.
pub const MARKER: &str = "only-for-approved-nodes";
/// Number of files in all MachineConfigs of [`machine_configs`].
pub const FILES: usize = 150;
/// Units in all MachineConfigs of [`machine_configs`].
pub const UNITS: usize = 60;

/// Sizes of the files in bytes, in turn: most are small, one in ten is a bundle of certificates or a static pod.
const FILE_BYTES: [usize; 10] = [300, 1200, 500, 3400, 90, 800, 4000, 2600, 700, 9000];
/// Annotation of MachineConfigs that the operator has made itself.
const GENERATED: &str = "machineconfiguration.openshift.io/generated-by-controller-version";

/// Returns a worker's MachineConfigs: three are for nodes that are not approved yet, the others have [`MARKER`] in each file. Users only if
/// `users`: not every system can add them.
pub fn machine_configs(users: bool) -> Vec<Value> {
    let mut site = config("3.4.0", files(90..147, MARKER), units(40..59, MARKER));
    // What came before it is overwritten, and has more drop-ins.
    push(&mut site, "/storage/files", file("/etc/worker.d/7.conf", 7, MARKER));
    push(
        &mut site,
        "/systemd/units",
        json!({"name": "worker-3.service", "dropins": [dropin(9, MARKER)]}),
    );
    let mut ssh = config("3.2.0", vec![file("/etc/ssh/sshd_config.d/40-site.conf", 4, MARKER)], Vec::new());
    if users {
        let key = |number| BASE64.encode(filler_text(number, 51, "").as_bytes());
        let keys: Vec<String> = (0..2).map(|number| format!("ssh-ed25519 {} admin-{number}", key(number))).collect();
        ssh["passwd"] = json!({"users": [{"name": "core", "sshAuthorizedKeys": keys}]});
    }
    let mut base = config("3.2.0", files(0..70, ""), units(0..30, ""));
    base["storage"]["directories"] = (0..5)
        .map(|n| json!({"path": format!("/var/lib/worker-{n}"), "mode": 0o750}))
        .collect();
    base["storage"]["links"] = (0..5)
        .map(|n| json!({"path": format!("/etc/worker-link-{n}"), "target": format!("worker.d/{n}.conf")}))
        .collect();
    vec![
        generated("00-worker", json!({"config": base})),
        generated(
            "01-worker-container-runtime",
            json!({"config": config("3.2.0", files(70..80, ""), Vec::new())}),
        ),
        object(
            "01-worker-kubelet",
            json!({"neededBeforeNodeApproved": true, "config": config("3.4.0", files(80..90, ""), units(30..40, ""))}),
        ),
        object("50-worker-legacy", json!({"config": legacy()})),
        object(
            "97-worker-kernel",
            json!({"kernelArguments": ["nosmt", "audit=1", "hugepagesz=1G"], "kernelType": "default"}),
        ),
        object("99-worker-ssh", json!({"config": ssh})),
        object("99-worker-site", json!({"config": site})),
    ]
}

/// Returns the Ignition configs of pool number `pool` of many: for nodes before approval, and the rest. They are as large as a worker's,
/// and share nothing with another pool's.
pub fn pool_configs(pool: usize) -> [Value; 2] {
    let own = |range: std::ops::Range<usize>, marker: &str| {
        let file = |number: usize| file(&format!("/etc/worker.d/{number}.conf"), pool * FILES + number, marker);
        range.map(file).collect()
    };
    [
        config("3.4.0", own(0..30, ""), units(0..12, "")),
        config("3.4.0", own(30..FILES, MARKER), units(12..UNITS, MARKER)),
    ]
}

/// Returns the same as MachineConfigs.
pub fn machine_configs_of_pool(pool: usize) -> Vec<Value> {
    let [needed, rest] = pool_configs(pool);
    vec![
        object("00-worker", json!({"neededBeforeNodeApproved": true, "config": needed})),
        object("99-worker-site", json!({"config": rest})),
    ]
}

/// Returns MachineConfig `number` of very many small ones, like those of tools that make one for each setting.
pub fn small_machine_config(number: usize) -> Value {
    let path = |part: usize| format!("/etc/small.d/{number}-{part}.conf");
    let files = (0..3).map(|part| file(&path(part), number * 3 + part, "")).collect();
    let unit = json!({"name": format!("small-{number}.service"), "enabled": true, "contents": unit_file(number, "")});
    object(
        &format!("50-worker-small-{number:04}"),
        json!({"config": config("3.2.0", files, vec![unit])}),
    )
}

/// Writes each MachineConfig to a file of its own.
pub fn write(folder: &Path, configs: &[Value]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for config in configs {
        let name = config["metadata"]["name"].as_str().unwrap_or("unnamed");
        fs::write(folder.join(format!("{name}.yaml")), yaml(config))?;
    }
    Ok(())
}

/// Converts a value to YAML like people and tools write it: blocks, texts of several lines as they are.
pub fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out
}

fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let _ = write!(out, "{:indent$}{key}:", "");
                nested(out, value, indent + 2);
            }
        }
        Value::Array(list) => {
            for value in list {
                let mut entry = String::new();
                block(&mut entry, value, indent + 2);
                let _ = write!(out, "{:indent$}- {}", "", entry.trim_start());
            }
        }
        scalar => {
            let _ = writeln!(out, "{:indent$}{scalar}", "");
        }
    }
}

fn nested(out: &mut String, value: &Value, indent: usize) {
    let _ = match value {
        Value::String(text) if text.ends_with('\n') && text.starts_with('[') => {
            let lines = text.lines().map(|line| format!("{:indent$}{line}\n", ""));
            write!(out, " |\n{}", lines.collect::<String>())
        }
        Value::String(text) if text.starts_with("data:") || text.starts_with('/') => writeln!(out, " {text}"),
        Value::Object(fields) if fields.is_empty() => writeln!(out, " {{}}"),
        Value::Object(_) | Value::Array(_) => {
            out.push('\n');
            block(out, value, indent);
            Ok(())
        }
        scalar => writeln!(out, " {scalar}"),
    };
}

fn object(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {"machineconfiguration.openshift.io/role": "worker"}},
        "spec": spec,
    })
}

fn generated(name: &str, spec: Value) -> Value {
    let mut object = object(name, spec);
    object["metadata"]["annotations"] = json!({GENERATED: "0123456789abcdef0123456789abcdef01234567"});
    object
}

fn config(version: &str, files: Vec<Value>, units: Vec<Value>) -> Value {
    let mut config = Map::new();
    config.insert("ignition".to_owned(), json!({"version": version}));
    config.insert("storage".to_owned(), json!({"files": files}));
    if !units.is_empty() {
        config.insert("systemd".to_owned(), json!({"units": units}));
    }
    Value::Object(config)
}

fn push(config: &mut Value, place: &str, entry: Value) {
    if let Some(list) = config.pointer_mut(place).and_then(Value::as_array_mut) {
        list.push(entry);
    }
}

/// Returns a MachineConfig in a version older than spec 3.
fn legacy() -> Value {
    let file = |number: usize| {
        let source = BASE64.encode(filler_text(number, 400, MARKER).as_bytes());
        json!({
            "filesystem": "root",
            "path": format!("/etc/legacy.d/{number}.conf"),
            "mode": 0o600,
            "contents": {"source": format!("data:text/plain;charset=utf-8;base64,{source}")},
        })
    };
    let unit = json!({"name": "legacy.service", "enabled": true, "contents": unit_file(1, MARKER)});
    json!({
        "ignition": {"version": "2.2.0"},
        "storage": {"files": (0..2).map(file).collect::<Vec<_>>()},
        "systemd": {"units": [unit]},
    })
}

fn files(numbers: std::ops::Range<usize>, marker: &str) -> Vec<Value> {
    numbers
        .map(|number| file(&format!("/etc/worker.d/{number}.conf"), number, marker))
        .collect()
}

/// Returns a file whose contents are in one of three forms: percent-encoded, in base64, compressed.
fn file(path: &str, number: usize, marker: &str) -> Value {
    let bytes = FILE_BYTES.get(number % FILE_BYTES.len()).copied().unwrap_or_default();
    let text = filler_text(number, bytes, marker);
    let contents = match number % 5 {
        0 | 2 => json!({"source": format!("data:,{}", percent(&text))}),
        4 => json!({"source": format!("data:;base64,{}", BASE64.encode(&gzip(&text))), "compression": "gzip"}),
        _ => json!({"source": format!("data:text/plain;charset=utf-8;base64,{}", BASE64.encode(text.as_bytes()))}),
    };
    let mode = [0o644, 0o600, 0o755, 0o444];
    let mut file = json!({"path": path, "mode": mode.get(number % mode.len()), "contents": contents});
    if number.is_multiple_of(3) {
        file["overwrite"] = json!(true);
    }
    file
}

/// Returns units of all sorts: whole ones, drop-ins for others' units, disabled and masked ones.
fn units(numbers: std::ops::Range<usize>, marker: &str) -> Vec<Value> {
    let unit = |number: usize| {
        let name = format!("worker-{number}.service");
        let contents = unit_file(number, marker);
        match number % 6 {
            0 => json!({"name": name, "dropins": [dropin(number, marker), dropin(number + 1, marker)]}),
            1 => json!({"name": name, "enabled": false, "contents": contents}),
            2 => json!({"name": name, "mask": true}),
            3 => json!({"name": name, "enabled": true, "contents": contents, "dropins": [dropin(number, marker)]}),
            4 => json!({"name": name, "mask": false, "contents": contents}),
            _ => json!({"name": name, "enabled": true, "contents": contents}),
        }
    };
    numbers.map(unit).collect()
}

fn dropin(number: usize, marker: &str) -> Value {
    let contents = format!("[Service]\nEnvironment=NUMBER={number}\nEnvironment=WHO={marker}\n");
    json!({"name": format!("{number}-more.conf"), "contents": contents})
}

fn unit_file(number: usize, marker: &str) -> String {
    format!(
        "[Unit]\nDescription=Unit {number} {marker}\nAfter=network-online.target\nWants=network-online.target\n\n[Service]\n\
         Type=oneshot\nExecStart=/usr/bin/echo {}\nRemainAfterExit=yes\n\n[Install]\nWantedBy=multi-user.target\n",
        filler_text(number, 120, "").replace('\n', " ")
    )
}

/// Returns a text of about that many bytes, the same for the same number.
fn filler_text(number: usize, bytes: usize, marker: &str) -> String {
    let mut text = String::new();
    if !marker.is_empty() {
        let _ = writeln!(text, "# {marker}");
    }
    // Any step that is coprime to the modulus does. With these lines, a rendered config becomes as small by gzip as a cluster's own: 778 KB
    // of it were 152 KB.
    let mut state = number * 7919 + 17;
    while text.len() < bytes {
        state = (state * 1_103_515 + 12_345) % 2_147_483_648;
        let _ = writeln!(
            text,
            "setting-{} = \"{state:x} of this node, and {} of the others\"",
            state % 97,
            state % 1009
        );
    }
    text
}

fn percent(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Into memory: nothing to fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}
