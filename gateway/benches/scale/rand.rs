//! Random numbers that are the same in each run. The code of `attest-node`'s pauses uses them in place of the system's.

use std::cell::Cell;
use std::convert::Infallible;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(1) };
}

/// Sets the seed of all following numbers.
pub fn seed(seed: u64) {
    STATE.set(seed.max(1));
}

/// Fills bytes like the function of this name that uses the system's random numbers.
pub fn fill(bytes: &mut [u8]) -> Result<(), Infallible> {
    for byte in bytes {
        // Marsaglia's xorshift.
        let mut state = STATE.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        STATE.set(state);
        *byte = state.to_be_bytes()[0];
    }
    Ok(())
}
