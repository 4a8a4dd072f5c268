//! Faults of a log, and their places.

use std::fmt;

use attest_system::clock::rfc3339;

use super::FileReport;

/// A line of a file, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineLocation {
    pub file: String,
    pub line: u64,
}

impl fmt::Display for LineLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}", self.file, self.line)
    }
}

/// Difference of a log from what a gateway has written. Lines are named by their number in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationFinding {
    /// The hash in the next line does not match these lines.
    Altered {
        chain: String,
        from: u64,
        to: u64,
        why: Option<String>,
    },
    /// Lines between others are missing.
    Missing { chain: String, from: u64, to: u64 },
    /// The first lines are missing, and nothing says that they are elsewhere.
    NoBeginning { chain: String, first: u64 },
    /// Lines after the last one are missing: a checkpoint that is known from elsewhere shows it.
    Shortened { chain: String, after: u64, at: u64, known: u64 },
    /// A line differs from the one that is known from elsewhere to have been signed.
    Replaced { chain: String, number: u64 },
    /// A chain is missing that is known to have been signed.
    Lost {
        chain: String,
        number: u64,
        replica: Option<String>,
    },
    /// The same lines occur a second time.
    Doubled {
        chain: String,
        from: u64,
        to: u64,
        place: LineLocation,
    },
    /// Two different lines have the same number.
    Forked { chain: String, number: u64, place: LineLocation },
    /// A line is after one with a higher number.
    OutOfOrder { chain: String, number: u64, place: LineLocation },
    /// A line of another chain, which does not begin there.
    Spliced {
        chain: String,
        number: u64,
        into: String,
        place: LineLocation,
    },
    /// Lines without a chain are among those of a chain.
    PutIn { place: LineLocation, lines: u64, why: String },
    /// A file has only lines without a chain: no checkpoint covers them.
    Unchained { file: String, lines: u64 },
    /// The bytes before a chain's first line are not those that were there when it began.
    BeforeAltered { place: LineLocation, lines: u64 },
    /// A checkpoint's signature is not by its key over its text.
    CheckpointFalse { chain: String, number: u64 },
    /// A checkpoint that was signed for another place.
    CheckpointMoved { chain: String, number: u64, count: u64 },
    /// A checkpoint by a key that is not trusted.
    CheckpointUnknown { chain: String, number: u64, key: String },
    /// A checkpoint by a trusted key that belongs to another gateway, according to the auditor.
    CheckpointOfAnother { chain: String, number: u64, replica: String },
    /// From this checkpoint on, another key has signed the chain than before.
    KeyReplaced { chain: String, number: u64, replica: String },
    /// No trusted key has signed any line of the chain.
    NeverSigned { chain: String },
    /// A line records the removal of others, and its data do not match them.
    RemovedOtherwise { chain: String, number: u64 },
    /// A line of another chain records the removal of these, and nothing shows that one gateway has written both.
    RemovedByAnother {
        chain: String,
        first: u64,
        last: u64,
        by: (String, u64),
    },
    /// Some lines are missing that were to be kept of removed ones.
    NotKept {
        chain: String,
        first: u64,
        last: u64,
        there: u64,
        kept: u64,
    },
    /// The lines that were kept of removed ones are altered.
    KeptAltered { chain: String, first: u64, last: u64 },
    /// A line was kept more than once.
    KeptTwice { place: LineLocation, chain: String, number: u64 },
    /// A kept line does not belong to removed lines, nor to existing ones.
    KeptOfNothing { place: LineLocation, chain: String, number: u64 },
    /// A line in a file of kept lines is malformed.
    KeptUnreadable { place: LineLocation, why: String },
    /// A file's last line has no end.
    Torn { place: LineLocation },
    /// The contents after this line of a file cannot be read.
    Unreadable { after: LineLocation, why: String },
}

/// Returns the short name of a chain for people.
pub(super) fn short(chain: &str) -> String {
    chain.chars().take(8).collect()
}

fn lines(from: u64, to: u64) -> String {
    if from == to {
        format!("line {from}")
    } else {
        format!("lines {from} to {to}")
    }
}

