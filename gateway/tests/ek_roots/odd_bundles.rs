//! Bundles that are large, strange or interrupted.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use attest_certificates::ek_roots::PEM_LIMIT_BYTES;
use rcgen::{CustomExtension, DnType};

use super::bundle::{KEY, ca, contents, fingerprint, folder, issued, many, pem, root};
use super::{count, import, report};
use crate::support::{Gateway, program};

#[test]
fn a_folder_is_read_without_links_and_odd_files() {
    let gateway = Gateway::init();
    let (top, below) = (ca("A maker", "Top"), ca("A maker", "Below"));
    let intermediate = issued(&below, &*KEY, (&top, &KEY));
    let top = root(&top);
    let bundle = folder(
        gateway.path("TrustedTpm"),
        &[
            ("A/RootCA/top.CER", &top),
            ("A/IntermediateCA/below.crt", pem(&intermediate).as_bytes()),
            ("A/RootCA/same.pem", pem(&top).as_bytes()),
            ("setup.cmd", b"a script"),
            ("version.txt", b"1"),
            (".git/hidden.pem", pem(&root(&ca("A maker", "Hidden"))).as_bytes()),
        ],
    );
    symlink(".", bundle.join("loop")).unwrap();
    symlink("../..", bundle.join("A/up")).unwrap();
    symlink("top.CER", bundle.join("A/RootCA/link.pem")).unwrap();
    symlink("/dev/zero", bundle.join("zero.pem")).unwrap();
    assert!(Command::new("mkfifo").arg(bundle.join("pipe.pem")).status().unwrap().success());
    let read = report(&gateway, &bundle, &["--yes"]);
    assert_eq!((count(&read, "added"), count(&read, "refused")), (2, 5), "{read}");
    let roles: Vec<(&str, &str)> = read["added"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ca| (ca["role"].as_str().unwrap(), ca["sha256"].as_str().unwrap()))
        .collect();
    let (top, below) = (fingerprint(&top), fingerprint(&intermediate));
    assert_eq!(roles, [("intermediate", below.as_str()), ("root", top.as_str())]);
    // The digest is one that anybody can compute.
    let script = "find . -type f -not -path '*/.*/*' \\( -iname '*.pem' -o -iname '*.crt' -o -iname '*.cer' -o -iname '*.der' \\) -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum";
    let output = Command::new("sh").args(["-c", script]).current_dir(&bundle).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    assert_eq!(read["sha256"].as_str(), expected.split(' ').next());
    // Its subfolder is a bundle, too.
    let part = report(&gateway, &bundle.join("A/RootCA"), &[]);
    assert_eq!((count(&part, "added"), count(&part, "present")), (0, 1));
}

#[test]
fn refuses_what_is_no_bundle() {
    let gateway = Gateway::init();
    let cabinet = folder(gateway.path("in"), &[("TrustedTpm.cab", b"MSCF\0\0\0\0")]).join("TrustedTpm.cab");
    fs::write(gateway.path("in/control\u{1b}[2J.pem"), "x").unwrap();
    let deep = (0..12).fold(gateway.path("deep"), |folder, _| folder.join("d"));
    fs::create_dir_all(&deep).unwrap();
    assert!(Command::new("mkfifo").arg(gateway.path("pipe")).status().unwrap().success());
    for (bundle, reason) in [
        (cabinet, "cabextract --directory EXTRACTED"),
        (gateway.path("deep"), "more than 8 levels of folders"),
        (gateway.path("missing"), "No such file"),
        (gateway.path("pipe"), "named pipe"),
        (gateway.path("in"), "nothing to import"),
    ] {
        let (done, said) = import(&gateway, &bundle, &["--yes"]);
        assert!(
            !done && said.contains(reason) && !said.contains('\u{1b}'),
            "{}: {said}",
            bundle.display()
        );
    }
    assert!(contents(&gateway.path("ek-roots")).is_empty());
}

#[test]
fn a_bundle_of_a_gibibyte_is_refused_without_reading_it() {
    let gateway = Gateway::init();
    let file = folder(gateway.path("large"), &[("a.pem", b"")]).join("a.pem");
    File::options().write(true).open(&file).unwrap().set_len(1 << 30).unwrap();
    for bundle in [&file, &gateway.path("large")] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 600000; exec \"$@\"", "sh"]);
        command
            .arg(program().get_program())
            .arg("--config")
            .arg(gateway.path("gateway.toml"));
        let begun = Instant::now();
        let output = command.args(["ek-roots", "import", "--yes"]).arg(bundle).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("the bundle has more than 33554432 bytes"),
            "{said}"
        );
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

