//! Services of the operating system that several crates need: files that are written whole, and the clock; and errors with their causes as one line.

#![deny(unreachable_pub)]

pub mod causes;
pub mod clock;
pub mod files;