impl fmt::Display for VerificationFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Altered { chain, from, to, why } => {
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                write!(f, "chain {}: altered at {}{why}", short(chain), lines(*from, *to))
            }
            Self::Missing { chain, from, to } => write!(
                f,
                "chain {}: missing between {} and {}: {}",
                short(chain),
                from.saturating_sub(1),
                to.saturating_add(1),
                lines(*from, *to)
            ),
            Self::NoBeginning { chain, first } => write!(
                f,
                "chain {}: missing before line {first}: give the files that hold what comes before, or --from with a checkpoint, or --continued",
                short(chain)
            ),
            Self::Shortened { chain, after, at, known } => write!(
                f,
                "chain {}: shortened after line {after} ({}): line {known} is known to have been signed",
                short(chain),
                rfc3339(*at)
            ),
            Self::Replaced { chain, number } => write!(
                f,
                "chain {}: altered at or before line {number}: another one is known to have been signed",
                short(chain)
            ),
            Self::Lost { chain, number, replica } => {
                let of = replica.as_ref().map(|replica| format!(" of gateway {replica}")).unwrap_or_default();
                // What the store knows of can be given up there.
                let lost = replica
                    .as_ref()
                    .map(|_| format!("; if it is lost for good: `attest-gateway log abandon {}`", short(chain)));
                let lost = lost.unwrap_or_default();
                write!(
                    f,
                    "chain {}{of}: missing, up to line {number} at least, which is known to have been signed: give its log, too (--log, --log-key), or name those that are at hand (--replica){lost}",
                    short(chain)
                )
            }
            Self::Doubled { chain, from, to, place } => {
                write!(
                    f,
                    "chain {}: doubled: {} once more, from {place} on",
                    short(chain),
                    lines(*from, *to)
                )
            }
            Self::Forked { chain, number, place } => write!(
                f,
                "chain {}: altered at line {number}: {place} is another line of that number; or two gateways wrote one chain",
                short(chain)
            ),
            Self::OutOfOrder { chain, number, place } => {
                write!(
                    f,
                    "chain {}: out of order: line {number} stands after later ones, {place}",
                    short(chain)
                )
            }
            Self::Spliced {
                chain,
                number,
                into,
                place,
            } => write!(
                f,
                "chain {}: spliced: {place} is line {number} of chain {}, which does not begin there",
                short(into),
                short(chain)
            ),
            Self::PutIn { place, lines, why } => {
                write!(f, "{place}: put in, or altered: {lines} line(s) of no chain: {why}")
            }
            Self::Unchained { file, lines } => write!(
                f,
                "{file}: unchained, {lines} line(s): nothing holds them, and anybody may have written them; if an older release has, say --unchained"
            ),
            Self::BeforeAltered { place, lines } => write!(
                f,
                "{place}: unchained beginning altered: the {lines} line(s) before it are not what stood there when its chain began"
            ),
            Self::CheckpointFalse { chain, number } => {
                write!(
                    f,
                    "chain {}: checkpoint false: line {number} is not signed by its key",
                    short(chain)
                )
            }
            Self::CheckpointMoved { chain, number, count } => write!(
                f,
                "chain {}: checkpoint moved: line {number} was signed for another place, after line {count}",
                short(chain)
            ),
            Self::CheckpointUnknown { chain, number, key } => write!(
                f,
                "chain {}: checkpoint by an unknown key: line {number}, {key}; if it is your gateway's, give it with --log-key",
                short(chain)
            ),
            Self::CheckpointOfAnother { chain, number, replica } => write!(
                f,
                "chain {}: checkpoint by another gateway's key: line {number} says it is of {replica}; if it is, say so with --log-key {replica}=FILE",
                short(chain)
            ),
            Self::KeyReplaced { chain, number, replica } => write!(
                f,
                "chain {}: line {number} is signed by another key than the checkpoints before it: if {replica} has lost its log.key and this is the one that was made then, say so with --log-key {replica}=FILE",
                short(chain)
            ),
            Self::NeverSigned { chain } => write!(
                f,
                "chain {}: never signed: no line of it is a checkpoint by a key that is trusted, as a gateway writes one when a chain begins",
                short(chain)
            ),
            Self::RemovedOtherwise { chain, number } => write!(
                f,
                "chain {}: removed otherwise than is said: line {number} is not the one at which what was removed ends",
                short(chain)
            ),
            Self::RemovedByAnother {
                chain,
                first,
                last,
                by: (by, number),
            } => write!(
                f,
                "chain {}: removed by another: line {number} of chain {} says that {} were, and its key has not signed all checkpoints of this chain, here and in checkpoints.jsonl: it is another gateway's; if one gateway has used several keys, say so with --log-key NAME=FILE for each",
                short(chain),
                short(by),
                lines(*first, *last)
            ),
            Self::NotKept {
                chain,
                first,
                last,
                there,
                kept,
            } => write!(
                f,
                "chain {}: removed, and not kept: of {} {there} of {kept} checkpoint(s) are in checkpoints.jsonl",
                short(chain),
                lines(*first, *last)
            ),
            Self::KeptAltered { chain, first, last } => write!(
                f,
                "chain {}: removed, and kept otherwise: the checkpoints of {} are not what they were",
                short(chain),
                lines(*first, *last)
            ),
            Self::KeptTwice { place, chain, number } => write!(f, "{place}: kept twice: line {number} of chain {}", short(chain)),
            Self::KeptOfNothing { place, chain, number } => write!(
                f,
                "{place}: kept, and of nothing: line {number} of chain {} was not removed, and is not that one",
                short(chain)
            ),
            Self::KeptUnreadable { place, why } => write!(f, "{place}: no line that is kept: {why}"),
            Self::Torn { place } => write!(
                f,
                "{place}: cut off within the line: it was never acknowledged, or the file was shortened"
            ),
            Self::Unreadable {
                after: LineLocation { file, line: 0 },
                why,
            } => write!(f, "{file}: cannot be read: {why}"),
            Self::Unreadable { after, why } => write!(f, "{after}: what comes after it cannot be read: {why}"),
        }
    }
}

