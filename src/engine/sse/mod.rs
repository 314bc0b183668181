//! Event streams and what they say: splits server-sent events whatever the chunking and line endings, and assembles
//! the same [`Turn`](crate::domain::Turn) from a stream as from a whole body, in every dialect.

mod answer;
mod anthropic;
mod assembler;
mod chat;
mod failure;
mod json;
mod responses;
mod scanner;
mod tools;

pub use answer::{Answer, answer_of_body, turn_of_body};
pub use assembler::{Assembler, Limits, Progress};
pub use scanner::{Event, Scanner};

#[cfg(test)]
mod tests;
