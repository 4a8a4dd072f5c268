//! The CSRs of kubelets that are in the cluster, by the node they are for, with what this gateway has done about each.
//!
//! Any client with the bootstrap credential fills it, so its size in bytes is bounded, and what is judged in one pass is bounded for each node name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use attest::SpkiSha256;
use kube::Resource;

use super::csr::{Csr, Purpose, Stage};
use super::csr_object::CsrObject;
use super::judge::Asked;

/// Delay before a CSR is judged first: by then those are known that came at the same time.
const SETTLE: Duration = Duration::from_secs(3);
/// Delay before a CSR that was left is judged again: a Machine object may have got an address, or the administrator has named a machine.
const AGAIN: Duration = Duration::from_secs(10);
/// Most names whose CSRs are judged in one pass: each costs a few reads of the store.
const NAMES_PER_PASS_LIMIT: usize = 25;
/// Most CSRs for one name that are judged in one pass: a node has one.
const JUDGED_PER_NAME_LIMIT: usize = 4;
/// Most memory for CSRs. One of a kubelet takes about 1 KiB, so this is 30,000 nodes that ask at once.
const CACHE_LIMIT_BYTES: usize = 32 * 1024 * 1024;
/// Size of a full cache after an eviction: not each CSR that comes evicts one.
const CACHE_AFTER_EVICTION_BYTES: usize = CACHE_LIMIT_BYTES / 10 * 9;
/// Memory for a CSR besides its texts, bytes: entry, indexes, allocations.
const ENTRY_BYTES: usize = 768;

/// The CSRs that are counted together: for one node, or by one user if it cannot be read which node they are for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Node(Purpose, String),
    User(Purpose, String),
}

impl Subject {
    fn of(csr: &Csr) -> Self {
        match csr.node() {
            Some(node) => Self::Node(csr.purpose, node.to_owned()),
            None => Self::User(csr.purpose, csr.username.clone()),
        }
    }

    /// True if a machine has attested that may be this node.
    fn is_attested(&self, attested: &AttestedSubjects) -> bool {
        matches!(self, Self::Node(Purpose::Client, node) if attested.names.contains(&node.to_ascii_lowercase()))
    }
}

/// The names and keys that attested machines are expected to ask for: judged before all others.
#[derive(Debug, Default)]
pub(super) struct AttestedSubjects {
    pub(super) names: HashSet<String>,
    pub(super) keys: HashSet<SpkiSha256>,
}

struct Entry {
    csr: Arc<Csr>,
    resource_version: Option<String>,
    /// The listing that has shown it last.
    listing: u64,
    bytes: usize,
    since: Instant,
    judged: Option<Instant>,
    first_judged: Option<u64>,
    maybe_judged_before: bool,
    /// The text of its last event, and for the how manyth time.
    event: Option<(String, u64)>,
}