/// Remark that is worth knowing, without a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Lines of an older release, covered only by the beginning of the chain that follows, or not at all.
    Unchained { file: String, to: u64, held: bool },
    /// The time of a checkpoint is earlier than that of a checkpoint before it.
    TimeBack { chain: String, number: u64 },
    /// The first lines are not verified, because that was asked for.
    Continued { chain: String, first: u64 },
    /// From this checkpoint on the gateway's other key has signed it, as the auditor has stated.
    KeyReplaced { chain: String, number: u64 },
    /// Checkpoints of a gateway of one name are by several keys.
    KeysOfOne { replica: String, keys: usize },
    /// Checkpoints by one key are of gateways of several names.
    NamesOfOne { replicas: Vec<String> },
    /// Lines that their gateway found when it started, and that it may not have written.
    Found { chain: String, from: u64, to: u64 },
    /// Lines that were removed by the rule, according to this line.
    Removed {
        chain: String,
        from: u64,
        to: u64,
        by: (String, u64),
    },
    /// Lines whose removal is recorded still exist.
    StillThere { chain: String, from: u64, to: u64 },
    /// The removals that this line records are not believed.
    RemovalNotBelieved { chain: String, number: u64 },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchained { file, to, held: true } => write!(
                f,
                "{file}: unchained up to line {to}, by an older release: as it was when the chain began, and before that nobody knows"
            ),
            Self::Unchained { file, to, held: false } => {
                write!(f, "{file}: unchained, {to} line(s) by an older release: nothing holds them")
            }
            Self::TimeBack { chain, number } => {
                write!(
                    f,
                    "chain {}: the clock was set back before the checkpoint at line {number}",
                    short(chain)
                )
            }
            Self::Found { chain, from, to } => write!(
                f,
                "chain {}: {} stood there unsigned when the gateway started: it was killed after it had written them, or somebody else has",
                short(chain),
                lines(*from, *to)
            ),
            Self::KeyReplaced { chain, number } => write!(
                f,
                "chain {}: from line {number} on it is signed by another key, which is its gateway's as you say",
                short(chain)
            ),
            Self::KeysOfOne { replica, keys } => write!(
                f,
                "{replica} signs with {keys} keys: it was set up anew, or two gateways have one name, or one of them is somebody else's; --log-key {replica}=FILE says which are its own"
            ),
            Self::NamesOfOne { replicas } => write!(
                f,
                "one key signs as {}: the gateway got another name, or it signs for another one; --log-key NAME=FILE says whose it is",
                replicas.join(" and ")
            ),
            Self::Removed {
                chain,
                from,
                to,
                by: (by, number),
            } => write!(
                f,
                "chain {}: removed by rule: {}, as line {number} of chain {} says",
                short(chain),
                lines(*from, *to),
                short(by)
            ),
            Self::StillThere { chain, from, to } => write!(
                f,
                "chain {}: {} are here, and are said to be removed: they are copies, or the gateway was stopped before it removed them",
                short(chain),
                lines(*from, *to)
            ),
            Self::RemovalNotBelieved { chain, number } => write!(
                f,
                "chain {}: line {number} says that lines were removed, and is not believed: its gateway has not signed it as its own",
                short(chain)
            ),
            Self::Continued { chain, first } => write!(f, "chain {}: what comes before line {first} is not at hand", short(chain)),
        }
    }
}

impl VerificationFinding {
    /// Returns whether it is about this chain. A finding about a place is if its file holds lines of the chain.
    pub(super) fn is_of(&self, wanted: &str, files: &[FileReport]) -> bool {
        match self {
            Self::Altered { chain, .. }
            | Self::Missing { chain, .. }
            | Self::NoBeginning { chain, .. }
            | Self::Shortened { chain, .. }
            | Self::Replaced { chain, .. }
            | Self::Lost { chain, .. }
            | Self::Doubled { chain, .. }
            | Self::Forked { chain, .. }
            | Self::OutOfOrder { chain, .. }
            | Self::CheckpointFalse { chain, .. }
            | Self::CheckpointMoved { chain, .. }
            | Self::CheckpointUnknown { chain, .. }
            | Self::CheckpointOfAnother { chain, .. }
            | Self::KeyReplaced { chain, .. }
            | Self::RemovedOtherwise { chain, .. }
            | Self::RemovedByAnother { chain, .. }
            | Self::NotKept { chain, .. }
            | Self::KeptAltered { chain, .. }
            | Self::KeptTwice { chain, .. }
            | Self::KeptOfNothing { chain, .. }
            | Self::NeverSigned { chain } => chain == wanted,
            Self::Spliced { chain, into, .. } => chain == wanted || into == wanted,
            Self::PutIn { place, .. }
            | Self::BeforeAltered { place, .. }
            | Self::Torn { place }
            | Self::Unreadable { after: place, .. } => {
                let mut files = files.iter().filter(|file| file.name == place.file);
                files.any(|file| file.chains.contains(wanted))
            }
            Self::Unchained { .. } | Self::KeptUnreadable { .. } => false,
        }
    }
}
