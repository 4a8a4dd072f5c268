//! The command `attest-gateway policy explain`: describes a pool's requirements.

use std::path::Path;
use std::process::ExitCode;

use attest::{AppraisalPolicy, ReferenceValues};
use attest_gateway::settings::Settings;
use attest_pool::{HistoryRules, UnknownMachines, WaitingRules};
use serde_json::json;

use crate::commands::{OutputOption, output, pool};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  attest-gateway policy explain worker")]
pub(crate) struct Arguments {
    /// Pool whose policy is explained.
    pool: String,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let pool = pool(&Settings::load(config)?, &arguments.pool)?;
    let (history, waiting) = (
        describe_history(pool.history),
        describe_waiting(pool.waiting.as_ref(), pool.policy.observes()),
    );
    let text = format!("{}{history}{waiting}", describe_rules(&pool.policy));
    if arguments.format.is_json() {
        output::json(&json!({ "pool": arguments.pool, "rules": text.lines().collect::<Vec<_>>() }))?;
    } else {
        output::print(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes what becomes of machines that are refused for one acceptable thing.
fn describe_waiting(rules: Option<&WaitingRules>, observes: bool) -> String {
    rules.map_or_else(String::new, |rules| {
        let minutes = rules.wait_seconds / 60;
        let becomes = match observes {
            true => "the machine is trusted, because the pool observes".to_owned(),
            false => format!("the machine waits for at most {minutes} min"),
        };
        let unknown = match rules.unknown {
            UnknownMachines::Wait => format!("A machine that nobody has enrolled waits for at most {minutes} min.\n"),
            UnknownMachines::Refuse => String::new(),
        };
        format!(
            "[waiting]\nIf a boot fails only by values that match no reference value, {becomes}. The gateway asks the administrator once {} machines have booted them.\nA machine that asks for another machine's name, or that [history] refuses, waits for at most {minutes} min.\n{unknown}",
            rules.machines
        )
    })
}

/// Returns the PCR values and boot rules of a policy, by its sections.
fn values(policy: &AppraisalPolicy) -> impl Iterator<Item = (&'static str, &ReferenceValues)> {
    let tpm = policy.reference_values().map(|values| ("tpm", values));
    let azure = policy.azure_vtpm().map(|rules| ("azure_vtpm", rules.reference_values()));
    let nitro = policy.aws_nitro_tpm().map(|rules| ("aws_nitro_tpm", rules.reference_values()));
    [tpm, azure, nitro].into_iter().flatten()
}

/// Describes each rule in a line.
fn describe_rules(policy: &AppraisalPolicy) -> String {
    let accepts: Vec<String> = policy.accepts().iter().map(ToString::to_string).collect();
    let mut text = format!("A node presents {}.\n", accepts.join(", or "));
    if policy.observes() {
        text.push_str("The pool observes: rules marked \"observed\" refuse no machine; their failures are recorded (would_refuse).\n");
    }
    let observed = |is: bool| if is { "observed: " } else { "" };
    for (section, values) in values(policy) {
        text.push_str(&format!("[{section}]\n"));
        for requirement in values.requirements() {
            let observed = observed(policy.observes() && requirement.is_on_what_was_booted());
            text.push_str(&format!("- {observed}{}\n", values.description(requirement)));
        }
    }
    if let Some(condition) = policy.condition() {
        let observed = observed(policy.observes_condition());
        text.push_str(&format!(
            "This condition on the claims holds:\n- {observed}{}\n",
            condition.source()
        ));
    }
    text
}

/// Describes what is refused although all of that holds.
fn describe_history(rules: HistoryRules) -> String {
    let lines: String = rules.descriptions().map(|words| format!("- {words}\n")).collect();
    match lines.as_str() {
        "" => lines,
        lines => format!("[history], compared with the last trusted attestation\n{lines}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::BTreeMap;

    use attest::appraisal::Rules;
    use attest::condition::Condition;
    use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
    use attest::tpm::rules::Check;
    use attest::{HashAlg, Kind};
    use attest_pool::HistoryPolicy;

    use super::*;

    #[test]
    fn explains_each_policy_rule() {
        let pcrs: BTreeMap<u8, AcceptedValues> = (0..8)
            .map(|pcr| {
                (
                    pcr,
                    if pcr == 4 {
                        AcceptedValues::AnyOf(vec![[1; 32].into()])
                    } else {
                        AcceptedValues::NotChecked
                    },
                )
            })
            .collect();
        let values = ReferenceValues::new(HashAlg::Sha256, pcrs)
            .unwrap()
            .with_event_log(EventLogRule::Required);
        let policy = AppraisalPolicy::for_tpm(values.with_boot(vec![Check::SecureBoot]).unwrap());
        let words = describe_rules(&policy);
        for expected in [
            "A node presents tpm.",
            "[tpm]",
            "the PCRs 0, 1, 2, 3, 4, 5, 6, 7 of sha256 are quoted",
            "PCR 0: not checked",
            "PCR 4 has one of 1 digests of pool.toml",
            "the node sends an event log",
            "Secure Boot is on",
        ] {
            assert!(words.contains(expected), "{expected} is not in {words}");
        }
        assert!(!words.contains("observed"), "{words}");
    }

    #[test]
    fn marks_observed_rules() {
        let pcrs = (0..8).map(|pcr| (pcr, AcceptedValues::NotChecked)).collect();
        let values = ReferenceValues::new(HashAlg::Sha256, pcrs).unwrap().only_while_booting(true);
        let words = |condition: &str| {
            let rules = Rules {
                tpm: Some(values.clone()),
                condition: Some(Condition::parse(condition).unwrap()),
                observe: true,
                ..Rules::default()
            };
            super::describe_rules(&AppraisalPolicy::new(vec![Kind::Tpm.into()], rules).unwrap())
        };
        let of_boot = words("claims.tpm.pcrs['7'] == 'ab'");
        for expected in [
            "The pool observes",
            "- the PCRs 0, 1",
            "- observed: PCR 7: not checked",
            "- the machine is still booting",
            "- observed: the event log, if the node sends one",
            "- observed: claims.tpm.pcrs",
        ] {
            assert!(of_boot.contains(expected), "{expected} is not in {of_boot}");
        }
        assert!(words("claims.tpm.clock_safe").contains("- claims.tpm.clock_safe"));
    }

    #[test]
    fn explains_only_refusing_history_rules() {
        assert_eq!(describe_history(HistoryRules::default()), "");
        let rules = HistoryRules {
            firmware_back: HistoryPolicy::Refuse,
            ..HistoryRules::default()
        };
        let words = describe_history(rules);
        assert!(
            words.contains("[history]") && words.contains("firmware is not older") && !words.contains("counters"),
            "{words}"
        );
    }
}