impl Entry {
    fn asked(&self) -> Asked {
        Asked {
            csr: Arc::clone(&self.csr),
            first_judged: self.first_judged,
            maybe_judged_before: self.maybe_judged_before,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let waited = match self.judged {
            Some(judged) => now.duration_since(judged) >= AGAIN,
            None => now.duration_since(self.since) >= SETTLE,
        };
        self.csr.stage == Stage::Pending && waited
    }

    fn waits_since(&self) -> Instant {
        self.judged.unwrap_or(self.since)
    }
}

#[derive(Default)]
struct Group {
    /// Ordered by the time of their creation.
    uids: BTreeSet<(u64, String)>,
    bytes: usize,
}

#[derive(Default)]
struct Content {
    entries: HashMap<String, Entry>,
    groups: BTreeMap<Subject, Group>,
    /// Groups by their size.
    sizes: BTreeSet<(usize, Subject)>,
    bytes: usize,
    listing: u64,
    /// For which purposes all were listed once.
    listed: BTreeSet<Purpose>,
    evicted: u64,
}

/// CSRs for one node that are to be judged.
pub(super) struct DueGroup {
    /// All for this node.
    pub(super) requests: Vec<Asked>,
    /// Those that are to be judged now.
    pub(super) due: Vec<Asked>,
    /// True if a machine has attested that may be this node.
    pub(super) is_attested: bool,
}

/// The CSRs of kubelets.
#[derive(Default)]
pub(super) struct RequestCache(Mutex<Content>);

impl RequestCache {
    fn locked(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a listing; gives its number.
    pub(super) fn begin_listing(&self) -> u64 {
        let mut content = self.locked();
        content.listing += 1;
        content.listing
    }

    /// Takes up an object that a listing or a watch has shown.
    pub(super) fn insert(&self, object: &CsrObject, purpose: Purpose, listing: u64) {
        let Some(uid) = object.meta().uid.as_deref() else { return };
        {
            let mut content = self.locked();
            let version = &object.meta().resource_version;
            if let Some(known) = content.entries.get_mut(uid).filter(|known| known.resource_version == *version) {
                known.listing = listing;
                return;
            }
        }
        // A signature is verified here: not while others wait.
        let csr = Csr::of(object).filter(|csr| csr.purpose == purpose && csr.stage != Stage::Closed);
        let mut content = self.locked();
        let is_first = !content.listed.contains(&purpose);
        let before = content.remove(uid);
        let Some(csr) = csr else { return };
        let entry = Entry {
            bytes: size(&csr),
            csr: Arc::new(csr),
            resource_version: object.meta().resource_version.clone(),
            listing,
            since: before.as_ref().map_or_else(Instant::now, |before| before.since),
            judged: before.as_ref().and_then(|before| before.judged),
            first_judged: before.as_ref().and_then(|before| before.first_judged),
            maybe_judged_before: before.as_ref().map_or(is_first, |before| before.maybe_judged_before),
            event: before.and_then(|before| before.event),
        };
        content.add(entry);
    }

    /// Forgets a CSR that is gone.
    pub(super) fn remove(&self, uid: &str) {
        self.locked().remove(uid);
    }

    /// Forgets the CSRs that a complete listing has not shown.
    pub(super) fn end_listing(&self, purpose: Purpose, listing: u64) {
        let mut content = self.locked();
        let is_gone = |entry: &&Entry| entry.csr.purpose == purpose && entry.listing < listing;
        let gone: Vec<String> = content
            .entries
            .values()
            .filter(is_gone)
            .map(|entry| entry.csr.uid.clone())
            .collect();
        for uid in gone {
            content.remove(&uid);
        }
        content.listed.insert(purpose);
    }

    /// Returns and resets the number of CSRs that were evicted from a full cache.
    pub(super) fn take_evicted(&self) -> u64 {
        std::mem::take(&mut self.locked().evicted)
    }

    /// Returns whether any CSR is to be judged.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.locked().entries.values().any(|entry| entry.is_due(now))
    }

    /// Notes that another gateway judges the CSRs that are due now.
    pub(super) fn leave_to_others(&self, now: Instant) {
        for entry in self.locked().entries.values_mut().filter(|entry| entry.is_due(now)) {
            entry.maybe_judged_before = true;
        }
    }

    /// The CSRs that are judged in this pass: those for nodes whose machine has attested first, and of each node's first that for the attested key. Of the
    /// others, those that have waited longest.
    pub(super) fn due(&self, now: Instant, attested: &AttestedSubjects) -> Vec<DueGroup> {
        let content = self.locked();
        let mut waiting: BTreeMap<&Subject, Vec<&Entry>> = BTreeMap::new();
        let subjects = content.entries.values().filter(|entry| entry.is_due(now)).filter_map(|entry| {
            let (subject, _) = content.groups.get_key_value(&Subject::of(&entry.csr))?;
            Some((subject, entry))
        });
        for (subject, entry) in subjects {
            waiting.entry(subject).or_default().push(entry);
        }
        let mut order: Vec<(&Subject, Vec<&Entry>)> = waiting.into_iter().collect();
        order.sort_by_cached_key(|(subject, due)| (!subject.is_attested(attested), due.iter().map(|entry| entry.waits_since()).min()));
        order.truncate(NAMES_PER_PASS_LIMIT);
        let group = |(subject, mut due): (&Subject, Vec<&Entry>)| {
            let has_key = |entry: &Entry| entry.csr.request.as_ref().is_ok_and(|request| attested.keys.contains(&request.key));
            due.sort_by_key(|entry| (!has_key(entry), entry.waits_since()));
            let uids = content.groups.get(subject).into_iter().flat_map(|group| &group.uids);
            DueGroup {
                requests: uids.filter_map(|(_, uid)| content.entries.get(uid)).map(Entry::asked).collect(),
                due: due.into_iter().take(JUDGED_PER_NAME_LIMIT).map(Entry::asked).collect(),
                is_attested: subject.is_attested(attested),
            }
        };
        order.into_iter().map(group).collect()
    }

