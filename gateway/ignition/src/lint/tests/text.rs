//! Tests of secrets in a text, and of harmless texts that look like secrets.

use super::*;

#[test]
fn finds_private_keys() {
    for label in ["+", "RSA+", "EC+", "ENCRYPTED+", "OPENSSH+", "PGP+ BLOCK"] {
        found(
            &pem(label.trim_start_matches(' ')).replace("BEGIN  ", "BEGIN "),
            SecretKind::PrivateKey,
        );
    }
    for label in ["CERTIFICATE", "PUBLIC KEY", "PGP PUBLIC KEY BLOCK", "CERTIFICATE REQUEST"] {
        clean(&pem(label));
    }
    found("{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"a\",\"d\":\"b\"}", SecretKind::PrivateKey);
    clean("{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"a\"}");
    found(&format!("[WireGuard]\nPrivateKey={}=\n", "a1B".repeat(14)), SecretKind::PrivateKey);
    clean("[WireGuard]\nPrivateKeyFile=/etc/wg.key\n");
    clean("privateKey: tls.key\n");
    clean(&format!("PublicKey={}=\n", "a1B".repeat(14)));
    clean("core: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZha2VmYWtlZmFrZWZha2VmYWtlZmFrZWZha2VmYWtlZmFr me@here\n");
}

#[test]
fn finds_der_keys_within_base64() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let wrapped = |der: &[u8]| {
        let text = BASE64.encode(der);
        text.as_bytes()
            .chunks(64)
            .map(|line| format!("  {}\n", String::from_utf8_lossy(line)))
            .collect::<String>()
    };
    found(&format!("x: {}\n", BASE64.encode(&key.serialize_der())), SecretKind::PrivateKey);
    found(&format!("x: |\n{}y: z\n", wrapped(&key.serialize_der())), SecretKind::PrivateKey);
    found(&key.serialize_pem(), SecretKind::PrivateKey);
    clean(&format!("x: {}\n", BASE64.encode(certificate.der())));
    clean(&format!("x: |\n{}", wrapped(certificate.der())));
    clean(&certificate.pem());
    clean(&key.public_key_pem());
}

#[test]
fn finds_kubeconfig_credentials() {
    let kubeconfig = |user: &str| format!("apiVersion: v1\nkind: Config\nclusters: []\nusers:\n- name: kubelet\n  user:\n    {user}\n");
    for user in [
        "token: abc.def",
        "token: >-\n      abcdef",
        "password: hunter2",
        "client-key-data: aGVsbG8gd29ybGQ=",
        "\"client-key-data\": \"aGVsbG8gd29ybGQ=\"",
    ] {
        found(&kubeconfig(user), SecretKind::KubeconfigCredential);
        // Within a script it is not to be read as YAML.
        found(
            &format!("#!/bin/bash\ncat <<EOF >x\n{}EOF\n", kubeconfig(user)),
            SecretKind::KubeconfigCredential,
        );
    }
    for user in [
        "tokenFile: /var/run/token",
        "token: \"\"",
        "token: ${TOKEN}",
        "client-key: /a/b.pem",
        "client-certificate-data: aGVsbG8gd29ybGQ=",
    ] {
        clean(&kubeconfig(user));
        clean(&format!("#!/bin/bash\ncat <<EOF >x\n{}EOF\n", kubeconfig(user)));
    }
    found(
        "{\"kind\":\"Config\",\"users\":[{\"user\":{\"token\":\"abc\"}}]}",
        SecretKind::KubeconfigCredential,
    );
    assert_eq!(kinds(&kubeconfig("token: abc.def")), ["kubeconfig-credential"]);
}

