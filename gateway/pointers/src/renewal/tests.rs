use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;
use crate::PointerOptions;

const HOST: &str = "api-int.example.com";
/// Within the validity that rcgen sets by default.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(2_000_000_000));

/// A CA, and what it signs.
struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        Self::since(name, 2000)
    }

    /// Valid from the beginning of this year.
    fn since(name: &str, year: i32) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = Certificate::parse(params.self_signed(&key).unwrap().der().clone()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { certificate, issuer }
    }

    fn signs(&self, host: &str) -> Certificate {
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let made = params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap();
        Certificate::parse(made.der().clone()).unwrap()
    }
}

/// A gateway with a CA that was in use first, and one that was introduced.
struct Fixture {
    old: Authority,
    new: Authority,
    foreign: Authority,
    pools: BTreeSet<String>,
}

impl Fixture {
    fn new() -> Self {
        let [old, new, foreign] = ["old", "new", "foreign"].map(Authority::new);
        let pools = BTreeSet::from(["worker".to_owned()]);
        Self { old, new, foreign, pools }
    }

    fn bundle(&self, authorities: &[&Authority]) -> Vec<Certificate> {
        authorities.iter().map(|authority| authority.certificate.clone()).collect()
    }

    /// Returns the renewed pointer, by a gateway with this bundle whose last but one, or only, CA signs.
    fn renewed(&self, pointer: &Value, bundle: &[&Authority]) -> Result<Option<Value>, NotRenewed> {
        let ours = Ours {
            authorities: &self.bundle(bundle),
            chain: &[bundle[0].signs(HOST)],
            pools: &self.pools,
            now: NOW,
        };
        renewed(pointer.to_string().as_bytes(), ours).map(|renewal| match renewal {
            Renewal::Current => None,
            Renewal::Renewed(text) => Some(serde_json::from_str(&text).unwrap()),
        })
    }

    fn written(&self, authorities: &[&Authority], token: Option<&str>) -> Value {
        let base = Url::parse(&format!("https://{HOST}:22623")).unwrap();
        let pointer = PointerOptions {
            base: &base,
            pool: "worker",
            authorities: &self.bundle(authorities),
            token,
        };
        pointer.render().unwrap()
    }

    /// Returns a pointer as an installer writes it, without a hint.
    fn installed(&self, authorities: &[&Authority]) -> Value {
        let mut pointer = self.written(authorities, None);
        pointer["ignition"]["config"]["merge"][0]["source"] = format!("https://{HOST}:22623/config/worker").into();
        pointer
    }
}

#[test]
fn each_rotation_step_is_written() {
    let fixture = Fixture::new();
    let (old, new) = (&fixture.old, &fixture.new);
    for token in [None, Some("abc")] {
        let first = fixture.written(&[old], token);
        assert_eq!(fixture.renewed(&first, &[old]), Ok(None));
        let both = fixture.renewed(&first, &[old, new]).unwrap().unwrap();
        // As if it were written anew, its token included.
        assert_eq!(both, fixture.written(&[old, new], token));
        assert_eq!(fixture.renewed(&both, &[old, new]), Ok(None));
        let last = fixture.renewed(&both, &[new]).unwrap().unwrap();
        assert_eq!(last, fixture.written(&[new], token));
    }
}

#[test]
fn stale_ca_bundle_removes_no_newer_ca() {
    let fixture = Fixture::new();
    let (old, new) = (&fixture.old, Authority::since("newer", 2030));
    let both = fixture.written(&[old, &new], None);
    assert_eq!(fixture.renewed(&both, &[old]), Err(NotRenewed::Newer(new.certificate.fingerprint)));
    // One that is older was retired.
    assert!(fixture.renewed(&both, &[&new]).unwrap().is_some());
}

#[test]
fn installer_pointer_is_renewed() {
    let fixture = Fixture::new();
    let (old, new) = (&fixture.old, &fixture.new);
    let installed = fixture.installed(&[old]);
    assert_eq!(fixture.renewed(&installed, &[old]), Ok(None));
    let both = fixture.renewed(&installed, &[old, new]).unwrap().unwrap();
    assert_eq!(both, fixture.written(&[old, new], None));
}