    /// Notes that a pass has judged a CSR; says whether it was judged before.
    pub(super) fn judged(&self, uid: &str, now: Instant, pass: u64) -> bool {
        let mut content = self.locked();
        let Some(entry) = content.entries.get_mut(uid) else { return false };
        let before = entry.judged.replace(now);
        entry.first_judged.get_or_insert(pass);
        before.is_some()
    }

    /// Notes that a pass could not judge a CSR; says whether it was looked at before.
    pub(super) fn postponed(&self, uid: &str, now: Instant) -> bool {
        let mut content = self.locked();
        let before = content.entries.get_mut(uid).and_then(|entry| entry.judged.replace(now));
        before.is_some()
    }

    /// Returns whether its last event was this one.
    pub(super) fn has_event(&self, uid: &str, text: &str, repetition: u64) -> bool {
        let content = self.locked();
        let event = content.entries.get(uid).and_then(|entry| entry.event.as_ref());
        event.is_some_and(|(said, number)| said == text && *number == repetition)
    }

    /// Notes its last event.
    pub(super) fn note_event(&self, uid: &str, text: String, repetition: u64) {
        if let Some(entry) = self.locked().entries.get_mut(uid) {
            entry.event = Some((text, repetition));
        }
    }
}

impl Content {
    fn add(&mut self, entry: Entry) {
        let (subject, bytes) = (Subject::of(&entry.csr), entry.bytes);
        self.resize(&subject, |group| {
            group.uids.insert((entry.csr.created, entry.csr.uid.clone()));
            group.bytes += bytes;
        });
        self.bytes += bytes;
        self.entries.insert(entry.csr.uid.clone(), entry);
        if self.bytes > CACHE_LIMIT_BYTES {
            while self.bytes > CACHE_AFTER_EVICTION_BYTES && self.evict() {
                self.evicted += 1;
            }
        }
    }

    fn remove(&mut self, uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(uid)?;
        self.resize(&Subject::of(&entry.csr), |group| {
            group.uids.remove(&(entry.csr.created, uid.to_owned()));
            group.bytes = group.bytes.saturating_sub(entry.bytes);
        });
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        Some(entry)
    }

    fn resize(&mut self, subject: &Subject, change: impl FnOnce(&mut Group)) {
        let mut group = self.groups.remove(subject).unwrap_or_default();
        self.sizes.remove(&(group.bytes, subject.clone()));
        change(&mut group);
        if !group.uids.is_empty() {
            self.sizes.insert((group.bytes, subject.clone()));
            self.groups.insert(subject.clone(), group);
        }
    }