#[test]
fn finds_tokens() {
    let alnum = |count: usize| "a1".repeat(count / 2);
    found(&format!("token: {}.{}\n", "abcdef", "0123456789abcdef"), SecretKind::Token);
    found(
        &format!("kubeadm join --token {}.{}\n", "abcdef", "0123456789abcdef"),
        SecretKind::Token,
    );
    clean(&format!("image: {}.{}\n", "abcdef", "0123456789abcdef"));
    for prefix in ["ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "sha256~", "npm_", "dckr_pat_"] {
        found(&format!("echo {prefix}{}\n", alnum(44)), SecretKind::Token);
        clean(&format!("echo {prefix}\n"));
    }
    found(&format!("curl -H 'Authorization: Bearer {}'\n", alnum(20)), SecretKind::Token);
    for harmless in [
        "curl -H \"Authorization: Bearer $TOKEN\"\n",
        "curl -H \"Authorization: Bearer $(cat /run/token)\"\n",
        "# uses bearer authentication-of-the-node\n",
        "--token-file=/etc/token --token-auth-file /b\n",
        "TOKEN=$(oc get secret x)\n",
        "TOKEN=\"\"\nif [ \"$TOKEN\" = \"\" ]; then exit 1; fi\n",
        "if [[ \"${token}\" == foo ]]; then :; fi\n",
        "serviceAccountToken:\n  path: token\n",
        "automountServiceAccountToken: false\n",
        "# token: what the node shows\n",
    ] {
        clean(harmless);
    }
    found(&jwt("{\"typ\":\"JWT\",\"alg\":\"none\"}"), SecretKind::Token);
    clean(&jwt("{\"alg\":\"dir\",\"enc\":\"A256GCM\"}"));
}

#[test]
fn finds_registry_and_cloud_credentials() {
    found(
        "{\n  \"quay.io\": {\n    \"auth\": \"dXNlcjpodW50ZXIy\"\n  }\n}\n",
        SecretKind::RegistryPassword,
    );
    found("{\"auths\":{\"a\":{\"identitytoken\":\"abc\"}}}", SecretKind::RegistryPassword);
    found(
        "pullSecret: '{\"auths\":{\"a\":{\"auth\":\"dXNlcjpodW50ZXIy\"}}}'\n",
        SecretKind::RegistryPassword,
    );
    clean("{\"auths\":{\"a\":{}},\"credHelpers\":{\"b\":\"ecr-login\"}}");
    clean("auth: enabled\n");
    let key = "a1B+/".repeat(8);
    found(&format!("aws_secret_access_key = {key}\n"), SecretKind::CloudKey);
    found(&format!("AWS_SECRET_ACCESS_KEY=/{key}\n"), SecretKind::CloudKey);
    found(
        &format!("DefaultEndpointsProtocol=https;AccountKey={key}==;\n"),
        SecretKind::CloudKey,
    );
    found(
        "{\"cloud\":\"AzurePublicCloud\",\"aadClientSecret\":\"hunter2\"}",
        SecretKind::CloudKey,
    );
    clean("{\"cloud\":\"AzurePublicCloud\",\"aadClientSecret\":\"\",\"useManagedIdentityExtension\":true}");
    found("{\"type\": \"service_account\", \"project_id\": \"a\"}", SecretKind::CloudKey);
    clean("{\"type\": \"external_account\", \"project_id\": \"a\"}");
    found(
        "clouds:\n  openstack:\n    auth:\n      username: a\n      password: hunter2\n",
        SecretKind::Password,
    );
    found("[Global]\nuser = \"a\"\npassword = \"hunter2\"\n", SecretKind::Password);
    clean("[Global]\nsecret-name = \"vsphere-creds\"\nsecret-namespace = \"kube-system\"\n");
}

