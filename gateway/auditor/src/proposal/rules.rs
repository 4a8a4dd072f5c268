//! The strictest rules that accept what was seen, and what no rule can be made of.

use std::collections::{BTreeMap, BTreeSet};

use attest::ReferenceValues;
use attest::reference_sets::Values;
use attest::tpm::boot_complete::BOOT_COMPLETE_PCR;
use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
use attest::tpm::rules::Check;

use super::observed_boots::{BootSection, Machines, ObservedBoots, OfSection, Variants};
use super::thing::RuleSubject;
use super::values::{self, ProposedValue};

/// Number of variants that are few, however many machines there are, if there are more machines than variants.
const FEW_VARIANTS: usize = 3;
/// Otherwise, average number of machines that have to share a variant: a fact that differs on each machine makes no rule.
const SHARED_BY_LEAST: usize = 2;
/// A value that at most one in this number of machines has is shown to the reviewer.
const RARE_ONE_IN: usize = 4;

/// Options of a proposal.
#[derive(Debug, Clone, Copy)]
pub struct RuleRequest {
    /// Number of machines that have to share a value.
    pub least: usize,
    /// Whole PCRs also where a check is about all of their events.
    pub pcrs: bool,
}

/// Rule that the file is to have for a PCR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcrSays {
    ReferenceValues,
    NotChecked,
}

/// Rules that the file is to have in one section, as far as they change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProposedRules {
    pub event_log: Option<EventLogRule>,
    pub only_while_booting: bool,
    pub boot: Option<Vec<Check>>,
    pub pcrs: BTreeMap<u8, PcrSays>,
}

/// A fact that no rule was made of, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotGeneralised {
    pub rule: String,
    pub why: String,
    pub machines: usize,
    pub named: String,
}

/// A value that is proposed, and that few machines have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rare {
    pub rule: String,
    pub value: String,
    pub machines: usize,
    pub of: usize,
    pub named: String,
}

/// Proposal for one section.
#[derive(Debug, Default)]
pub(crate) struct OfRules {
    pub rules: ProposedRules,
    pub not_generalised: Vec<NotGeneralised>,
    pub rare: Vec<Rare>,
}

/// A section, as it is and as it was seen.
pub(super) struct Proposer<'p> {
    pub section: BootSection,
    /// Rules that the pool has now.
    pub now: &'p ReferenceValues,
    pub of: &'p OfSection,
    pub observed: &'p ObservedBoots,
    pub wanted: RuleRequest,
    /// Values that the rules are to accept.
    pub values: &'p mut Values,
    pub out: OfRules,
}

