//! Measurements of a pool's machines, by what rules can be about: PCRs, checks of events, the event log, the boot-complete PCR.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use attest::tpm::reference_values::AcceptedValues;
use attest::tpm::requirements::{QuotedPcrs, Requirement};
use attest::tpm::rules::{Check, could_hold, recorded};
use attest::{AppraisalPolicy, Claims, Kind, ReferenceValues, UnixTime, appraise};
use attest_log::Blobs;
use attest_log::past_evidence::PastEvidence;

use super::thing::RuleSubject;
use super::values::{self, ProposedValue};
use crate::replay::verify;

/// Maximum number of variants of one thing that are distinguished. A thing with more is different on each machine, or no rule could list
/// it.
pub(crate) const VARIANTS_LIMIT: usize = 256;
/// Machines that are named where several share something.
pub(crate) const NAMED_LIMIT: usize = 3;
/// Longest reason why a check cannot hold, in characters.
const REASON_LIMIT_CHARACTERS: usize = 200;

/// A section of `pool.toml` with rules on what was booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BootSection {
    Tpm,
    AzureVtpm,
    AwsNitroTpm,
}

impl BootSection {
    pub const ALL: [Self; 3] = [Self::Tpm, Self::AzureVtpm, Self::AwsNitroTpm];

    /// As `pool.toml` calls it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::AzureVtpm => "azure_vtpm",
            Self::AwsNitroTpm => "aws_nitro_tpm",
        }
    }

    /// The evidence that it is about.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Tpm => Kind::Tpm,
            Self::AzureVtpm => Kind::AzureVtpm,
            Self::AwsNitroTpm => Kind::AwsNitroTpm,
        }
    }

    /// Returns whether an event log comes with this evidence, so that rules on it exist.
    #[must_use]
    pub const fn has_events(self) -> bool {
        !matches!(self, Self::AwsNitroTpm)
    }

    /// The rules of a pool.
    pub fn all_of(policy: &AppraisalPolicy) -> impl Iterator<Item = (Self, &ReferenceValues)> {
        let tpm = policy.reference_values().map(|values| (Self::Tpm, values));
        let azure = policy.azure_vtpm().map(|rules| (Self::AzureVtpm, rules.reference_values()));
        let nitro = policy.aws_nitro_tpm().map(|rules| (Self::AwsNitroTpm, rules.reference_values()));
        [tpm, azure, nitro].into_iter().flatten()
    }

    /// Returns the quote, if evidence of this kind was shown.
    fn quoted(self, claims: &Claims) -> Option<QuotedPcrs<'_>> {
        let mut quotes = claims.quotes().into_iter();
        quotes.find(|(kind, _)| *kind == self.kind()).map(|(_, quoted)| quoted)
    }
}

/// A set of machines, by their numbers.
pub(crate) type Machines = BTreeSet<u32>;

/// Variants that were seen of one thing.
#[derive(Debug, Default)]
pub struct Variants {
    /// Values that a boot had of it, all together, and the machines that had them.
    pub machines_by_values: HashMap<Vec<ProposedValue>, Machines>,
    /// On which machines no rule about it can hold, and why.
    pub never: BTreeMap<String, Machines>,
    /// Names of values: the nodes' own words where no digest covers them.
    pub names: HashMap<ProposedValue, String>,
    /// Machines whose variant is not distinguished, beyond that limit.
    pub other_machines: Machines,
}

/// All that was seen of the things of one section.
#[derive(Debug, Default)]
pub struct OfSection {
    pub machines: Machines,
    pub things: BTreeMap<RuleSubject, Variants>,
    /// Machines whose boots the current rule refuses.
    pub refused_now: BTreeMap<RuleSubject, Machines>,
    /// Machines without an event log; and those whose event log explains nothing, by the code of the refusal.
    pub without_log: Machines,
    pub log_problems: BTreeMap<String, Machines>,
    /// Machines whose boot-complete PCR was extended already.
    pub closed: Machines,
}

