//! Evidence that AWS vouches for.

mod names;
pub mod nitro_tpm;
pub mod sts;
