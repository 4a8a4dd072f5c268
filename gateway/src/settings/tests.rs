use attest_store::settings::EngineSettings;

use super::*;

fn parse(text: &str) -> Result<Settings, SettingsError> {
    Settings::parse(text, Path::new("/etc/attest-gateway/gateway.toml"))
}

#[test]
fn seal_key_retention_covers_ticket_and_challenge_lifetimes() {
    let keep = |text: &str| parse(text).unwrap().seal_keep().as_secs() - 3600;
    // Of a ticket its lifetime, how late it may be, and its lifetime from then on.
    assert_eq!(keep(""), 600 + 86_400 + 600);
    assert_eq!(keep("[ticket]\nlate_seconds = 0"), 600);
    assert_eq!(keep("[ticket]\nlate_seconds = 0\nlifetime_seconds = 1"), 120, "a challenge");
}

#[test]
fn the_sample_says_the_defaults() {
    assert_eq!(parse(SAMPLE).unwrap(), parse("").unwrap());
    let uncommented: String = SAMPLE
        .lines()
        .map(|line| line.strip_prefix("#: ").unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    assert_ne!(uncommented, SAMPLE, "the sample shows every key behind `#: `");
    let mut settings = parse(&uncommented).unwrap();
    // They are as if nobody had said them, but that somebody has.
    assert!(!std::mem::take(&mut settings.set_values).is_empty());
    assert_eq!(settings, parse("").unwrap());
}

#[test]
fn refuses_invalid_attestation_log_settings() {
    let read = |text: &str| parse(&format!("[attestation_log]\n{text}")).map(|settings| settings.checkpoints);
    assert_eq!(read("name = \"gw-1\"").unwrap().name.unwrap(), "gw-1");
    for refused in [
        "name = \"\"",
        "name = \"a b\"",
        "checkpoint_records = 0",
        "checkpoint_seconds = 0",
        "checkpoint_seconds = 3601",
        "segment_bytes = 4095",
        "segment_seconds = 0",
        "keep_bytes = 67108863",
        "keep_seconds = -1",
    ] {
        read(refused).unwrap_err();
    }
}

#[test]
fn paths_are_relative_to_the_file() {
    let settings = parse("state = \"s\"\npools = \"/srv/pools\"").unwrap();
    assert_eq!(settings.state, Path::new("/etc/attest-gateway/s"));
    assert_eq!(settings.pools, Path::new("/srv/pools"));
    let shared = parse("[store]\nkey_file = \"store.key\"").unwrap();
    assert_eq!(shared.store_key_file.unwrap(), Path::new("/etc/attest-gateway/store.key"));
    let clouds = parse("[gcp]\njwks = \"keys.json\"\n[aws]\nnitro_roots = \"/srv/nitro\"")
        .unwrap()
        .clouds;
    assert_eq!(clouds.gcp.jwks.unwrap(), Path::new("/etc/attest-gateway/keys.json"));
    assert_eq!(clouds.azure.roots, Path::new("/etc/attest-gateway/azure-roots"));
    assert_eq!(clouds.aws.nitro_roots, Path::new("/srv/nitro"));
}

#[test]
fn cloud_timeout_is_shorter_than_the_request_timeout() {
    assert_eq!(parse("").unwrap().clouds.wait, Duration::from_secs(5));
    let clouds = parse("[limits]\nrequest_seconds = 1").unwrap().clouds;
    assert_eq!(clouds.wait, Duration::from_millis(500));
}

#[test]
fn proxy_protocol_from_takes_networks_except_everything() {
    let balancers = |text: &str| parse(&format!("proxy_protocol_from = [{text}]")).map(|settings| settings.balancers);
    let named = balancers(r#""192.0.2.10", "10.1.2.3/8", "::ffff:192.0.2.16/124""#).unwrap();
    assert_eq!(
        named.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["192.0.2.10/32", "10.0.0.0/8", "192.0.2.16/28"]
    );
    assert!(balancers("").unwrap().is_empty());
    for everybody in ["0.0.0.0/0", "::/0", "10.0.0.0/0", "::ffff:0.0.0.0/96", "balancer", ""] {
        let error = balancers(&format!("{everybody:?}")).unwrap_err().to_string();
        assert!(error.contains("proxy_protocol_from") && error.contains(everybody), "{error}");
    }
}

#[test]
fn names_line_and_key_of_an_invalid_setting() {
    let error = |text: &str| parse(text).unwrap_err().to_string();
    let unknown = error("\nlisten = \"127.0.0.1:1\"\nlimit = 3\n");
    assert!(unknown.contains("line 3") && unknown.contains("limit"), "{unknown}");
    assert!(error("listen = \"nowhere\"").contains("line 1"));
    assert!(error("[ticket]\nuses = 0").contains("ticket.uses is 0"));
    assert!(error("[ticket]\nlate_seconds = 604801").contains("ticket.late_seconds is 604801"));
    assert!(error("[ticket]\nuse = 1").contains("use"));
    assert!(error("key_file = \"x\"").contains("key_file belongs under [store]"));
    assert!(error("[limits]\nclient_ca = \"a\"").contains("client_ca belongs under [tls]"));
    assert!(error("uses = 1").contains("uses belongs under [ticket]"));
    assert!(error("[tls]\nlisten = \"[::]:1\"").contains("listen belongs under the top, before any heading or [metrics]"));
    assert!(error("[ticket]\nlifetime = 1").lines().last().unwrap().contains("expected"));
    assert_eq!(misplaced::incomplete::<SettingsFile>(SECTIONS), Vec::<String>::new());
    assert!(error("[challenge]\nlifetime_seconds = 0").contains("challenge.lifetime_seconds"));
    assert!(error("[challenge]\nlifetime_seconds = 90000").contains("challenge.lifetime_seconds"));
    assert!(error("[limits]\nconnections = -1").contains("line 2"));
    assert!(error("[limits]\nbody_bytes = 4194303").contains("at least 4194304"));
    assert!(error("[tls]\nprevious_keys = [\"abc\"]").contains("64"));
    assert!(error("[log]\nformat = \"xml\"").contains("text"));
    assert!(error("[log]\nfilter = \"a=b=c\"").contains("log.filter is \"a=b=c\""));
    assert!(error("[outgoing]\nproxy = \"x\"").contains("proxy"));
    assert!(error("[outgoing.connect]\n\"10.0.0.5\" = \"10.0.0.5:443\"").contains("names of hosts"));
    assert!(error("[outgoing.connect]\n\"a.b\" = \"10.0.0.5\"").contains("line 2"));
    assert!(error("[outgoing.connect]\n\"a.b\" = \"10.0.0.5:0\"").contains("port"));
    assert!(error("[outgoing.connect]\n\"a.b\" = \"1.1.1.1:1\"\n\"A.b\" = \"1.1.1.1:1\"").contains("each host once"));
    assert!(error("[gcp]\nname = \"a/b\"").contains("gcp.name"));
    assert!(error("[gcp]\nname = \"\"").contains("gcp.name"));
    assert!(error("[aws]\nroots = \"x\"").contains("roots"));
    assert!(error("[azure]\nclouds = [\"private\"]").contains("private"));
    assert!(error("[azure]\nclouds = [\"public\", \"public\"]").contains("each cloud once"));
}

#[test]
fn names_the_invalid_store_setting() {
    let error = |text: &str| parse(&format!("[store]\n{text}")).unwrap_err().to_string();
    assert!(error("engine = \"sqlite\"").contains("embedded"));
    assert!(error("endpoints = [\"http://[::1]:2379\"]").contains("store.endpoints is set; for etcd only"));
    assert!(error("certificate = \"c\"").contains("store.certificate is set"));
    let etcd = |endpoints: &str, text: &str| {
        let text = format!("engine = \"etcd\"\nkey_file = \"store.key\"\nendpoints = {endpoints}\n{text}");
        error(&text)
    };
    assert!(error("engine = \"etcd\"\nendpoints = [\"http://[::1]:2379\"]").contains("store.key_file is not set"));
    for endpoints in [
        "[]",
        "[\"etcd-1:2379\"]",
        "[\"https://etcd-1\"]",
        "[\"https://etcd-1:2379/v3\"]",
        "[\"https://root@etcd-1:2379\"]",
        "[\"ftp://etcd-1:2379\"]",
        "[\"https://etcd-1:2379\", \"http://etcd-2:2379\"]",
    ] {
        assert!(etcd(endpoints, "ca = \"ca.crt\"").contains("store.endpoints is"), "{endpoints}");
    }
    let tls = "[\"https://etcd-1:2379\"]";
    assert!(etcd(tls, "").contains("store.ca is not set"));
    assert!(etcd(tls, "ca = \"a\"\ncertificate = \"c\"").contains("store.key is not set"));
    assert!(etcd(tls, "ca = \"a\"\nkey = \"k\"").contains("store.certificate is not set"));
    assert!(etcd(tls, "ca = \"a\"\nuser = \"u\"").contains("store.password_file is not set"));
    assert!(etcd(tls, "ca = \"a\"\npassword_file = \"p\"").contains("store.user is not set"));
    assert!(etcd(tls, "ca = \"a\"\nprefix = \"a//b\"").contains("store.prefix is"));
    assert!(etcd(tls, "ca = \"a\"\nprefix = \"\"").contains("store.prefix is"));
    assert!(etcd(tls, "ca = \"a\"\ntimeout_seconds = 0").contains("store.timeout_seconds is 0"));
    assert!(etcd("[\"http://10.0.0.1:2379\"]", "ca = \"a\"").contains("for https only"));
}

#[test]
fn etcd_paths_are_relative_to_the_settings_file() {
    let text = "[store]\nengine = \"etcd\"\nkey_file = \"x\"\nendpoints = [\"https://[::1]:2379\"]\nca = \"ca\"\ncertificate = \"c\"\nkey = \"/k\"\nuser = \"u\"\npassword_file = \"p\"";
    let EngineSettings::Etcd(etcd) = parse(text).unwrap().store.engine else {
        panic!("another engine")
    };
    let beside = |name: &str| Path::new("/etc/attest-gateway").join(name);
    assert_eq!(etcd.ca, Some(beside("ca")));
    assert_eq!(etcd.identity, Some((beside("c"), "/k".into())));
    assert_eq!(etcd.user, Some(("u".to_owned(), beside("p"))));
    assert_eq!((etcd.timeout, etcd.prefix.as_str()), (Duration::from_secs(5), "attest-gateway"));
}

#[cfg(feature = "cluster")]
#[test]
fn kubernetes_store_uses_the_cluster_access_settings() {
    let cluster = "[cluster]\napi = \"kubeconfig\"\nnamespace = \"gateways\"\n";
    let of = |cluster: &str, store: &str| parse(&format!("{cluster}[store]\nengine = \"kubernetes\"\n{store}"));
    let EngineSettings::Kubernetes(store) = of(cluster, "key_file = \"x\"\ntimeout_seconds = 7").unwrap().store.engine else {
        panic!("another engine")
    };
    assert_eq!((store.timeout, store.name.as_str()), (Duration::from_secs(7), "attest-gateway"));
    assert_eq!(store.cluster.namespace.as_deref(), Some("gateways"));
    let refused = |cluster: &str, store: &str, expected: &str| {
        let error = of(cluster, store).unwrap_err().to_string();
        assert!(error.contains(expected), "{store}: {error}");
    };
    refused("", "key_file = \"x\"", "cluster.api is not set");
    refused(cluster, "", "store.key_file is not set");
    refused(cluster, "key_file = \"x\"\nprefix = \"a/b\"", "store.prefix is");
    refused(cluster, "key_file = \"x\"\nprefix = \"\"", "store.prefix is");
    refused(cluster, "key_file = \"x\"\ntimeout_seconds = 0", "store.timeout_seconds is 0");
    refused(cluster, "key_file = \"x\"\nendpoints = [\"https://e:1\"]", "store.endpoints is set");
    refused(cluster, "key_file = \"x\"\nca = \"c\"", "store.ca is set");
}

#[test]
fn pointer_url_is_an_https_origin() {
    let url = |text: &str| parse(&format!("pointer_url = \"{text}\"")).map(|settings| settings.pointer_url.unwrap().to_string());
    assert_eq!(parse("").unwrap().pointer_url, None);
    assert_eq!(
        url("https://api-int.example.com:22623").unwrap(),
        "https://api-int.example.com:22623/"
    );
    assert!(url("https://[fd00::1]:22623").is_ok() && url("https://api-int.example.com/").is_ok());
    for wrong in [
        "",
        "api-int.example.com:22623",
        "http://api-int.example.com:22623",
        "https://",
        "https://api-int.example.com/config",
        "https://api-int.example.com?a=b",
        "https://user@api-int.example.com",
        "https://:password@api-int.example.com",
        "https://api-int.example.com#a",
    ] {
        let error = url(wrong).unwrap_err().to_string();
        assert!(error.contains("pointer_url") && error.contains("https://HOST"), "{error}");
    }
}
