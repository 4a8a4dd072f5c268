//! Chains of EK certificates that challenges were given for, until their evidence comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use attest::tpm::ek_certificate::{KnownChain, KnownChains};

/// Maximum number of chains in each of the two maps: the last ones, and those before them. Fewer nodes are between challenge and evidence
/// than connections are allowed; a chain that was dropped is verified again.
const LIMIT: usize = 2048;

/// Cache of the last chains. Only valid ones are kept, which takes a certificate of a trusted manufacturer.
#[derive(Debug, Default)]
pub(super) struct RecentChains(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    last: HashMap<[u8; 32], Arc<KnownChain>>,
    before: HashMap<[u8; 32], Arc<KnownChain>>,
}

impl KnownChains for RecentChains {
    fn get(&self, of: &[u8; 32]) -> Option<Arc<KnownChain>> {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.last.get(of).or_else(|| recent.before.get(of)).cloned()
    }

    fn keep(&self, of: [u8; 32], chain: KnownChain) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.last.len() >= LIMIT {
            recent.before = std::mem::take(&mut recent.last);
        }
        recent.last.insert(of, Arc::new(chain));
    }
}