/// All that was seen.
#[derive(Debug, Default)]
pub struct ObservedBoots {
    pub sections: BTreeMap<BootSection, OfSection>,
    /// Machines that have shown each kind of evidence, whatever it says.
    pub kinds: BTreeMap<Kind, Machines>,
    /// Machines whose evidence does not count. The pool would refuse it whatever was booted, it says nothing of that, or it cannot be
    /// verified again.
    pub not_counted: BTreeMap<String, Machines>,
    /// What machines are called.
    pub names: BTreeMap<u32, String>,
    /// Time of the first evidence that counts, in seconds since 1970.
    pub since: Option<u64>,
}

impl Variants {
    fn add(&mut self, machine: u32, found: Result<Vec<(ProposedValue, Option<String>)>, String>) {
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.never.entry(why).or_default().insert(machine);
                return;
            }
        };
        let (mut values, mut names) = (Vec::new(), Vec::new());
        for (value, name) in found {
            names.extend(name.map(|name| (value.clone(), name)));
            values.push(value);
        }
        values.sort();
        values.dedup();
        if self.machines_by_values.len() >= VARIANTS_LIMIT && !self.machines_by_values.contains_key(&values) {
            self.other_machines.insert(machine);
            return;
        }
        self.machines_by_values.entry(values).or_default().insert(machine);
        for (value, name) in names {
            self.names.entry(value).or_insert(name);
        }
    }

    fn merge(&mut self, other: Self) {
        for (values, machines) in other.machines_by_values {
            if self.machines_by_values.len() >= VARIANTS_LIMIT && !self.machines_by_values.contains_key(&values) {
                self.other_machines.extend(machines);
            } else {
                self.machines_by_values.entry(values).or_default().extend(machines);
            }
        }
        merge(&mut self.never, other.never);
        self.other_machines.extend(other.other_machines);
        for (value, name) in other.names {
            self.names.entry(value).or_insert(name);
        }
    }
}

fn merge<K: Ord>(into: &mut BTreeMap<K, Machines>, from: BTreeMap<K, Machines>) {
    for (key, machines) in from {
        into.entry(key).or_default().extend(machines);
    }
}

impl ObservedBoots {
    /// Adds what a record shows, verified again. `policy` is the pool's, observing: what it refuses it would refuse whatever was booted.
    pub fn add(&mut self, past: &PastEvidence, blobs: &Blobs, policy: &AppraisalPolicy, now: UnixTime) {
        self.names.entry(past.machine).or_insert_with(|| past.name.clone());
        let mut not_counted = |why: String| {
            self.not_counted.entry(short(&why)).or_default().insert(past.machine);
        };
        let verified = std::str::from_utf8(&past.line).map_err(|error| error.to_string());
        let verified = verified.and_then(|line| verify(line, blobs).map_err(|error| error.to_string()));
        let claims = match verified {
            Ok(again) => again.claims,
            Err(why) => return not_counted(format!("it cannot be verified again: {why}")),
        };
        let claims = match appraise(claims, policy, now) {
            Ok(result) => result.claims().clone(),
            Err(reject) => return not_counted(format!("{}: {reject}", reject.code())),
        };
        for kind in claims.kinds() {
            self.kinds.entry(*kind).or_default().insert(past.machine);
        }
        let quoted = BootSection::all_of(policy).filter_map(|(section, values)| Some((section, values, section.quoted(&claims)?)));
        let quoted: Vec<_> = quoted.collect();
        if quoted.is_empty() {
            let kinds: Vec<&str> = claims.kinds().iter().map(|kind| kind.as_str()).collect();
            let why = format!("{} does not measure the boot", kinds.join(" + "));
            self.not_counted.entry(why).or_default().insert(past.machine);
            return;
        }
        self.since = Some(self.since.map_or(past.at, |since| since.min(past.at)));
        for (section, values, quoted) in quoted {
            let of = self.sections.entry(section).or_default();
            of.add(past.machine, section, values, &quoted, now);
        }
    }

    pub fn merge(&mut self, other: Self) {
        for (section, found) in other.sections {
            self.sections.entry(section).or_default().merge(found);
        }
        merge(&mut self.kinds, other.kinds);
        merge(&mut self.not_counted, other.not_counted);
        self.names.extend(other.names);
        self.since = [self.since, other.since].into_iter().flatten().min();
    }

