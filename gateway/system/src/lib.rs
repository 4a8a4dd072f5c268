//! What several crates need of the operating system: files that are written whole, the clock; and errors with their causes as one line.

#![deny(unreachable_pub)]

pub mod causes;
pub mod clock;
pub mod files;