#[test]
fn renewal_preserves_other_fields() {
    let fixture = Fixture::new();
    let mut pointer = fixture.installed(&[&fixture.old]);
    pointer["ignition"]["proxy"] = json!({"httpsProxy": "https://proxy.example.com"});
    pointer["passwd"] = json!({"users": [{"name": "core", "sshAuthorizedKeys": ["key"]}]});
    pointer["ignition"]["config"]["merge"][0]["source"] = format!("https://{HOST}:22623/config/worker?rack=7&ca=x&token=a%2Bb").into();
    let found = fixture.renewed(&pointer, &[&fixture.old, &fixture.new]).unwrap().unwrap();
    let source = found["ignition"]["config"]["merge"][0]["source"].as_str().unwrap().to_owned();
    let (old, new) = (
        fixture.old.certificate.fingerprint.short(),
        fixture.new.certificate.fingerprint.short(),
    );
    assert_eq!(
        source,
        format!("https://{HOST}:22623/config/worker?rack=7&token=a%2Bb&ca={old},{new}")
    );
    for place in ["/ignition/proxy", "/passwd", "/ignition/version"] {
        assert_eq!(found.pointer(place), pointer.pointer(place), "{place}");
    }
}

#[test]
fn foreign_pointer_is_not_renewed() {
    let fixture = Fixture::new();
    let (old, new, foreign) = (&fixture.old, &fixture.new, &fixture.foreign);
    let check = |pointer: &Value, bundle: &[&Authority], expected: &str| {
        let error = fixture.renewed(pointer, bundle).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let installed = fixture.installed(&[old]);
    let with_source = |source: &str| {
        let mut pointer = installed.clone();
        pointer["ignition"]["config"]["merge"][0]["source"] = source.into();
        pointer
    };
    check(
        &with_source("https://other.example.com:22623/config/worker"),
        &[old, new],
        "a host that the MCS certificate does not name",
    );
    check(
        &with_source("http://api-int.example.com:22624/config/worker"),
        &[old, new],
        "no pool of this gateway",
    );
    check(
        &with_source("https://api-int.example.com:22623/config/master"),
        &[old, new],
        "no pool of this gateway",
    );
    check(
        &with_source("https://api-int.example.com:22623/worker"),
        &[old, new],
        "no pool of this gateway",
    );
    check(&with_source("data:,x"), &[old, new], "no pool of this gateway");
    // The Machine Config Server's own, with its own CA.
    check(&fixture.installed(&[foreign]), &[old, new], "no CA that pointers carry now");
    check(&fixture.installed(&[old, foreign]), &[old, new], "which is not this gateway's");
    // Its last CA was retired, and nobody knows that it was ours.
    check(&fixture.installed(&[old, new]), &[new], "which is not this gateway's");
    let mut two = installed.clone();
    two["ignition"]["config"]["merge"]
        .as_array_mut()
        .unwrap()
        .push(json!({"source": "https://b.example.com/x"}));
    check(&two, &[old, new], "2 sources");
    let mut none = installed.clone();
    none["ignition"]["config"] = json!({});
    check(&none, &[old, new], "0 sources");
    let mut broken = installed.clone();
    broken["ignition"]["security"]["tls"]["certificateAuthorities"] = json!([{"source": "data:,x"}]);
    check(&broken, &[old, new], "of no use");
    let mut fetched = installed.clone();
    fetched["ignition"]["security"]["tls"]["certificateAuthorities"] = json!([{"source": "https://a.example.com/ca.pem"}]);
    check(&fetched, &[old, new], "of no use");
    check(&json!({"storage": {}}), &[old, new], "neither an Ignition config");
    check(&json!({"ignition": {"version": "9.0.0"}}), &[old, new], "ignition.version");
    check(&json!("x".repeat(2_000_000)), &[old, new], "at most");
}

#[test]
fn the_certificate_must_hold_for_the_host() {
    let fixture = Fixture::new();
    let ours = Ours {
        authorities: &fixture.bundle(&[&fixture.old, &fixture.new]),
        // Of another CA than the bundle's.
        chain: &[fixture.foreign.signs(HOST)],
        pools: &fixture.pools,
        now: NOW,
    };
    let pointer = fixture.installed(&[&fixture.old]).to_string();
    assert!(matches!(renewed(pointer.as_bytes(), ours), Err(NotRenewed::Host(_))));
}
