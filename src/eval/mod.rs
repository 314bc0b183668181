//! Law: measures and judges. Owns task suites, graders, paired statistics and the gate's rules; never publishes, never
//! trains. A failure to measure is `Invalid`, never a loss. State: none beyond what it returns. Fails with a typed error
//! when the suite itself is wrong.

mod betting;
mod error;
mod program;
mod rules;
mod spending;
mod trial;

pub use error::EvalError;
pub use program::{Compared, judge_by_program};
pub use spending::level;
pub use trial::{Assignment, Draw, Sides, TaskRef, Trial};

#[cfg(test)]
mod trial_tests;
