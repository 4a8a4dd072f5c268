//! Pod of the DaemonSet: its access to the host, and the consistency of its parts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use attest_gateway::settings::Settings;

use super::*;

fn pod(parts: &[&str]) -> Value {
    let daemon_set = object(&objects(&all(parts)), "DaemonSet", "attest-gateway");
    daemon_set["spec"]["template"]["spec"].clone()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("{pointer}"))
}

#[test]
fn containers_have_minimal_privileges() {
    let pod = pod(&[]);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for absent in ["hostPID", "hostIPC", "shareProcessNamespace"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
    let (init, gateway) = (&pod["initContainers"][0], &pod["containers"][0]);
    assert_eq!((list(&pod, "/initContainers").len(), list(&pod, "/containers").len()), (1, 1));
    for container in [init, gateway] {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
        assert_eq!(security["privileged"], Value::Null);
        assert_eq!(container["image"], IMAGE);
    }
    assert_eq!(init["securityContext"]["capabilities"]["add"], serde_json::json!(["CHOWN"]));
    let security = &gateway["securityContext"];
    assert_eq!(security["capabilities"]["add"], Value::Null);
    assert_eq!(security["runAsNonRoot"], true);
    assert!(security["runAsUser"].as_u64().unwrap() > 1000);
    assert_eq!(pod["securityContext"]["fsGroup"], security["runAsUser"]);
    assert_eq!(security["seLinuxOptions"], Value::Null);
    // The folder is given to whom the gateway runs as.
    let args: Vec<&str> = list(init, "/args").iter().map(|arg| arg.as_str().unwrap()).collect();
    assert!(args.contains(&&*security["runAsUser"].to_string()), "{args:?}");
    // A token of the account only where a part asks the API.
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(self::pod(&["configs"])["automountServiceAccountToken"], true);
}

#[test]
fn volumes_are_mounted_read_only_except_state() {
    let pod = pod(&[]);
    let names: BTreeSet<&str> = list(&pod, "/volumes")
        .iter()
        .map(|volume| volume["name"].as_str().unwrap())
        .collect();
    let mounts = list(&pod, "/containers/0/volumeMounts");
    let mounted: BTreeSet<&str> = mounts.iter().map(|mount| mount["name"].as_str().unwrap()).collect();
    assert_eq!(names, mounted);
    let writable: Vec<&Value> = mounts.iter().filter(|mount| mount["readOnly"] != true).collect();
    assert_eq!(writable.len(), 1);
    assert_eq!((&writable[0]["name"], &writable[0]["subPath"]), (&"host".into(), &"state".into()));
    for volume in list(&pod, "/volumes") {
        if volume["name"] == "host" {
            assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate");
        } else {
            assert_eq!(volume["hostPath"], Value::Null);
        }
        if let Some(secret) = volume.get("secret") {
            assert_eq!(secret["defaultMode"], 0o400, "{volume}");
        }
    }
}

/// The files in the settings are below a mount, and the pools' files are in the folder of pools.
#[test]
fn settings_name_mounted_files() {
    let objects = objects(&all(&[]));
    let settings = object(&objects, "ConfigMap", "attest-gateway");
    let text = settings["data"]["gateway.toml"].as_str().unwrap();
    let settings = Settings::parse(text, Path::new("/etc/attest-gateway/settings/gateway.toml")).unwrap();
    let pod = pod(&[]);
    let mounts: Vec<&Path> = list(&pod, "/containers/0/volumeMounts")
        .iter()
        .map(|mount| Path::new(mount["mountPath"].as_str().unwrap()))
        .collect();
    let clouds = &settings.clouds;
    let attest_store::settings::EngineSettings::Etcd(etcd) = &settings.store.engine else {
        panic!("{:?}", settings.store.engine);
    };
    let (certificate, key) = etcd.identity.as_ref().unwrap();
    let paths = [
        &settings.state,
        &settings.pools,
        &settings.ek_roots,
        &settings.tls.ca,
        &settings.tls.certificate,
        &settings.tls.key,
        settings.store_key_file.as_ref().unwrap(),
        etcd.ca.as_ref().unwrap(),
        certificate,
        key,
        &clouds.gcp.vtpm_roots,
        &clouds.aws.region_certificates,
        &clouds.aws.nitro_roots,
        &clouds.azure.roots,
        &clouds.azure.intermediates,
        &clouds.azure.vtpm_roots,
    ];
    for path in paths {
        assert!(mounts.iter().any(|mount| path.starts_with(mount)), "{}: {mounts:?}", path.display());
    }
    assert_eq!(
        settings.listen.port().to_string(),
        pod["containers"][0]["ports"][0]["containerPort"].to_string()
    );
    // Pointers name the port that balancers and virtual IPs lead to, which is not the one that it listens on.
    assert_eq!(
        settings.pointer_url.as_ref().unwrap().as_str(),
        "https://api-int.example.com:22623/"
    );
    assert_ne!(settings.listen.port(), 22623);
    // What it takes to end is within what it is given for that.
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > settings.limits.drain.as_secs() + 5);
    // Commands in the pod need no --config.
    let config = serde_json::json!({"name": "ATTEST_GATEWAY_CONFIG", "value": "/etc/attest-gateway/settings/gateway.toml"});
    assert!(list(&pod, "/containers/0/env").contains(&config), "{pod}");
}

