//! `attest-gateway check`.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::clock::Clock;
use attest_gateway::cloud::Clouds;
use attest_gateway::pki::{self, Finding};
use attest_gateway::policy::ConfigSet;
use attest_gateway::pools::Pool;
use attest_gateway::settings::Settings;
use attest_gateway::store::Embedded;
use attest_gateway::{ek_roots, pools, seal};

pub fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let mut findings = vec![Finding::Good(format!(
        "{} is read; listening on {}",
        config.display(),
        settings.listen
    ))];
    findings.extend(pki::inspect(&settings.tls, Clock::System.now()));
    let mut roots = false;
    match ek_roots::load(&settings.ek_roots) {
        Ok(folder) => {
            findings.push(Finding::Good(format!(
                "{}: {} certificates",
                settings.ek_roots.display(),
                folder.certificates.len()
            )));
            findings.extend(
                folder
                    .refused
                    .into_iter()
                    .map(|refused| Finding::Warning(format!("left out of the EK roots: {refused}"))),
            );
            roots = !folder.roots.is_empty();
            if !roots {
                findings.push(Finding::Warning(
                    "no EK roots: only TPMs on the allowlist are endorsed (attest-gateway ek add)".to_owned(),
                ));
            }
        }
        Err(error) => findings.push(Finding::Error(error.to_string())),
    }
    // If it cannot be loaded, that was found above.
    let serving = pki::Serving::load(&settings.tls, Clock::System.now()).ok();
    let clouds = Clouds::open(&settings.clouds, serving.as_ref().and_then(pki::Serving::dns_name));
    match &clouds {
        Ok(clouds) => findings.extend(clouds.findings()),
        Err(error) => findings.push(Finding::Error(error.to_string())),
    }
    match pools::folders(&settings.pools) {
        Ok(folders) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            for (name, folder) in folders {
                match runtime.block_on(pools::load(&name, &folder)) {
                    Ok(pool) => {
                        inspect(&pool, roots, settings.tls.client_ca.is_some(), &mut findings);
                        let warnings = clouds.iter().flat_map(|clouds| clouds.warnings(&pool));
                        findings.extend(warnings.map(Finding::Warning));
                    }
                    Err(error) => findings.push(Finding::Error(error.to_string())),
                }
            }
        }
        Err(error) => findings.push(Finding::Error(error.to_string())),
    }
    if settings.state.is_dir() {
        findings.push(match Embedded::open(&settings.store()) {
            Ok(_) => Finding::Good(format!("{} opens", settings.store().display())),
            Err(error) => Finding::Error(format!("{}: {error}", settings.store().display())),
        });
        if settings.seal_key().exists() {
            findings.extend(
                seal::Seal::open(&settings.seal_key())
                    .err()
                    .map(|error| Finding::Error(error.to_string())),
            );
        }
    } else {
        findings.push(Finding::Warning(format!(
            "{} does not exist yet; serve makes it",
            settings.state.display()
        )));
    }
    let mut failed = false;
    for finding in &findings {
        match finding {
            Finding::Good(text) => println!("ok       {text}"),
            Finding::Warning(text) => println!("warning  {text}"),
            Finding::Error(text) => {
                failed = true;
                println!("ERROR    {text}");
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What there is to say of a pool.
fn inspect(pool: &Pool, roots: bool, client_ca: bool, findings: &mut Vec<Finding>) {
    findings.push(Finding::Good(format!(
        "pool {}: attested earns {:?}, a token {:?}, a kubelet {:?}, nothing {:?}; accepts {}{}",
        pool.name(),
        pool.grants.attested,
        pool.grants.token,
        pool.grants.kubelet,
        pool.grants.nothing,
        pool.policy
            .accepts()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", or "),
        pool.policy
            .selection()
            .map(|selection| format!("; quotes {selection}"))
            .unwrap_or_default()
    )));
    findings.push(Finding::Good(format!("pool {}: {}", pool.name(), pool.summary())));
    for set in [ConfigSet::PreApproved, ConfigSet::Full] {
        // The newest version that fails says most; older ones fail for that, and for more.
        if let Some(error) = pool.inexpressible(set).last() {
            findings.push(Finding::Warning(format!(
                "pool {}: nodes whose Ignition reads spec {} or older cannot get the {set} config: {error}",
                pool.name(),
                error.version
            )));
        }
    }
    findings.extend(pool.warnings(roots, client_ca).into_iter().map(Finding::Warning));
}
