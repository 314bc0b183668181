//! From stored experience to samples, and from samples to a batch. Pure: pages of the store in, decisions out. Whatever
//! does not train is excluded with a reason, and the reasons are counted.

mod assemble;
mod pool;
mod sample;
mod staleness;

pub use assemble::{Assembled, Assembly, assemble};
pub use pool::{Pool, Seal, Sealed, Unit};
pub use sample::{Exclusion, Sample, admit_demonstration, admit_report};
pub use staleness::{Produced, Serving, StaleReason};

#[cfg(test)]
mod tests;
