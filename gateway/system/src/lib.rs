//! What several crates need of the operating system: files that are written whole, the clock; and errors with their causes as one line.

pub mod causes;
pub mod clock;
pub mod files;
