//! The CSRs of kubelets that are in the cluster, by the node they are for, with what this controller has done about each.
//!
//! Any client with the bootstrap credential fills it, and any node with its own. So its size in bytes and what is judged in one pass are bounded, for client
//! certificates and for serving certificates each, and in those for each node name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use attest::SpkiSha256;
use kube::Resource;

use super::csr::{Csr, CsrPurpose, CsrStage, NODE_USER};
use super::csr_object::CsrObject;
use super::judge::PendingRequest;

/// Delay before a CSR is judged first: by then those are known that came at the same time.
const SETTLE: Duration = Duration::from_secs(3);
/// Delay before a CSR that was left is judged again: a Machine object may have got an address, or the administrator has named a machine.
const AGAIN: Duration = Duration::from_secs(10);
/// Most names whose CSRs of one purpose are judged in one pass: each costs a few reads of the store.
const NAMES_PER_PASS_LIMIT: usize = 25;
/// Most CSRs for one name that are judged in one pass: a node has one.
const JUDGED_PER_NAME_LIMIT: usize = 4;
/// Most memory for the CSRs of one purpose. One of a kubelet takes about 1 KiB, so this is 15,000 nodes that ask at once.
const CACHE_LIMIT_BYTES: usize = 16 * 1024 * 1024;
/// Size of a full cache after an eviction: not each CSR that comes evicts one.
const CACHE_AFTER_EVICTION_BYTES: usize = CACHE_LIMIT_BYTES / 10 * 9;
/// Memory for a CSR besides its texts, bytes: entry, indexes, allocations.
const ENTRY_BYTES: usize = 768;
/// Sizes of groups that differ by less are the same for an eviction: a node's own CSR has a few hundred bytes more or less than another.
const SIZE_STEP_BYTES: usize = 4096;

/// The CSRs that are counted together: for one node, or by one user where that user's CSRs for that node are never approved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CsrGroup {
    Node(CsrPurpose, String),
    User(CsrPurpose, String),
}

impl CsrGroup {
    fn new(csr: &Csr, requester: &str) -> Self {
        let may_ask_for = |node: &&str| match csr.purpose {
            CsrPurpose::Client => csr.username == requester,
            CsrPurpose::Serving => csr.username.strip_prefix(NODE_USER) == Some(*node),
        };
        match csr.node().filter(may_ask_for) {
            Some(node) => Self::Node(csr.purpose, node.to_owned()),
            None => Self::User(csr.purpose, csr.username.clone()),
        }
    }

    const fn purpose(&self) -> CsrPurpose {
        match self {
            Self::Node(purpose, _) | Self::User(purpose, _) => *purpose,
        }
    }

    /// True if a machine has attested that may be this node.
    fn is_attested(&self, attested: &AttestedSubjects) -> bool {
        matches!(self, Self::Node(CsrPurpose::Client, node) if attested.names.contains(&node.to_ascii_lowercase()))
    }
}

/// The names and keys that attested machines are expected to ask for: judged before all others.
#[derive(Debug, Default)]
pub(super) struct AttestedSubjects {
    pub(super) names: HashSet<String>,
    pub(super) keys: HashSet<SpkiSha256>,
}

struct CachedRequest {
    csr: Arc<Csr>,
    resource_version: Option<String>,
    /// The listing that has shown it last.
    listing: u64,
    bytes: usize,
    since: Instant,
    judged: Option<Instant>,
    first_judged: Option<u64>,
    maybe_judged_before: bool,
    /// Text and repetition of its last event.
    event: Option<(String, u64)>,
}

