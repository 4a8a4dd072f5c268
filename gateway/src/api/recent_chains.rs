//! Chains of EK certificates that challenges were given for, until their evidence comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use attest::tpm::ek_certificate::{KnownChain, KnownChains};

/// How many are kept, twice: the last ones, and those before them. Nodes that are between challenge and evidence are fewer than connections are let in, and
/// whoever's is gone is verified again.
const LIMIT: usize = 2048;

/// The last ones. Only what holds is kept, which takes a certificate of a maker that is trusted.
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