impl Proposer<'_> {
    pub(crate) fn propose(mut self) -> OfRules {
        if self.section.has_events() {
            self.event_log();
            self.boot();
        } else {
            let (of, why) = (self.of, "such evidence has no event log: only whole PCRs can have rules");
            self.not_generalised("boot, event_log", why.to_owned(), &of.machines);
        }
        self.pcrs();
        self.boot_complete();
        self.out
    }

    fn not_generalised(&mut self, rule: &str, why: String, machines: &Machines) {
        self.out.not_generalised.push(NotGeneralised {
            rule: format!("{}: {rule}", self.section.key()),
            why,
            machines: machines.len(),
            named: self.observed.named(machines),
        });
    }

    fn event_log(&mut self) {
        let of = self.of;
        if !of.without_log.is_empty() {
            self.not_generalised("event_log = \"required\"", "no event log was sent".to_owned(), &of.without_log);
        }
        for (code, machines) in &of.log_problems {
            self.not_generalised("event_log", format!("the event log matches no PCR: {code}"), machines);
        }
        let strictest = match (of.log_problems.is_empty(), of.without_log.is_empty()) {
            (true, true) => EventLogRule::Required,
            (true, false) => EventLogRule::Checked,
            (false, _) => EventLogRule::Recorded,
        };
        self.out.rules.event_log = (self.now.event_log() != strictest).then_some(strictest);
    }

    /// Proposes the checks that the pool has, in their order, and then all others that hold.
    fn boot(&mut self) {
        let before = self.now.boot();
        let named = |check: &Check| self.now.pcrs().contains_key(&check.pcr());
        let new = Check::ALL.into_iter().filter(|check| !before.contains(check) && named(check));
        let all: Vec<Check> = before.iter().copied().chain(new).collect();
        let mut boot = Vec::new();
        for check in all {
            let holds_already = before.contains(&check) && !self.of.refused_now.contains_key(&RuleSubject::Boot(check));
            if holds_already || self.accept(RuleSubject::Boot(check)) {
                boot.push(check);
            }
        }
        let unquoted: Vec<String> = Check::ALL
            .into_iter()
            .filter(|check| !self.now.pcrs().contains_key(&check.pcr()))
            .map(|check| format!("{check} ({})", check.pcr()))
            .collect();
        if !unquoted.is_empty() {
            let why = "its PCR is not in pool.toml, so it is not quoted: add it as \"not checked\" to observe it";
            self.not_generalised(&format!("boot: {}", unquoted.join(", ")), why.to_owned(), &Machines::new());
        }
        self.out.rules.boot = (boot != before).then_some(boot);
    }

    fn pcrs(&mut self) {
        let boot = self.out.rules.boot.clone();
        let boot = boot.as_deref().unwrap_or_else(|| self.now.boot());
        let covered: BTreeSet<u8> = boot
            .iter()
            .filter(|check| is_about_all_of_its_pcr(**check))
            .map(|check| check.pcr())
            .collect();
        for (&pcr, accepted) in self.now.pcrs() {
            let refuses = self.of.refused_now.contains_key(&RuleSubject::Pcr(pcr));
            if *accepted != AcceptedValues::NotChecked && !refuses {
                continue;
            }
            let is_covered = covered.contains(&pcr) && !self.wanted.pcrs;
            let says = match !is_covered && self.accept(RuleSubject::Pcr(pcr)) {
                true => PcrSays::ReferenceValues,
                false => PcrSays::NotChecked,
            };
            let as_it_is = match says {
                PcrSays::ReferenceValues => *accepted == AcceptedValues::ReferenceValues,
                PcrSays::NotChecked => *accepted == AcceptedValues::NotChecked,
            };
            if !as_it_is {
                self.out.rules.pcrs.insert(pcr, says);
            }
        }
    }

    fn boot_complete(&mut self) {
        let rule = "only_while_booting";
        if self.now.is_only_while_booting() {
            return;
        }
        if !self.now.pcrs().contains_key(&BOOT_COMPLETE_PCR) {
            let why =
                format!("PCR {BOOT_COMPLETE_PCR} is not quoted: add it as \"not checked\" to observe it, or set only_while_booting = true");
            return self.not_generalised(rule, why, &Machines::new());
        }
        if self.of.closed.is_empty() {
            self.out.rules.only_while_booting = true;
            return;
        }
        let why = format!("software extended PCR {BOOT_COMPLETE_PCR} after the firmware");
        self.not_generalised(rule, why, &self.of.closed);
    }

    /// Returns whether a rule about it can be made; if so, puts what it has to accept into the generation.
    fn accept(&mut self, thing: RuleSubject) -> bool {
        let Some(variants) = self.of.things.get(&thing) else { return false };
        let rule = describe(thing);
        let mut may_be = true;
        for (why, machines) in &variants.never {
            if machines.len() >= self.wanted.least {
                self.not_generalised(&rule, why.clone(), machines);
                may_be = false;
            } else {
                self.not_generalised(
                    &rule,
                    format!("left out, fewer than {} machines: {why}", self.wanted.least),
                    machines,
                );
            }
        }
        let (kept, rare): (Vec<_>, Vec<_>) = variants
            .machines_by_values
            .iter()
            .partition(|(_, machines)| machines.len() >= self.wanted.least);
        for (values, machines) in rare {
            let why = format!("left out, fewer than {} machines: {}", self.wanted.least, summary(values));
            self.not_generalised(&rule, why, machines);
        }
        let zero = |(values, _): &(&Vec<ProposedValue>, &Machines)| values.iter().any(ProposedValue::is_zero);
        let unextended: Machines = kept
            .iter()
            .filter(|row| zero(row))
            .flat_map(|(_, machines)| machines.iter().copied())
            .collect();
        if !unextended.is_empty() {
            // Each boot that measures nothing has this value, and proves nothing by it.
            self.not_generalised(&rule, "all zero: nothing was measured into it".to_owned(), &unextended);
            may_be = false;
        }
        if !may_be {
            return false;
        }
        let on: Machines = kept.iter().flat_map(|(_, machines)| machines.iter().copied()).collect();
        if !variants.other_machines.is_empty() || !generalises(kept.len(), on.len()) {
            let more = if variants.other_machines.is_empty() { "" } else { "more than " };
            let on: Machines = on.union(&variants.other_machines).copied().collect();
            let why = format!("{more}{} different values on {} machines", kept.len(), on.len());
            self.not_generalised(&rule, why, &on);
            return false;
        }
        let accepted = match thing {
            RuleSubject::Boot(Check::Dbx) => {
                let common = in_all(kept.iter().map(|(values, _)| values.as_slice()));
                if common.is_empty() {
                    self.not_generalised(&rule, "no hash is common to all lists".to_owned(), &on);
                    return false;
                }
                common
            }
            _ => kept.iter().flat_map(|(values, _)| values.iter().cloned()).collect(),
        };
        if thing != RuleSubject::Boot(Check::Dbx) {
            self.note_rare(&rule, &accepted, variants, on.len());
        }
        values::put(self.values, thing, self.now.bank(), &accepted, |value| {
            variants.names.get(value).cloned()
        });
        true
    }

    fn note_rare(&mut self, rule: &str, accepted: &BTreeSet<ProposedValue>, variants: &Variants, of: usize) {
        for value in accepted {
            let having = variants.machines_by_values.iter().filter(|(values, _)| values.contains(value));
            let machines: Machines = having.flat_map(|(_, machines)| machines.iter().copied()).collect();
            if of > 1 && (machines.len() == 1 || machines.len() * RARE_ONE_IN <= of) {
                let name = variants.names.get(value).map(|name| format!(" {name:?}")).unwrap_or_default();
                self.out.rare.push(Rare {
                    rule: format!("{}: {rule}", self.section.key()),
                    value: format!("{value}{name}"),
                    machines: machines.len(),
                    of,
                    named: self.observed.named(&machines),
                });
            }
        }
    }
}