    /// How many machines count.
    #[must_use]
    pub fn machines(&self) -> usize {
        let all: Machines = self.sections.values().flat_map(|of| of.machines.iter().copied()).collect();
        all.len()
    }

    /// Some of these machines, by name, and how many more there are.
    #[must_use]
    pub fn named(&self, machines: &Machines) -> String {
        let names = machines.iter().filter_map(|machine| self.names.get(machine));
        let names: Vec<&str> = names.take(NAMED_LIMIT).map(String::as_str).collect();
        match machines.len().saturating_sub(NAMED_LIMIT) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

impl OfSection {
    fn add(&mut self, machine: u32, section: BootSection, values: &ReferenceValues, quoted: &QuotedPcrs<'_>, now: UnixTime) {
        self.machines.insert(machine);
        let refuses = |requirement| values.meets(requirement, quoted, now).is_err();
        for &pcr in values.pcrs().keys() {
            let found = quoted.pcrs.get(&pcr).ok_or_else(|| "it was not quoted".to_owned());
            let found = found.map(|digest| vec![(ProposedValue::Digest(digest.clone()), None)]);
            self.things.entry(RuleSubject::Pcr(pcr)).or_default().add(machine, found);
            if refuses_pcr(values, pcr, quoted, now) {
                self.refused_now.entry(RuleSubject::Pcr(pcr)).or_default().insert(machine);
            }
        }
        let door = values.clone().only_while_booting(true);
        if door.meets(Requirement::OnlyWhileBooting, quoted, now).is_err() {
            self.closed.insert(machine);
        }
        if !section.has_events() {
            return;
        }
        match quoted.event_log.map(|log| log.problem.as_ref()) {
            None => drop(self.without_log.insert(machine)),
            Some(None) => {}
            Some(Some(problem)) => {
                let code = problem.refusal().code().to_owned();
                self.log_problems.entry(code).or_default().insert(machine);
            }
        }
        for &check in values.boot() {
            if refuses(Requirement::Boot(check)) {
                self.refused_now.entry(RuleSubject::Boot(check)).or_default().insert(machine);
            }
        }
        let found = check_values(quoted);
        for check in Check::ALL.into_iter().filter(|check| values.pcrs().contains_key(&check.pcr())) {
            self.things.entry(RuleSubject::Boot(check)).or_default().add(machine, found(check));
        }
    }

    fn merge(&mut self, other: Self) {
        self.machines.extend(other.machines);
        for (thing, variants) in other.things {
            self.things.entry(thing).or_default().merge(variants);
        }
        merge(&mut self.refused_now, other.refused_now);
        self.without_log.extend(other.without_log);
        merge(&mut self.log_problems, other.log_problems);
        self.closed.extend(other.closed);
    }
}

/// Returns whether the rule on a PCR refuses it. The rules of NitroTPM compare PCRs in a module of their own, in the same way.
fn refuses_pcr(values: &ReferenceValues, pcr: u8, quoted: &QuotedPcrs<'_>, now: UnixTime) -> bool {
    let is_checked = values
        .pcrs()
        .get(&pcr)
        .is_some_and(|accepted| *accepted != AcceptedValues::NotChecked);
    is_checked && values.meets(Requirement::Pcr(pcr), quoted, now).is_err()
}

/// Returns, for each check, the values of the boot that it would have to accept, or the reason why it cannot hold.
fn check_values(quoted: &QuotedPcrs<'_>) -> impl Fn(Check) -> Result<Vec<(ProposedValue, Option<String>)>, String> {
    let boot = quoted.event_log.and_then(|log| log.boot.as_deref());
    let own = boot.map(|boot| recorded(boot, &BTreeMap::new()));
    let holds = boot.zip(own.as_ref()).map(|(boot, own)| could_hold(boot, own));
    let bank = quoted.bank;
    move |check| {
        let (Some(own), Some(holds)) = (&own, &holds) else {
            return Err("no event log matches the PCRs".to_owned());
        };
        match holds.get(&check) {
            Some(Err(why)) => Err(short(&format!("{}: {why}", why.advice().code))),
            _ => Ok(values::proposed_values(check, own, bank)),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(REASON_LIMIT_CHARACTERS).collect()
}