#[test]
fn each_pool_refuses_unauthenticated_clients_by_default() {
    let options = [
        "--image",
        IMAGE,
        "--host",
        "api-int.example.com",
        "--pool",
        "worker",
        "--pool",
        "infra",
    ];
    let objects = objects(&printed(&options));
    let pools = object(&objects, "ConfigMap", "attest-gateway-pools");
    let daemon_set = object(&objects, "DaemonSet", "attest-gateway");
    let volumes = list(&daemon_set, "/spec/template/spec/volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "pools").unwrap();
    let items: Vec<(&str, &str)> = list(volume, "/configMap/items")
        .iter()
        .map(|item| (item["key"].as_str().unwrap(), item["path"].as_str().unwrap()))
        .collect();
    assert_eq!(items, [("infra.toml", "infra/pool.toml"), ("worker.toml", "worker/pool.toml")]);
    for (key, _) in items {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pool.toml"), pools["data"][key].as_str().unwrap()).unwrap();
        let grants = attest_pool::grants(folder.path()).unwrap();
        let said = serde_json::to_value(grants).unwrap();
        assert_eq!(said["nothing"], "refuse", "{said}");
        assert_eq!(said["attested"], "full", "{said}");
        assert_eq!((&said["token"], &said["kubelet"]), (&"refuse".into(), &"refuse".into()), "{said}");
    }
}

#[test]
fn memory_limits_match_the_systemd_unit() {
    let unit = include_str!("../../dist/attest-gateway.service");
    let pod = pod(&[]);
    let gateway = &pod["containers"][0];
    let variables = list(gateway, "/env")
        .iter()
        .filter(|variable| variable["name"] != "ATTEST_GATEWAY_CONFIG")
        .map(|variable| format!("{}={}", variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap()));
    let line = format!("Environment={}\n", variables.collect::<Vec<_>>().join(" "));
    assert!(unit.contains(&line), "{line}");
    let limit = gateway["resources"]["limits"]["memory"].as_str().unwrap();
    assert!(unit.contains(&format!("MemoryMax={}\n", limit.trim_end_matches('i'))), "{limit}");
    let seconds = pod["terminationGracePeriodSeconds"].to_string();
    assert!(unit.contains(&format!("TimeoutStopSec={seconds}s\n")), "{seconds}");
}

#[test]
fn daemon_set_updates_control_plane_hosts_in_turn() {
    let daemon_set = object(&objects(&all(&[])), "DaemonSet", "attest-gateway");
    let strategy = &daemon_set["spec"]["updateStrategy"];
    assert_eq!(strategy["type"], "RollingUpdate");
    assert_eq!(strategy["rollingUpdate"], serde_json::json!({"maxUnavailable": 1}));
    let pod = &daemon_set["spec"]["template"]["spec"];
    let terms = list(
        pod,
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
    );
    let keys: Vec<&Value> = terms.iter().map(|term| &term["matchExpressions"][0]["key"]).collect();
    assert_eq!(keys, ["node-role.kubernetes.io/control-plane"]);
    for key in keys {
        assert!(
            list(pod, "/tolerations").iter().any(|toleration| &toleration["key"] == key),
            "{key}"
        );
    }
}

#[test]
#[cfg(feature = "cluster")]
fn settings_name_the_api_only_with_its_rights() {
    let cluster = |parts: &[&str]| {
        let settings = object(&objects(&all(parts)), "ConfigMap", "attest-gateway");
        let text = settings["data"]["gateway.toml"].as_str().unwrap().to_owned();
        Settings::parse(&text, Path::new("gateway.toml")).unwrap().cluster
    };
    assert_eq!(cluster(&[]), None);
    for (parts, configs) in [(&["configs"][..], true), (&["inventory"], false), (&["tokens", "configs"], true)] {
        let cluster = cluster(parts).unwrap();
        assert_eq!(cluster.access.api, attest_store::settings::ClusterApi::InCluster);
        assert_eq!((cluster.configs, cluster.machines), (configs, !configs), "{parts:?}");
    }
}

/// The controller's pod has only what it needs: no network or folder of the host, and not the key of the seal.
#[test]
fn the_controller_is_a_deployment_with_an_account_of_its_own() {
    let objects = objects(&all(&["approval", "pointers"]));
    let deployment = object(&objects, "Deployment", "attest-controller");
    let template = &deployment["spec"]["template"];
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let policy = object(&objects, "NetworkPolicy", "attest-controller");
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], template["metadata"]["labels"]);
    let pod = &template["spec"];
    object(&objects, "ServiceAccount", pod["serviceAccountName"].as_str().unwrap());
    assert_eq!(pod["serviceAccountName"], "attest-controller");
    for absent in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let container = &pod["containers"][0];
    assert_eq!((list(pod, "/containers").len(), &container["image"]), (1, &IMAGE.into()));
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], serde_json::json!(["ALL"]));
    for volume in list(pod, "/volumes") {
        assert_eq!(volume["hostPath"], Value::Null, "{volume}");
        assert_ne!(volume["secret"]["secretName"], "attest-gateway-store", "{volume}");
        // Of what the gateway serves with, the certificate and not its key.
        if volume["secret"]["secretName"] == "machine-config-server-tls" {
            assert_eq!(
                volume["secret"]["items"],
                serde_json::json!([{"key": "tls.crt", "path": "tls.crt"}])
            );
        }
    }
    // The settings name what is mounted, and the port that is probed.
    let settings = object(&objects, "ConfigMap", "attest-controller");
    let text = settings["data"]["controller.toml"].as_str().unwrap();
    let settings =
        attest_controller::settings::ControllerSettings::parse(text, Path::new("/etc/attest-controller/settings/controller.toml")).unwrap();
    let mounts: Vec<&Path> = list(container, "/volumeMounts")
        .iter()
        .map(|mount| Path::new(mount["mountPath"].as_str().unwrap()))
        .collect();
    let pointers = &settings.pointers;
    for path in [&settings.pools, &settings.store.file, &pointers.authorities, &pointers.certificate] {
        assert!(mounts.iter().any(|mount| path.starts_with(mount)), "{}: {mounts:?}", path.display());
    }
    assert_eq!(
        settings.listen.port().to_string(),
        container["ports"][0]["containerPort"].to_string()
    );
    assert_eq!(
        settings.listen.port().to_string(),
        policy["spec"]["ingress"][0]["ports"][0]["port"].to_string()
    );
    // The gateway has a token only for parts of its own.
    let gateway = object(&objects, "DaemonSet", "attest-gateway");
    assert_eq!(gateway["spec"]["template"]["spec"]["automountServiceAccountToken"], false);
}