    /// Forgets the oldest pending CSR of the largest group: a kubelet's own is the newest, and is judged within seconds.
    fn evict(&mut self) -> bool {
        let Some((_, subject)) = self.sizes.last() else { return false };
        let Some(group) = self.groups.get(subject) else { return false };
        let is_pending = |uid: &&String| self.entries.get(*uid).is_some_and(|entry| entry.csr.stage == Stage::Pending);
        let uids = || group.uids.iter().map(|(_, uid)| uid);
        let oldest = uids().find(is_pending).or_else(|| uids().next()).cloned();
        oldest.is_some_and(|uid| self.remove(&uid).is_some())
    }
}

/// About how many bytes a CSR takes.
fn size(csr: &Csr) -> usize {
    let texts = |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>();
    let request = csr.request.as_ref().map_or(0, |request| {
        request.name.len() + texts(&request.dns_names) + size_of_val(request.addresses.as_slice())
    });
    // A name is in the index as well, and a uid twice.
    ENTRY_BYTES + csr.name.len() + 3 * csr.uid.len() + csr.username.len() + texts(&csr.groups) + texts(&csr.usages) + 2 * request
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::super::judge::tests::csr;
    use super::*;

    fn entry(csr: Csr, since: Instant) -> Entry {
        Entry {
            bytes: size(&csr),
            csr: Arc::new(csr),
            resource_version: None,
            listing: 0,
            since,
            judged: None,
            first_judged: None,
            maybe_judged_before: false,
            event: None,
        }
    }

    fn with(all: impl IntoIterator<Item = Csr>, since: Instant) -> RequestCache {
        let cache = RequestCache::default();
        for csr in all {
            cache.locked().add(entry(csr, since));
        }
        cache
    }

    fn due_names(groups: &[DueGroup]) -> Vec<&str> {
        groups
            .iter()
            .flat_map(|group| &group.due)
            .map(|asked| asked.csr.name.as_str())
            .collect()
    }

    #[test]
    fn of_a_crowd_for_one_name_each_pass_judges_a_few_and_the_attested_key_first() {
        let one = csr("one", "worker-1");
        let copies = (0..5_000).map(|number| Csr {
            name: format!("copy-{number}"),
            uid: format!("uid-{number}"),
            ..one.clone()
        });
        let (own, other) = (csr("own", "worker-1"), csr("other", "worker-2"));
        let since = Instant::now();
        let cache = with(copies.chain([own.clone(), other]), since);
        let now = since + SETTLE;
        assert!(!cache.has_due(since) && cache.has_due(now));
        let attested = AttestedSubjects {
            names: HashSet::from(["worker-1".to_owned()]),
            keys: HashSet::from([own.request.as_ref().unwrap().key]),
        };
        let groups = cache.due(now, &attested);
        let names = due_names(&groups);
        assert_eq!((names[0], names.len()), ("own", JUDGED_PER_NAME_LIMIT + 1));
        assert!(names.contains(&"other") && groups[0].is_attested && !groups[1].is_attested);
        assert_eq!(groups[0].requests.len(), 5_001);
        // Those that were judged come last.
        for asked in groups.iter().flat_map(|group| &group.due) {
            assert!(!cache.judged(&asked.csr.uid, now, 1));
        }
        assert!(cache.judged("uid-of-own", now, 2));
        let later = now + AGAIN - Duration::from_secs(1);
        let groups = cache.due(later, &attested);
        assert!(!due_names(&groups).contains(&"own") && groups[0].due.len() == JUDGED_PER_NAME_LIMIT);
        let own = groups[0].requests.iter().find(|asked| asked.csr.name == "own").unwrap();
        assert_eq!(own.first_judged, Some(1));
    }

    #[test]
    fn names_of_attested_machines_are_judged_before_a_crowd_of_others() {
        let one = csr("one", "worker-1");
        let strangers = (0..1_000).map(|number| {
            let mut other = one.clone();
            other.uid = format!("uid-{number}");
            other.request.as_mut().unwrap().name = format!("nobody-{number}");
            other
        });
        let since = Instant::now();
        let cache = with(strangers, since);
        cache.locked().add(entry(one, since + Duration::from_secs(1)));
        let attested = AttestedSubjects {
            names: HashSet::from(["worker-1".to_owned()]),
            keys: HashSet::new(),
        };
        let groups = cache.due(since + Duration::from_secs(10), &attested);
        assert_eq!((groups.len(), due_names(&groups)[0]), (NAMES_PER_PASS_LIMIT, "one"));
    }

    #[test]
    fn a_full_cache_forgets_the_oldest_of_the_largest_group() {
        let (one, own) = (csr("one", "worker-1"), csr("own", "worker-2"));
        let count = CACHE_LIMIT_BYTES / ENTRY_BYTES;
        let crowd = (0..count).map(|number| Csr {
            uid: format!("{number:036}"),
            created: one.created + u64::try_from(number).unwrap(),
            ..one.clone()
        });
        let cache = with([own].into_iter().chain(crowd), Instant::now());
        let mut content = cache.locked();
        assert!(content.bytes <= CACHE_LIMIT_BYTES && content.evicted > 0);
        assert!(content.entries.contains_key("uid-of-own"));
        assert!(content.entries.contains_key(&format!("{:036}", count - 1)));
        assert!(!content.entries.contains_key(&format!("{:036}", 0)));
        let uids: Vec<String> = content.entries.keys().cloned().collect();
        for uid in uids {
            content.remove(&uid);
        }
        assert_eq!((content.bytes, content.groups.len(), content.sizes.len()), (0, 0, 0));
    }
}