impl CachedRequest {
    fn asked(&self) -> PendingRequest {
        PendingRequest {
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
        self.csr.stage == CsrStage::Pending && waited
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

impl Group {
    /// Returns its rank for eviction from a full cache: the highest one loses a CSR. The largest comes last; of those of about the same
    /// size, that whose oldest CSR has waited longest.
    fn rank(&self) -> Rank {
        let oldest = self.uids.first().map_or(u64::MAX, |(created, _)| *created);
        (self.bytes / SIZE_STEP_BYTES, Reverse(oldest))
    }
}

type Rank = (usize, Reverse<u64>);

/// The CSRs of one purpose, as far as they are counted.
#[derive(Default)]
struct RequestQuota {
    ranks: BTreeSet<(Rank, CsrGroup)>,
    bytes: usize,
}

#[derive(Default)]
struct RequestCacheState {
    /// The user whose CSRs for client certificates are approved (`approval.requester`).
    requester: String,
    entries: HashMap<String, CachedRequest>,
    groups: BTreeMap<CsrGroup, Group>,
    shares: BTreeMap<CsrPurpose, RequestQuota>,
    listing: u64,
    evicted: u64,
    /// The purposes of evicted CSRs.
    evicted_of: BTreeSet<CsrPurpose>,
}

/// CSRs for one node that are to be judged.
pub(super) struct DueGroup {
    /// All for this node.
    pub(super) requests: Vec<PendingRequest>,
    /// CSRs that are to be judged now.
    pub(super) due: Vec<PendingRequest>,
    /// True if a machine has attested that may be this node.
    pub(super) is_attested: bool,
}

/// The CSRs of kubelets.
pub(super) struct RequestCache(Mutex<RequestCacheState>);

impl RequestCache {
    /// An empty cache for CSRs of which this user may ask for client certificates.
    pub(super) fn new(requester: &str) -> Self {
        Self(Mutex::new(RequestCacheState {
            requester: requester.to_owned(),
            ..RequestCacheState::default()
        }))
    }

    fn locked(&self) -> MutexGuard<'_, RequestCacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a listing; returns its number.
    pub(super) fn begin_listing(&self) -> u64 {
        let mut content = self.locked();
        content.listing += 1;
        content.listing
    }

    /// Takes up an object that a listing or a watch has shown.
    pub(super) fn insert(&self, object: &CsrObject, purpose: CsrPurpose, listing: u64, is_listed: bool) {
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
        let csr = Csr::from_object(object).filter(|csr| csr.purpose == purpose && csr.stage != CsrStage::Closed);
        let mut content = self.locked();
        // Another controller may have judged it, or this one before it was evicted.
        let maybe_judged_before = is_listed || content.evicted_of.contains(&purpose);
        let before = content.remove(uid);
        let Some(csr) = csr else { return };
        let entry = CachedRequest {
            bytes: size(&csr),
            csr: Arc::new(csr),
            resource_version: object.meta().resource_version.clone(),
            listing,
            since: before.as_ref().map_or_else(Instant::now, |before| before.since),
            judged: before.as_ref().and_then(|before| before.judged),
            first_judged: before.as_ref().and_then(|before| before.first_judged),
            maybe_judged_before: before.as_ref().map_or(maybe_judged_before, |before| before.maybe_judged_before),
            event: before.and_then(|before| before.event),
        };
        content.add(entry);
    }

    /// Forgets a CSR that is gone.
    pub(super) fn remove(&self, uid: &str) {
        self.locked().remove(uid);
    }

    /// Forgets the CSRs that a complete listing has not shown.
    pub(super) fn end_listing(&self, purpose: CsrPurpose, listing: u64) {
        let mut content = self.locked();
        let is_gone = |entry: &&CachedRequest| entry.csr.purpose == purpose && entry.listing < listing;
        let gone: Vec<String> = content
            .entries
            .values()
            .filter(is_gone)
            .map(|entry| entry.csr.uid.clone())
            .collect();
        for uid in gone {
            content.remove(&uid);
        }
    }

    /// Returns and resets the number of CSRs that were evicted from a full cache.
    pub(super) fn take_evicted(&self) -> u64 {
        std::mem::take(&mut self.locked().evicted)
    }

    /// Returns whether any CSR is to be judged.
    pub(super) fn has_due(&self, now: Instant) -> bool {
        self.locked().entries.values().any(|entry| entry.is_due(now))
    }

    /// Returns the CSRs to judge in this pass. First come those for nodes whose machine has attested, and among a node's first that for the
    /// attested key. Of the others, those that have waited longest.
    pub(super) fn due(&self, now: Instant, attested: &AttestedSubjects) -> Vec<DueGroup> {
        let content = self.locked();
        let mut waiting: BTreeMap<&CsrGroup, Vec<&CachedRequest>> = BTreeMap::new();
        let subjects = content.entries.values().filter(|entry| entry.is_due(now)).filter_map(|entry| {
            let (subject, _) = content.groups.get_key_value(&content.subject_of(&entry.csr))?;
            Some((subject, entry))
        });
        for (subject, entry) in subjects {
            waiting.entry(subject).or_default().push(entry);
        }
        let mut order: Vec<(&CsrGroup, Vec<&CachedRequest>)> = waiting.into_iter().collect();
        order.sort_by_cached_key(|(subject, due)| (!subject.is_attested(attested), due.iter().map(|entry| entry.waits_since()).min()));
        let mut left = BTreeMap::new();
        order.retain(|(subject, _)| {
            let left = left.entry(subject.purpose()).or_insert(NAMES_PER_PASS_LIMIT);
            let is_left = *left > 0;
            *left = left.saturating_sub(1);
            is_left
        });
        let group = |(subject, mut due): (&CsrGroup, Vec<&CachedRequest>)| {
            let has_key = |entry: &CachedRequest| entry.csr.request.as_ref().is_ok_and(|request| attested.keys.contains(&request.key));
            due.sort_by_key(|entry| (!has_key(entry), entry.waits_since()));
            let uids = content.groups.get(subject).into_iter().flat_map(|group| &group.uids);
            DueGroup {
                requests: uids
                    .filter_map(|(_, uid)| content.entries.get(uid))
                    .map(CachedRequest::asked)
                    .collect(),
                due: due.into_iter().take(JUDGED_PER_NAME_LIMIT).map(CachedRequest::asked).collect(),
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

    /// Returns text and repetition of its last event.
    pub(super) fn last_event(&self, uid: &str) -> Option<(String, u64)> {
        self.locked().entries.get(uid).and_then(|entry| entry.event.clone())
    }

    /// Notes its last event.
    pub(super) fn note_event(&self, uid: &str, text: String, repetition: u64) {
        if let Some(entry) = self.locked().entries.get_mut(uid) {
            entry.event = Some((text, repetition));
        }
    }
}

impl RequestCacheState {
    fn add(&mut self, entry: CachedRequest) {
        let (subject, bytes) = (self.subject_of(&entry.csr), entry.bytes);
        self.resize(&subject, |group| {
            group.uids.insert((entry.csr.created, entry.csr.uid.clone()));
            group.bytes += bytes;
        });
        self.entries.insert(entry.csr.uid.clone(), entry);
        let purpose = subject.purpose();
        if self.bytes(purpose) > CACHE_LIMIT_BYTES {
            self.evicted_of.insert(purpose);
            while self.bytes(purpose) > CACHE_AFTER_EVICTION_BYTES && self.evict(purpose) {
                self.evicted += 1;
            }
        }
    }

    fn subject_of(&self, csr: &Csr) -> CsrGroup {
        CsrGroup::new(csr, &self.requester)
    }

    fn bytes(&self, purpose: CsrPurpose) -> usize {
        self.shares.get(&purpose).map_or(0, |share| share.bytes)
    }

    fn remove(&mut self, uid: &str) -> Option<CachedRequest> {
        let entry = self.entries.remove(uid)?;
        self.resize(&self.subject_of(&entry.csr), |group| {
            group.uids.remove(&(entry.csr.created, uid.to_owned()));
            group.bytes = group.bytes.saturating_sub(entry.bytes);
        });
        Some(entry)
    }

    fn resize(&mut self, subject: &CsrGroup, change: impl FnOnce(&mut Group)) {
        let mut group = self.groups.remove(subject).unwrap_or_default();
        let share = self.shares.entry(subject.purpose()).or_default();
        share.ranks.remove(&(group.rank(), subject.clone()));
        share.bytes = share.bytes.saturating_sub(group.bytes);
        change(&mut group);
        share.bytes += group.bytes;
        if !group.uids.is_empty() {
            share.ranks.insert((group.rank(), subject.clone()));
            self.groups.insert(subject.clone(), group);
        }
    }

    /// Forgets the oldest pending CSR of the group that is last by its rank: a kubelet's own is the newest, and is judged within seconds.
    fn evict(&mut self, purpose: CsrPurpose) -> bool {
        let Some((_, subject)) = self.shares.get(&purpose).and_then(|share| share.ranks.last()) else {
            return false;
        };
        let Some(group) = self.groups.get(subject) else { return false };
        let is_pending = |uid: &&String| self.entries.get(*uid).is_some_and(|entry| entry.csr.stage == CsrStage::Pending);
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
    use super::super::judge::tests::{csr, rules};
    use super::*;

    fn entry(csr: Csr, since: Instant) -> CachedRequest {
        CachedRequest {
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
        let cache = RequestCache::new(&rules().requester);
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
    fn pass_judges_few_csrs_per_name_attested_first() {
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
    fn judges_csrs_of_attested_names_first() {
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
    fn full_cache_evicts_the_oldest_of_largest_group() {
        let (one, own) = (csr("one", "worker-1"), csr("own", "worker-2"));
        let count = CACHE_LIMIT_BYTES / ENTRY_BYTES;
        let crowd = (0..count).map(|number| Csr {
            uid: format!("{number:036}"),
            created: one.created + u64::try_from(number).unwrap(),
            ..one.clone()
        });
        let cache = with([own].into_iter().chain(crowd), Instant::now());
        let mut content = cache.locked();
        assert!(content.bytes(CsrPurpose::Client) <= CACHE_LIMIT_BYTES && content.evicted > 0);
        assert!(content.entries.contains_key("uid-of-own"));
        assert!(content.entries.contains_key(&format!("{:036}", count - 1)));
        assert!(!content.entries.contains_key(&format!("{:036}", 0)));
        let uids: Vec<String> = content.entries.keys().cloned().collect();
        for uid in uids {
            content.remove(&uid);
        }
        let share = content.shares.remove(&CsrPurpose::Client).unwrap();
        assert_eq!((share.bytes, content.groups.len(), share.ranks.len()), (0, 0, 0));
    }

    /// A CSR for the serving certificate of `node` by the node of this name.
    fn serving(by: &str, node: &str, number: usize) -> Csr {
        let mut csr = csr(&format!("serving-{number}"), node);
        csr.uid = format!("{by}-{number:036}");
        csr.purpose = CsrPurpose::Serving;
        csr.username = format!("{NODE_USER}{by}");
        csr.created += u64::try_from(number).unwrap();
        csr.request.as_mut().unwrap().name = node.to_owned();
        csr
    }

    #[test]
    fn attack_53_one_nodes_flood_of_names_evicts_no_others() {
        let count = CACHE_LIMIT_BYTES / ENTRY_BYTES;
        // One credential, and another name each time: client and serving certificates.
        let of_clients = (0..count).map(|number| Csr {
            purpose: CsrPurpose::Client,
            ..serving("worker-9", &format!("name-{number}"), number)
        });
        let of_servers = (count..2 * count).map(|number| serving("worker-9", &format!("name-{number}"), number));
        let since = Instant::now();
        let honest: Vec<Csr> = (10..30)
            .map(|number| serving(&format!("worker-{number}"), &format!("worker-{number}"), 0))
            .collect();
        let client = csr("client", "worker-1");
        let cache = with(honest.iter().cloned().chain([client]).chain(of_clients).chain(of_servers), since);
        assert!(cache.locked().evicted > 0);
        let groups = cache.due(since + SETTLE, &AttestedSubjects::default());
        let names = due_names(&groups);
        assert!(names.contains(&"client"), "{names:?}");
        for csr in &honest {
            let found = groups.iter().flat_map(|group| &group.due).any(|asked| asked.csr.uid == csr.uid);
            assert!(found, "{}", csr.uid);
        }
    }

    #[test]
    fn attack_53_bootstrap_flood_evicts_no_serving_or_new_csr() {
        let count = CACHE_LIMIT_BYTES / ENTRY_BYTES;
        let crowd = (0..count).map(|number| {
            let mut csr = csr("crowd", &format!("name-{number}"));
            csr.uid = format!("{number:036}");
            csr.created += u64::try_from(number).unwrap();
            csr
        });
        let since = Instant::now();
        let mut new = csr("new", "worker-1");
        new.created += u64::try_from(count).unwrap();
        let cache = with([serving("worker-2", "worker-2", 0)].into_iter().chain(crowd).chain([new]), since);
        assert!(cache.locked().evicted > 0);
        let attested = AttestedSubjects {
            names: HashSet::from(["worker-1".to_owned()]),
            keys: HashSet::new(),
        };
        let groups = cache.due(since + SETTLE, &attested);
        let names = due_names(&groups);
        assert_eq!((names[0], names.contains(&"serving-0")), ("new", true));
        assert_eq!(names.len(), NAMES_PER_PASS_LIMIT + 1);
    }
}