#[test]
fn finds_passwords() {
    for secret in [
        "password=hunter2",
        "Environment=\"DB_PASSWORD=hunter2\"",
        "  passwd: hunter2",
        "secret = 'hunter2'",
        "api_key: hunter2",
        "apiKey: \"hunter2\"",
        "export dbPass=hunter2",
        "--password hunter2",
        "[wifi-security]\nkey-mgmt=wpa-psk\npsk=hunter2hunter2",
        "802-1x.password=hunter2",
        "# password = hunter2hunter2",
        "machine a login b password hunter2",
        "echo core:hunter2 | chpasswd",
        "curl -u me:hunter2 https://a/",
        "subscription-manager register --org=1 --activationkey=prod",
        "password: |\n  hunter2",
        "SetCredential=mypw:hunter2",
        "{\"password\": 12345}",
        "rd.iscsi.password=hunter2",
        "password=hunter2,vers=3.0",
    ] {
        found(&format!("{secret}\n"), SecretKind::Password);
    }
    for harmless in [
        "password=",
        "password: \"\"",
        "password = null",
        "password: ${X}",
        "password: $X",
        "password=%s",
        "password=%d/pw",
        "password: <pw>",
        "password: /etc/pw",
        "password: file:///etc/pw",
        "password: false",
        "password = getpass()",
        "password: {{ pw }}",
        "password: @PW@",
        "password: ********",
        "password_file = x",
        "PasswordAuthentication no",
        "PermitEmptyPasswords no",
        "passwd:     sss files systemd",
        "core ALL=(ALL) NOPASSWD: ALL",
        "Defaults !targetpw, passwd_tries=3",
        "password    sufficient   pam_unix.so sha512 shadow",
        "-w /etc/passwd -p wa -k identity",
        "key-mgmt=wpa-psk",
        "psk-flags=1",
        "secretName: pull",
        "imagePullSecrets:\n- name: pull",
        "# secret: the name of the object",
        "bypass=yes-please",
        "PWD=here",
        "volumes:\n- secret:\n    secretName: x",
        "LoadCredential=pw:/etc/pw",
        "curl -u \"$USER:$PASS\" https://a/",
        "echo \"core:$PW\" | chpasswd",
        "machine a login b password $PW",
        "--password-stdin",
        "--password --verbose",
        "NoNewPrivileges=yes",
    ] {
        clean(&format!("{harmless}\n"));
    }
}

#[test]
fn typical_worker_files_have_no_findings() {
    for text in [
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  x509:\n    clientCAFile: /etc/kubernetes/kubelet-ca.crt\n  anonymous:\n    enabled: false\n  webhook:\n    cacheTTL: 0s\nserverTLSBootstrap: true\ntlsMinVersion: VersionTLS12\n",
        "[crio.runtime]\nconmon = \"\"\nseccomp_use_default_when_empty = true\n[crio.image]\nglobal_auth_file = \"/var/lib/kubelet/config.json\"\npause_image = \"quay.io/a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\npause_image_auth_file = \"/var/lib/kubelet/config.json\"\ndecryption_keys_path = \"/etc/crio/keys/\"\n",
        "unqualified-search-registries = [\"registry.access.redhat.com\", \"docker.io\"]\n[[registry]]\nprefix = \"\"\nlocation = \"quay.io/a\"\n",
        "{\"default\":[{\"type\":\"insecureAcceptAnything\"}],\"transports\":{\"docker-daemon\":{\"\":[{\"type\":\"insecureAcceptAnything\"}]}}}",
        "server 0.rhel.pool.ntp.org iburst\ndriftfile /var/lib/chrony/drift\nkeyfile /etc/chrony.keys\n",
        "net.ipv4.ip_forward = 1\nvm.overcommit_memory=1\n",
        "[connection]\nid=ens3\ntype=ethernet\nuuid=8d7c0c5e-5b7c-4f1b-9d4e-0f0b1c2d3e4f\n[ipv4]\nmethod=auto\n",
        "PermitRootLogin no\nPasswordAuthentication no\nPermitEmptyPasswords no\nChallengeResponseAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys.d/ignition\n",
        "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= sha512:cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e\n",
        "#!/bin/bash\nset -euo pipefail\nfor t in $(seq 1 5); do\n  oc --token \"$TOKEN\" get secret node-bootstrapper-token -o jsonpath='{.data.token}' | base64 -d > /run/token && break\ndone\n",
        "[Unit]\nDescription=Kubernetes Kubelet\n[Service]\nEnvironmentFile=/etc/os-release\nExecStart=/usr/bin/kubelet --config=/etc/kubernetes/kubelet.conf --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig --kubeconfig=/var/lib/kubelet/kubeconfig --enable-bootstrap-token-auth=true --volume-plugin-dir=/etc/kubernetes/kubelet-plugins/volume/exec --cloud-provider=external\n",
        "HTTP_PROXY=http://proxy.example.com:3128\nNO_PROXY=.cluster.local,10.0.0.0/16\n",
    ] {
        clean(text);
        let unit = json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "1.conf", "contents": text}]}]}});
        assert_eq!(names(unit), Vec::<String>::new(), "{text}");
    }
}
