//! Services of the operating system that several crates need: files that are written whole, and the clock; errors with their causes as one line;
//! data of newer releases; and advised commands.

#![deny(unreachable_pub)]

pub mod advised_commands;
pub mod causes;
pub mod clock;
pub mod files;
pub mod newer_format;
