//! `attest-gateway pointer inspect`: what a pointer trusts, and whether this gateway would satisfy it.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest::UnixTime;
use attest_certificates::{Certificate, Fingerprint};
use attest_gateway::pki::ServingCertificate;
use attest_gateway::settings::Settings;
use attest_log::{Earns, Grants};
use attest_pointers::{ConfigSource, PointerCa, PointerCredential, PointerForm, READING_LIMIT_BYTES, ReadPointer};
use attest_system::advised_commands::runnable;
use attest_system::clock::{Clock, rfc3339};
use serde_json::json;
use url::Url;

use super::super::{OutputOption, clean, objects, output, table, with_store};
use super::token::{self, Worth};

/// Result of the inspection, in sentences.
#[derive(Default)]
struct Judgement {
    /// Remarks that are good to know.
    remarks: Vec<String>,
    /// Reasons why this gateway would not satisfy the pointer.
    reasons: Vec<String>,
}

pub(super) fn run(config: &Path, file: &Path, format: OutputOption) -> anyhow::Result<ExitCode> {
    let name = if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };
    let reading = ReadPointer::parse(&super::read(file, READING_LIMIT_BYTES)?).with_context(|| name.clone())?;
    let settings = Settings::load(config)?;
    let now = Clock::System.now();
    let mut judgement = Judgement::default();
    let serving = ServingCertificate::load(&settings.tls, now)
        .map_err(|error| {
            judgement
                .reasons
                .push(format!("this gateway cannot serve with its MCS certificate: {error}"))
        })
        .ok();

    let form = match &reading.form {
        PointerForm::Config => "an Ignition config".to_owned(),
        PointerForm::Secret { name } => format!("the Secret {name:?} with an Ignition config"),
    };
    if let Some(refused) = &reading.refused {
        judgement
            .reasons
            .push(format!("Ignition rejects the config: {}", clean(&refused.to_string())));
    }
    if reading.cut {
        judgement
            .reasons
            .push("the pointer has too many sources or CAs; the last ones were not checked".to_owned());
    }
    for authority in &reading.authorities {
        match authority {
            PointerCa::Certificate(_) => {}
            PointerCa::NotLookedAt(why) => judgement.remarks.push(format!("a CA was not checked: {why}")),
            PointerCa::Broken(why) => judgement.reasons.push(format!("a CA in the pointer cannot be used: {why}")),
        }
    }
    let (ours, others): (Vec<&ConfigSource>, Vec<&ConfigSource>) = reading.sources.iter().partition(|source| source.pool.is_some());
    for other in others {
        let place = &other.place;
        judgement.remarks.push(format!(
            "{place} is not of the form https://host:port/config/POOL, and was not checked"
        ));
    }
    if ours.is_empty() {
        let nowhere = "the pointer has no source of a gateway: https://host:port/config/POOL";
        judgement.reasons.push(nowhere.to_owned());
    }
    for source in &ours {
        judgement.address(source, &settings);
        if let Some(serving) = &serving {
            judgement.certificate(source, &reading, serving, now);
        }
        judgement.credential(source, &reading, &settings, config)?;
    }
    if let Some(serving) = &serving {
        judgement.rotation(&reading, serving);
    }
    let (source_columns, ca_columns) = (
        ["SOURCE", "HOST", "PORT", "POOL", "ATTESTED", "TOKEN", "NOTHING"],
        ["CA", "SUBJECT", "UNTIL", "IN BUNDLE", "SIGNS"],
    );
    let (sources, authorities) = (sources(&settings, &reading), authorities(&reading, serving.as_ref()));
    if format.is_json() {
        output::json(&json!({
            "file": name,
            "spec": reading.version,
            "sources": objects(source_columns, &sources),
            "authorities": objects(ca_columns, &authorities),
            "reasons": judgement.reasons,
            "remarks": judgement.remarks,
        }))?;
        return Ok(judgement.code());
    }
    output::line(format_args!("{name}: {form} of spec {}\n", reading.version))?;
    output::line(table(source_columns, &sources))?;
    output::line(table(ca_columns, &authorities))?;
    judgement.print()
}

const fn label(earns: Earns) -> &'static str {
    match earns {
        Earns::Full => "full",
        Earns::PreApproved => "pre-approved",
        Earns::Refuse => "refuse",
    }
}

