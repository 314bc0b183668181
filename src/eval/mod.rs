//! Law: measures and judges. Owns task suites, graders, paired statistics and the gate's rules; never publishes, never
//! trains. A failure to measure is `Invalid`, never a loss. State: none beyond what it returns. Fails with a typed error
//! when the suite itself is wrong.

mod against;
mod baseline;
mod betting;
mod checker;
mod dockerfile;
mod episodes;
mod error;
mod harbor;
mod harm;
mod measure;
mod paired;
mod program;
mod reference;
mod rules;
mod score;
mod shell;
mod spending;
mod suite;
mod trial;

pub use baseline::Baseline;
pub use checker::{CheckerSpec, ask_program};
pub use episodes::{Arena, EpisodeNote, conditions, judge_by_episodes, sealed_scores};
pub use error::EvalError;
pub use harbor::HarborTask;
pub use measure::{
    Answers, Contest, Grading, Question, Side, Terms, directory_or_here, judge_by_answers, suite_questions,
};
pub use program::{Compared, judge_by_program};
pub use reference::Reference;
pub use score::{Cause, SideScore, Unscored};
pub use spending::level;
pub use suite::{ReadyTask, Suite, Task};
pub use trial::{Assignment, Draw, Sides, TaskRef, Trial};

#[cfg(test)]
mod measure_tests;
#[cfg(test)]
mod trial_tests;
