//! Metrics for the cluster's Prometheus: a proxy in the pods that asks for a token, and objects that agree with each other.

use std::fs;
use std::path::Path;

use attest_gateway::settings::Settings;
use cloud_fixtures::kubernetes::KubernetesApi;
use serde_json::json;

use super::*;

const PROXY: &str = "registry.example.com/kube-rbac-proxy:1";
const ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Returns all manifests, with metrics.
fn monitored() -> String {
    let options = ["--image", IMAGE, "--host", "api-int.example.com", "--metrics-proxy", PROXY];
    printed(&options)
}

fn texts<'a>(value: &'a Value, pointer: &str) -> Vec<&'a str> {
    let list = value
        .pointer(pointer)
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("{pointer}"));
    list.iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn metrics_are_off_without_the_proxy() {
    let text = all(&[]);
    for word in ["metrics", "monitoring.coreos.com", "9464", "9465"] {
        assert!(!text.contains(word), "{word}");
    }
}

#[test]
fn the_gateway_serves_metrics_to_its_proxy_alone() {
    let objects = objects(&monitored());
    let settings = object(&objects, "ConfigMap", "attest-gateway");
    let settings = settings["data"]["gateway.toml"].as_str().unwrap();
    let settings = Settings::parse(settings, Path::new("gateway.toml")).unwrap();
    let listen = settings.metrics_listen.unwrap();
    assert!(listen.ip().is_loopback());
    let daemon_set = object(&objects, "DaemonSet", "attest-gateway");
    let pod = &daemon_set["spec"]["template"]["spec"];
    let [gateway, proxy] = pod["containers"].as_array().unwrap().as_slice() else {
        panic!("{pod:#}");
    };
    assert_eq!((&gateway["name"], &proxy["name"]), (&json!("gateway"), &json!("metrics-proxy")));
    assert_eq!(proxy["image"], PROXY);
    let arguments = texts(proxy, "/args");
    for wanted in [&*format!("--upstream=http://{listen}/"), "--allow-paths=/metrics"] {
        assert!(arguments.contains(&wanted), "{wanted}: {arguments:?}");
    }
    let port = proxy["ports"][0]["containerPort"].as_u64().unwrap();
    assert!(arguments.contains(&&*format!("--secure-listen-address=:{port}")), "{arguments:?}");
    // Hosts reach each other there: https://docs.redhat.com/en/documentation/openshift_container_platform, "Network connectivity requirements".
    assert!((9000..=9999).contains(&port));
    // It has no more rights on its host than the gateway, and is another user.
    let security = &proxy["securityContext"];
    assert_eq!(
        (&security["allowPrivilegeEscalation"], &security["readOnlyRootFilesystem"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        (&security["runAsNonRoot"], &security["capabilities"]),
        (&json!(true), &json!({"drop": ["ALL"]}))
    );
    assert_ne!(security["runAsUser"], gateway["securityContext"]["runAsUser"]);
    // The proxy has the account's token, and the gateway does not.
    assert_eq!(pod["automountServiceAccountToken"], false);
    let mounts = |container: &Value| container["volumeMounts"].as_array().unwrap().clone();
    let paths = |container: &Value| mounts(container).iter().map(|mount| mount["mountPath"].clone()).collect::<Vec<_>>();
    assert!(paths(proxy).contains(&json!(ACCOUNT_TOKEN)) && !paths(gateway).contains(&json!(ACCOUNT_TOKEN)));
    for mount in mounts(proxy) {
        assert_eq!(mount["readOnly"], true);
        let volumes = pod["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
        assert!(!mounts(gateway).iter().any(|other| other["name"] == mount["name"]), "{mount}");
    }
    let gives = |argument: &str| {
        let path = arguments.iter().find_map(|given| given.strip_prefix(argument)).unwrap();
        mounts(proxy)
            .iter()
            .any(|mount| path.starts_with(mount["mountPath"].as_str().unwrap()))
    };
    assert!(gives("--tls-cert-file=") && gives("--tls-private-key-file="));
}

#[test]
fn prometheus_is_told_where_and_by_which_token() {
    let objects = objects(&monitored());
    let pods = object(&objects, "DaemonSet", "attest-gateway")["spec"]["template"].clone();
    let service = object(&objects, "Service", "attest-gateway-metrics");
    assert_eq!(service["spec"]["selector"], pods["metadata"]["labels"]);
    let proxy = &pods["spec"]["containers"][1];
    let port = &service["spec"]["ports"][0];
    assert_eq!(
        (&port["targetPort"], &port["port"]),
        (&proxy["ports"][0]["name"], &proxy["ports"][0]["containerPort"])
    );
    let secret = &service["metadata"]["annotations"]["service.beta.openshift.io/serving-cert-secret-name"];
    let volumes = pods["spec"]["volumes"].as_array().unwrap();
    assert!(volumes.iter().any(|volume| volume["secret"]["secretName"] == *secret), "{secret}");

    let monitor = object(&objects, "ServiceMonitor", "attest-gateway");
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    // The job of the alerts.
    let job = monitor["spec"]["jobLabel"].as_str().unwrap();
    assert_eq!(service["metadata"]["labels"][job], "attest-gateway");
    assert_eq!((&endpoint["port"], &endpoint["scheme"]), (&port["name"], &json!("https")));
    assert_eq!(endpoint["tlsConfig"]["serverName"], "attest-gateway-metrics.attest-gateway.svc");
    let ca = object(
        &objects,
        "ConfigMap",
        endpoint["tlsConfig"]["ca"]["configMap"]["name"].as_str().unwrap(),
    );
    assert_eq!(ca["metadata"]["annotations"]["service.beta.openshift.io/inject-cabundle"], "true");
    let token = object(
        &objects,
        "Secret",
        endpoint["authorization"]["credentials"]["name"].as_str().unwrap(),
    );
    assert_eq!(token["type"], "kubernetes.io/service-account-token");
    let scraper = token["metadata"]["annotations"]["kubernetes.io/service-account.name"]
        .as_str()
        .unwrap();
    object(&objects, "ServiceAccount", scraper);
    // That account reads /metrics and nothing else; the proxy's asks whose a token is.
    let bound = |account: &str| {
        let is_its = |object: &&Value| object["kind"] == "ClusterRoleBinding" && object["subjects"][0]["name"] == account;
        let bindings: Vec<&Value> = objects.iter().filter(is_its).collect();
        assert_eq!(bindings.len(), 1, "{account}");
        object(&objects, "ClusterRole", bindings[0]["roleRef"]["name"].as_str().unwrap())["rules"].clone()
    };
    assert_eq!(bound(scraper), json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]));
    let asks = bound("attest-gateway");
    let resources: Vec<&Value> = asks.as_array().unwrap().iter().map(|rule| &rule["resources"]).collect();
    assert_eq!(resources, [&json!(["tokenreviews"]), &json!(["subjectaccessreviews"])]);

    let service = object(&objects, "Service", "attest-controller-metrics");
    let monitor = object(&objects, "ServiceMonitor", "attest-controller");
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    let controller = object(&super::objects(&all(&["approval"])), "Deployment", "attest-controller");
    let pods = &controller["spec"]["template"];
    assert_eq!(service["spec"]["selector"], pods["metadata"]["labels"]);
    let of_pod = &pods["spec"]["containers"][0]["ports"][0];
    let port = &service["spec"]["ports"][0];
    assert_eq!((&port["targetPort"], &port["port"]), (&of_pod["name"], &of_pod["containerPort"]));
}

#[test]
fn the_rules_are_those_of_the_file() {
    let rules: Value = serde_saphyr::from_str(include_str!("../../dist/prometheus-rules.yaml")).unwrap();
    let rule = object(&objects(&monitored()), "PrometheusRule", "attest-gateway");
    assert_eq!(rule["spec"], rules);
    assert!(rules["groups"][0]["rules"].as_array().unwrap().len() > 10);
}

#[test]
fn another_namespace_is_filled_in() {
    let text = printed(&[
        "--image",
        IMAGE,
        "--host",
        "api-int.example.com",
        "--namespace",
        "elsewhere",
        "--metrics-proxy",
        PROXY,
    ]);
    assert!(text.contains("serverName: attest-gateway-metrics.elsewhere.svc\n"));
    assert!(!text.contains("namespace: attest-gateway\n"));
}

#[test]
fn kubectl_applies_the_objects() {
    let api = KubernetesApi::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("config"), api.kubeconfig(api.admin())).unwrap();
    fs::write(path("all.yaml"), monitored()).unwrap();
    for end in [" created", " unchanged"] {
        let mut command = kubectl();
        command.env("HOME", folder.path()).arg("--kubeconfig").arg(path("config"));
        let done = command_output(command.args(["apply", "--validate=false", "-f"]).arg(path("all.yaml")));
        assert!(done.lines().all(|line| line.ends_with(end)), "{done}");
    }
    for (plural, name) in [("servicemonitors", "attest-gateway"), ("prometheusrules", "attest-gateway")] {
        assert!(api.get(plural, "attest-gateway", name).is_some(), "{plural}");
    }
}
