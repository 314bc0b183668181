//! Event streams and what they say: splits server-sent events whatever the chunking and line endings, and assembles
//! the same [`Turn`](crate::domain::Turn) from a stream as from a whole body, in every dialect.

mod anthropic;
mod assembler;
mod chat;
mod json;
mod responses;
mod scanner;
mod tools;

pub use assembler::{Assembler, Limits, Progress, turn_of_body};
pub use scanner::{Event, Scanner};

#[cfg(test)]
mod tests;
