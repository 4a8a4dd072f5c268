#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use super::*;
use crate::policy::Earns;

const CONFIG: &str = r#"{"ignition":{"version":"3.1.0"}}"#;

/// A folder with one pool, changed by `change`.
fn load_with(change: impl FnOnce(&Path)) -> Result<Pools, String> {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("worker");
    for set in ["full", "pre-approved"] {
        fs::create_dir_all(pool.join(set)).unwrap();
        fs::write(pool.join(set).join("config.ign"), CONFIG).unwrap();
    }
    fs::write(pool.join("pool.toml"), SAMPLE).unwrap();
    change(&pool);
    load(folder.path()).map_err(|error| error.to_string())
}

fn load_text(text: &str) -> Result<Pools, String> {
    load_with(|pool| fs::write(pool.join("pool.toml"), text).unwrap())
}

#[test]
fn the_sample_is_a_pool() {
    let pools = load_with(|_| ()).unwrap();
    let pool = &pools["worker"];
    assert_eq!(
        pool.grants,
        Grants {
            attested: Earns::Full,
            token: Earns::Refuse,
            nothing: Earns::PreApproved
        }
    );
    assert!(pool.selection.pcrs().iter().copied().eq(0..8));
    assert_eq!(pool.endorsement, Endorsement::Any);
    assert_eq!(
        (pool.warnings(false).len(), pool.warnings(true).len()),
        (2, 3),
        "{:?}",
        pool.warnings(true)
    );
}

#[test]
fn a_grant_for_one_pool_gives_nothing_in_another() {
    let pools = load_with(|pool| {
        let other = pool.with_file_name("infra");
        for set in ["full", "pre-approved"] {
            fs::create_dir_all(other.join(set)).unwrap();
            fs::write(other.join(set).join("config.ign"), CONFIG).unwrap();
        }
        fs::write(other.join("pool.toml"), SAMPLE).unwrap();
    })
    .unwrap();
    let grant = pools["worker"].grants.for_nothing("worker").unwrap();
    assert!(pools["worker"].config(&grant).is_some());
    assert!(pools["infra"].config(&grant).is_none());
}

#[test]
fn what_is_wrong_with_a_pool_is_named() {
    let pcrs = |pcrs: &str| load_text(&format!("[grants]\n[tpm]\n[tpm.pcrs]\n{pcrs}")).unwrap_err();
    let others = "\"1-7\" = \"not checked\"\n";
    assert!(pcrs("").contains("PCR 0 is not named"));
    assert!(pcrs("\"0-6\" = \"not checked\"").contains("PCR 7 is not named"));
    assert!(pcrs("\"0-16\" = \"not checked\"").contains("PCR 16 can be reset"));
    assert!(pcrs("\"0-7\" = \"not checked\"\n7 = \"not checked\"").contains("PCR 7 is named twice"));
    assert!(pcrs("\"7-0\" = \"not checked\"").contains("no range"));
    assert!(pcrs(&format!("{others}0 = []")).contains("accepts no value"));
    assert!(pcrs(&format!("{others}0 = \"unchecked\"")).contains("not checked"));
    assert!(pcrs(&format!("{others}0 = [\"abcd\"]")).contains("expected"));
    assert!(pcrs(&format!("{others}0 = [\"{}\"]", "ab".repeat(48))).contains("48 bytes"));
    assert!(pcrs(&format!("\"0-7\" = [\"{}\"]", "ab".repeat(32))).contains("cannot share"));
    assert!(
        load_text("[grants]\nnothing = \"all\"\n[tpm.pcrs]\n\"0-7\" = \"not checked\"")
            .unwrap_err()
            .contains("line 2")
    );
    assert!(
        load_text("[grants]\n[tpm]\nbank = \"sha1\"\n[tpm.pcrs]\n\"0-7\" = \"not checked\"")
            .unwrap_err()
            .contains("sha1")
    );
    assert!(
        load_text("[grants]\n[tpm]\nendorsement = \"none\"\n[tpm.pcrs]\n\"0-7\" = \"not checked\"")
            .unwrap_err()
            .contains("line 3")
    );
    assert!(load_text("[grant]\n").unwrap_err().contains("grant"));
}

#[test]
fn bad_files_are_named() {
    assert!(
        load_with(|pool| fs::remove_file(pool.join("full/config.ign")).unwrap())
            .unwrap_err()
            .contains("full holds 0")
    );
    assert!(
        load_with(|pool| fs::write(pool.join("full/b.ign"), CONFIG).unwrap())
            .unwrap_err()
            .contains("full holds 2")
    );
    assert!(
        load_with(|pool| fs::write(pool.join("pre-approved/config.ign"), "").unwrap())
            .unwrap_err()
            .contains("pre-approved/config.ign")
    );
    assert!(
        load_with(|pool| fs::write(pool.join("full/config.ign"), "{").unwrap())
            .unwrap_err()
            .contains("full/config.ign")
    );
    assert!(
        load_with(|pool| fs::remove_file(pool.join("pool.toml")).unwrap())
            .unwrap_err()
            .contains("pool.toml")
    );
    assert!(
        load_with(|pool| fs::rename(pool, pool.with_file_name("Worker")).unwrap())
            .unwrap_err()
            .contains("Worker")
    );
    assert!(
        load_with(|pool| fs::remove_dir_all(pool).unwrap())
            .unwrap_err()
            .contains("no pools")
    );
    assert!(load_text("[grants]\n[tpm.pcrs]\n\"0-7\" = \"not checked\"").is_ok());
}