/// The pods' labels match the selector, and their account, constraints and namespace are the created ones.
#[test]
fn labels_accounts_and_namespaces_match() {
    let objects = objects(&all(&[]));
    let daemon_set = object(&objects, "DaemonSet", "attest-gateway");
    let template = &daemon_set["spec"]["template"];
    assert_eq!(daemon_set["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    object(&objects, "ServiceAccount", template["spec"]["serviceAccountName"].as_str().unwrap());
    let constraints = template["metadata"]["annotations"]["openshift.io/required-scc"].as_str().unwrap();
    let constraints = object(&objects, "SecurityContextConstraints", constraints);
    // What the pod wants is what they allow.
    let kinds: BTreeSet<&str> = list(template, "/spec/volumes")
        .iter()
        .flat_map(|volume| volume.as_object().unwrap().keys().map(String::as_str))
        .filter(|key| *key != "name")
        .collect();
    let allowed: BTreeSet<&str> = list(&constraints, "/volumes").iter().map(|kind| kind.as_str().unwrap()).collect();
    // `projected` is how the account's token comes.
    assert_eq!(
        kinds.union(&BTreeSet::from(["projected"])).copied().collect::<BTreeSet<_>>(),
        allowed
    );
    for (wanted, allowed) in [("hostNetwork", "allowHostNetwork"), ("hostNetwork", "allowHostPorts")] {
        assert_eq!(template["spec"][wanted], constraints[allowed]);
    }
    for never in [
        "allowHostIPC",
        "allowHostPID",
        "allowPrivilegedContainer",
        "allowPrivilegeEscalation",
    ] {
        assert_eq!(constraints[never], false, "{never}");
    }
    // Only the gateway's account may use them.
    let role = object(&objects, "Role", "attest-gateway-scc");
    assert_eq!(
        role["rules"][0]["resourceNames"],
        serde_json::json!([constraints["metadata"]["name"]])
    );
    let namespace = object(&objects, "Namespace", "attest-gateway");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
    for object in objects {
        let place = &object["metadata"]["namespace"];
        assert!(place.is_null() || place == "attest-gateway", "{}", name(&object));
    }
}