/// Returns whether this number of variants on this number of machines is shared by machines, and not each one's own.
const fn generalises(variants: usize, machines: usize) -> bool {
    variants == 1 || (variants < machines && variants <= FEW_VARIANTS) || (variants > 0 && variants * SHARED_BY_LEAST <= machines)
}

/// Checks that leave no event of their PCR out: what else would be said of that PCR is in which order they came, and how often.
const fn is_about_all_of_its_pcr(check: Check) -> bool {
    match check {
        Check::Images | Check::Drivers | Check::Grub | Check::Files | Check::UkiSections | Check::KernelConfig | Check::Mok => true,
        Check::SecureBoot | Check::Dbx | Check::Authorities | Check::FirmwareVersion => false,
    }
}

fn in_all<'v>(mut lists: impl Iterator<Item = &'v [ProposedValue]>) -> BTreeSet<ProposedValue> {
    let first: BTreeSet<ProposedValue> = lists.next().unwrap_or_default().iter().cloned().collect();
    lists.fold(first, |common, list| {
        common.into_iter().filter(|value| list.contains(value)).collect()
    })
}

fn describe(thing: RuleSubject) -> String {
    match thing {
        RuleSubject::Pcr(pcr) => format!("PCR {pcr}"),
        RuleSubject::Boot(check) => format!("boot: {check}"),
    }
}

/// The first value, and how many more there are.
fn summary(values: &[ProposedValue]) -> String {
    match values {
        [] => "the boots measured no such event".to_owned(),
        [only] => only.to_string(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_unique_to_each_machine_yield_no_rule() {
        let check = |variants, machines, expect| assert_eq!(generalises(variants, machines), expect, "{variants} on {machines}");
        check(0, 0, false);
        check(1, 1, true);
        check(1, 100, true);
        check(2, 2, false);
        check(2, 3, true);
        check(3, 3, false);
        check(3, 4, true);
        check(4, 5, false);
        check(4, 8, true);
        check(50, 100, true);
        check(51, 100, false);
        check(100, 100, false);
    }
}