/// Returns the URL without the parts that may be secret.
fn public(url: &Url) -> String {
    let mut public = url.clone();
    public.set_query(None);
    public.set_fragment(None);
    // They fail for URLs that cannot have either.
    let named = public.set_username("").and_then(|()| public.set_password(None));
    match (named, url.scheme()) {
        (_, "data") => "data:...".to_owned(),
        (Ok(()), _) => public.to_string(),
        (Err(()), scheme) => format!("{scheme}:..."),
    }
}

fn grants(settings: &Settings, pool: &str) -> anyhow::Result<Grants> {
    Ok(attest_pool::grants(&super::super::pool_folder(settings, pool)?)?)
}

fn sources(settings: &Settings, reading: &ReadPointer) -> Vec<[String; 7]> {
    let row = |source: &ConfigSource| {
        let none = || "-".to_owned();
        let url = source.url.as_ref();
        let grants = source.pool.as_deref().and_then(|pool| grants(settings, pool).ok());
        let earns = |of: fn(&Grants) -> Earns| grants.as_ref().map_or("-", |grants| label(of(grants))).to_owned();
        [
            url.map_or_else(|| format!("{}: no URL", source.place), public),
            url.and_then(Url::host_str).map_or_else(none, str::to_owned),
            url.and_then(Url::port_or_known_default).map_or_else(none, |port| port.to_string()),
            source.pool.clone().unwrap_or_else(none),
            earns(|grants| grants.attested),
            earns(|grants| grants.token),
            earns(|grants| grants.nothing),
        ]
    };
    reading.sources.iter().map(row).collect()
}

fn authorities(reading: &ReadPointer, serving: Option<&ServingCertificate>) -> Vec<[String; 5]> {
    let yes = |yes: Option<bool>| match yes {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => "-".to_owned(),
    };
    let row = |authority: &PointerCa| match authority {
        PointerCa::Certificate(certificate) => [
            certificate.fingerprint.short(),
            clean(&certificate.subject),
            rfc3339(certificate.not_after),
            yes(serving.map(|serving| serving.authorities().iter().any(|own| own.fingerprint == certificate.fingerprint))),
            yes(serving.map(|serving| serving.signed_by() == certificate.fingerprint)),
        ],
        PointerCa::NotLookedAt(why) => [
            "-".to_owned(),
            format!("not looked at: {why}"),
            String::new(),
            String::new(),
            String::new(),
        ],
        PointerCa::Broken(why) => [
            "-".to_owned(),
            format!("of no use: {why}"),
            String::new(),
            String::new(),
            String::new(),
        ],
    };
    reading.authorities.iter().map(row).collect()
}

