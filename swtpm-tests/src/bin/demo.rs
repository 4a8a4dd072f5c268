//! `make demo`: four VMs from the same image ask the gateway for their config, and each gets what it has proven.

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use swtpm_tests::scenario::{Scenario, Site, VmRun};
use swtpm_tests::{Accelerator, DEFAULT_PORT, GUEST_VIEW_OF_HOST, Images, Programs, free_port};

/// Lines of several threads, each with the time since the start.
#[derive(Clone)]
struct Story {
    started: Instant,
    voice: Arc<Mutex<()>>,
}

impl Story {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            voice: Arc::default(),
        }
    }

    fn print(&self, who: &str, line: &str) {
        let _turn = self.voice.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{:7.1} s  {who:<8} {line}", self.started.elapsed().as_secs_f64());
    }

    fn step(&self, line: &str) {
        self.print("demo", line);
    }
}

fn main() -> ExitCode {
    let keep = std::env::args().any(|argument| argument == "--keep");
    match demo(keep) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo. Returns `true` if every VM got exactly the config that it should get.
fn demo(keep: bool) -> Result<bool> {
    let story = Story::new();
    let folder = tempfile::Builder::new()
        .prefix("attestation-demo-")
        .tempdir()
        .context("a temporary folder")?;
    story.step("the programs: attest-gateway and attest-node, development builds, as in the tests");
    Programs::build()?;
    story.step("the image: Debian's kernel and Ignition, attest-node appended (1-2 minutes the first time)");
    Images::fast()?;
    story.step("attest-gateway init: an MCS CA, a serving certificate, the pool \"worker\"; a TPM manufacturer's CA goes to ek-roots/, and the pool takes its TPMs");
    let mut site = Site::with_defaults(folder.path())?;
    if TcpListener::bind(("0.0.0.0", DEFAULT_PORT)).is_err() {
        let port = free_port()?;
        story.step(&format!(
            "port {DEFAULT_PORT} is taken on this machine: the gateway will listen on {port}"
        ));
        site.gateway().set_port(port)?;
    }
    story.step(match site.accelerator() {
        Accelerator::Kvm => "VMs run under KVM: a probe guest did",
        Accelerator::Tcg => "VMs are emulated (TCG): a probe guest did not run under KVM",
    });
    let voice = story.clone();
    // Its own time stamps would only repeat the column of seconds.
    let on_line = move |line: &str| voice.print("gateway", line.split_once("Z ").map_or(line, |(_, words)| words.trim_start()));
    site.gateway().start(Some(Box::new(on_line)))?;
    story.step(&format!("the gateway answers on https://127.0.0.1:{}", site.gateway().port()));

    let mut rows = Vec::new();
    for (number, scenario) in (1..).zip(Scenario::ALL) {
        rows.push(boot(&story, &site, number, scenario)?);
    }
    let ok = rows.iter().all(|row| row.proof.is_ok());
    print_table(&rows);
    if keep {
        leave_running(&mut site)?;
    }
    site.gateway().terminate()?;
    story.step("the gateway has drained and stopped");
    Ok(ok)
}

/// Row of the table at the end.
struct ResultRow {
    number: u32,
    scenario: Scenario,
    run: VmRun,
    /// Number of files, if they are exactly the expected ones.
    proof: Result<usize>,
}

fn boot(story: &Story, site: &Site, number: u32, scenario: Scenario) -> Result<ResultRow> {
    let who = format!("VM {number}");
    story.print(&who, &format!("boots; it has {}", scenario.shows()));
    let (voice, speaker) = (story.clone(), who.clone());
    let on_line = move |line: &str| {
        if let Some(words) = worth_telling(line) {
            voice.print(&speaker, &words);
        }
    };
    let run = site.run(scenario, Some(Box::new(on_line)))?;
    let proof = site.prove_exactly(scenario.expected_grant(), &run.outcome);
    match &proof {
        Ok(count) => story.print(
            &who,
            &format!(
                "its console proves: exactly the {} config, {}",
                scenario.expected_grant(),
                files(*count)
            ),
        ),
        Err(error) => story.print(&who, &format!("NOT as expected: {error:#}")),
    }
    Ok(ResultRow {
        number,
        scenario,
        run,
        proof,
    })
}

/// Returns the text for spectators of a line of a VM's console, if it is of interest.
fn worth_telling(line: &str) -> Option<String> {
    if line.starts_with("attest-node: ") {
        return Some(line.to_owned());
    }
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["@@", "exit", "ignition-fetch", "0"] => Some("Ignition has fetched its config".to_owned()),
        ["@@", "exit", "ignition-files", "0"] => Some("Ignition has written its files".to_owned()),
        ["@@", "exit", stage, code] if *code != "0" && *stage != "attest-node" => Some(format!("{stage} failed with {code}")),
        _ => None,
    }
}

fn print_table(rows: &[ResultRow]) {
    println!(
        "\n{:<3} {:<22} {:<8} {:<42} {:<30} {:>7}",
        "VM", "showed", "verdict", "reason", "got", "seconds"
    );
    for ResultRow {
        number,
        scenario,
        run,
        proof,
    } in rows
    {
        let (verdict, reason) = run.decision();
        let reason = reason.split(';').next().unwrap_or_default();
        let got = match proof {
            Ok(count) => format!("{} config, {}", scenario.expected_grant(), files(*count)),
            Err(_) => format!("NOT exactly the {} config", scenario.expected_grant()),
        };
        let seconds = run.duration.as_secs_f64();
        println!(
            "{number:<3} {:<22} {verdict:<8} {reason:<42} {got:<30} {seconds:>7.1}",
            scenario.shows()
        );
    }
    println!();
}

fn files(count: usize) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

/// Prints how to explore the demo, and waits for Ctrl-C.
fn leave_running(site: &mut Site) -> Result<()> {
    let by_hand = site.vm_by_hand()?;
    let gateway = site.gateway();
    let (port, ca, folder) = (gateway.port(), gateway.ca(), gateway.folder().to_path_buf());
    let (ca, folder) = (ca.display(), folder.display());
    println!("The gateway is still running; its folder is {folder}. Ctrl-C ends it and removes everything.\n");
    println!("What it is, whether it is ready, and what it gives to somebody who shows nothing:");
    for path in ["/v1/attest", "/readyz", "/config/worker"] {
        println!("  curl --cacert {ca} https://127.0.0.1:{port}{path}");
    }
    println!("The attestation log, and who has enrolled:");
    println!("  tail -f {}", gateway.attestation_log().display());
    println!(
        "  {} --config {folder}/gateway.toml machines list",
        Programs::build()?.gateway.display()
    );
    println!("Another provisioning token, and a pointer config with it:");
    println!(
        "  {} --config {folder}/gateway.toml token create --pool worker",
        Programs::build()?.gateway.display()
    );
    println!(
        "  {} --config {folder}/gateway.toml pointer create --pool worker --url https://{GUEST_VIEW_OF_HOST}:{port} --token TOKEN",
        Programs::build()?.gateway.display()
    );
    println!("Another VM, with a new TPM that the gateway endorses (its console is your terminal):");
    by_hand.iter().for_each(|line| println!("  {line}"));
    println!();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c()).context("waiting for Ctrl-C")
}
