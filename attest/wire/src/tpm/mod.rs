//! TPM 2.0: the bytes.

pub mod wire;