impl Judgement {
    fn address(&mut self, source: &ConfigSource, settings: &Settings) {
        let Some(url) = &source.url else { return };
        let shown = public(url);
        if url.scheme() != "https" {
            return self.reasons.push(format!("{shown}: this gateway speaks TLS only (https)"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            self.remarks
                .push(format!("{shown}: the gateway ignores the user and password in the URL"));
        }
        let (port, listen) = (url.port_or_known_default(), settings.listen.port());
        let led_here = settings.pointer_url.as_ref().and_then(Url::port_or_known_default);
        if let Some(port) = port.filter(|port| *port != listen && Some(*port) != led_here) {
            self.remarks.push(format!(
                "{shown}: this gateway listens on port {listen}; redirect port {port} to it"
            ));
        }
        if let Some(pool) = &source.pool
            && let Err(error) = grants(settings, pool)
        {
            self.reasons.push(format!("{shown}: {error:#}"));
        }
    }

    fn certificate(&mut self, source: &ConfigSource, reading: &ReadPointer, serving: &ServingCertificate, now: UnixTime) {
        let Some(host) = source.url.as_ref().and_then(Url::host) else {
            return;
        };
        match attest_pointers::accepts(reading.certificates(), serving.chain(), &host, now) {
            Ok(()) => self
                .remarks
                .push(format!("nodes with these CAs accept the certificate in use for {host}")),
            Err(error) => {
                let error = clean(&error.to_string());
                self.reasons
                    .push(format!("nodes with these CAs refuse the certificate in use for {host}: {error}"));
            }
        }
        let bundle: Vec<Fingerprint> = serving.authorities().iter().map(|authority| authority.fingerprint).collect();
        let carried: Vec<String> = bundle
            .iter()
            .filter(|own| reading.certificates().any(|certificate| certificate.fingerprint == **own))
            .map(Fingerprint::short)
            .collect();
        match attest_pointers::parse_hint(source.url.as_ref().and_then(Url::query), &bundle) {
            None => self.remarks.push(
                "the pointer's URL does not list its CAs (?ca=), so `attest-gateway ca status` cannot tell which it carries".to_owned(),
            ),
            Some(said) if said != carried => {
                self.remarks.push(
                    "the pointer's URL lists other CAs (?ca=) than it carries, so `attest-gateway ca status` shows wrong ones".to_owned(),
                );
            }
            Some(_) => {}
        }
    }

    /// Notes whether the pointer works when the serving certificate is replaced by one of the newest CA.
    fn rotation(&mut self, reading: &ReadPointer, serving: &ServingCertificate) {
        let Some(newest) = serving.authorities().last() else { return };
        let carries = |wanted: &Certificate| {
            reading
                .certificates()
                .any(|certificate| certificate.fingerprint == wanted.fingerprint)
        };
        let short = newest.fingerprint.short();
        self.remarks
            .push(match (carries(newest), newest.fingerprint == serving.signed_by()) {
                (true, true) => format!("the pointer carries the newest CA {short}, which signs the certificate in use"),
                (true, false) => format!("the pointer carries the newest CA {short}: it also works after `attest-gateway ca switch`"),
                (false, true) => format!("the pointer lacks the newest CA {short}, which signs the certificate in use: write it again with `attest-gateway pointer create`"),
                (false, false) => {
                    format!("the pointer lacks the newest CA {short}: it stops working after `attest-gateway ca switch`. Write it again first: `attest-gateway pointer create`")
                }
            });
    }

    fn credential(&mut self, source: &ConfigSource, reading: &ReadPointer, settings: &Settings, config: &Path) -> anyhow::Result<()> {
        let Some(pool) = source.pool.as_deref() else { return Ok(()) };
        let Ok(grants) = grants(settings, pool) else { return Ok(()) };
        let mut credentials = source.credentials.iter();
        let (first, more) = (credentials.next(), credentials.next().is_some());
        if more {
            self.reasons
                .push("the pointer has more than one credential, which the gateway refuses (credential-ambiguous)".to_owned());
        }
        // Spec 2 has no headers, which a ticket stands in.
        let attests = !reading.version.starts_with("2.");
        if first.is_none() && !attests && grants.attested != grants.nothing {
            self.reasons.push(format!(
                "spec {} has no place for a ticket: nodes with this pointer cannot attest, and get {} instead of {}. Write it in spec 3.1 or newer (`attest-gateway pointer create --spec 3.1.0`), or give it a token",
                reading.version,
                label(grants.nothing),
                label(grants.attested)
            ));
        }
        match first {
            None if !attests => {}
            None if grants.nothing != Earns::Refuse => {
                self.remarks.push(format!(
                    "the pointer has no token: without an attestation nodes get the {} config",
                    label(grants.nothing)
                ));
            }
            None if grants.attested != Earns::Refuse => {
                self.remarks.push(format!(
                    "the pointer has no token: pool {pool} serves only nodes that attest (attest-node)"
                ));
            }
            None => self
                .reasons
                .push(format!("the pointer has no token, and pool {pool} grants nothing without one")),
            Some(PointerCredential::Unreadable(problem)) => self.reasons.push((*problem).to_owned()),
            Some(PointerCredential::Ticket) => {
                let ticket = "the pointer has a ticket, which a node adds to its pointer while it boots, and which is valid for minutes: inspect the original pointer";
                self.reasons.push(ticket.to_owned());
            }
            Some(PointerCredential::Token(text)) => {
                if grants.token == Earns::Refuse {
                    self.reasons.push(format!(
                        "the pointer has a token, but pool {pool} accepts none: set grants.token in its pool.toml"
                    ));
                }
                let (text, pool, now) = (text.clone(), pool.to_owned(), Clock::System.now());
                match with_store(config, |store| async move { Ok(token::describe(&store, &text, &pool, now).await?) })? {
                    Worth::Good(text) => self.remarks.push(text),
                    Worth::Bad(text) => self.reasons.push(text),
                }
            }
        }
        Ok(())
    }

    const fn code(&self) -> ExitCode {
        if self.reasons.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// Prints the result, and returns the exit code.
    fn print(self) -> anyhow::Result<ExitCode> {
        for remark in &self.remarks {
            output::line(runnable(remark))?;
        }
        output::line("")?;
        if self.reasons.is_empty() {
            output::line("satisfied: this gateway serves nodes that have this pointer")?;
        }
        for reason in &self.reasons {
            output::line(format_args!("NOT satisfied: {}", runnable(reason)))?;
        }
        Ok(self.code())
    }
}