/// More than ten times Microsoft's bundle.
#[test]
fn imports_ten_thousand_certificates() {
    let gateway = Gateway::init();
    let bundle = gateway.path("many.pem");
    fs::write(&bundle, many(10_000)).unwrap();
    let begun = Instant::now();
    assert_eq!(count(&report(&gateway, &bundle, &["--yes"]), "added"), 10_000);
    eprintln!("import of 10,000 certificates: {:?}", begun.elapsed());
    let again = report(&gateway, &bundle, &["--yes"]);
    assert_eq!((count(&again, "added"), count(&again, "present")), (0, 10_000));
    let checked = gateway.command(&["check"]);
    assert!(
        checked.contains("10000 certificates, which endorse TPMs of Maker 0 (1000), Maker 1 (1000)"),
        "{checked}"
    );
}

/// A record could not name more: the gateway refuses to use them, and an import to bring them.
#[test]
fn refuses_more_ek_roots_than_a_record_can_name() {
    let gateway = Gateway::init();
    let mut large = ca("A maker", "Large");
    large.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999], vec![0; 7000])];
    let certificate = root(&large);
    let count = PEM_LIMIT_BYTES / pem(&certificate).len();
    let roots = gateway.path("ek-roots");
    let first = roots.join("0.der");
    fs::write(&first, &certificate).unwrap();
    (1..count).for_each(|number| fs::hard_link(&first, roots.join(format!("{number}.der"))).unwrap());
    let bundle = gateway.path("more.pem");
    large.distinguished_name.push(DnType::CommonName, "Larger");
    fs::write(&bundle, pem(&root(&large))).unwrap();
    let before = contents(&roots).len();
    let refusal = "bytes as PEM, and the limit is 67108864: keep only those of manufacturers whose TPMs you have";
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    // The folder alone is not too large.
    assert!(!done && said.contains(refusal) && !said.contains("ek-roots: "), "{said}");
    assert_eq!(contents(&roots).len(), before);
    // By hand.
    fs::copy(&bundle, roots.join("more.pem")).unwrap();
    let output = gateway.try_command(&["check"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(
        !output.status.success() && said.contains("ek-roots: ") && said.contains(refusal),
        "{said}"
    );
}

#[test]
fn a_killed_import_leaves_the_folder_as_it_was_or_complete() {
    const CERTIFICATES: usize = 1000;
    let gateway = Gateway::init();
    let bundle = gateway.path("many.pem");
    fs::write(&bundle, many(CERTIFICATES)).unwrap();
    let roots = gateway.path("ek-roots");
    let begun = Instant::now();
    assert_eq!(count(&report(&gateway, &bundle, &[]), "added"), CERTIFICATES);
    let whole = begun.elapsed();
    // Killed at moments over the whole time that it takes, and after it.
    let (mut complete, steps) = (0, 20);
    for step in 1..=steps {
        let mut child = program();
        child.arg("--config").arg(gateway.path("gateway.toml"));
        let child = child.args(["ek-roots", "import", "--yes"]).arg(&bundle).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        sleep(whole * step / 12);
        child.kill().unwrap();
        child.wait().unwrap();
        let files: Vec<_> = contents(&roots).into_iter().filter(|(name, _)| !name.starts_with('.')).collect();
        match files.as_slice() {
            [] => {}
            [(name, content)] => {
                let certificates = String::from_utf8_lossy(content).matches("-----END CERTIFICATE-----").count();
                assert_eq!(certificates, CERTIFICATES, "{name}");
                complete += 1;
                fs::remove_file(roots.join(name)).unwrap();
            }
            more => panic!("{} files", more.len()),
        }
    }
    eprintln!("{complete} of {steps} were complete when they were killed");
    fs::write(roots.join(".imported-many-pem-0123.pem.part"), "half").unwrap();
    assert_eq!(count(&report(&gateway, &bundle, &["--yes"]), "added"), CERTIFICATES);
    assert_eq!(contents(&roots).len(), 1, "no temporary file is left");
}
