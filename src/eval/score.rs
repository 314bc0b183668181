//! What became of one side of a pair: a score, or the reason why there is none.

/// What the lack of a score says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The side itself failed to answer: it ran out of time or never stopped. It did not do the task, so it gets the lowest
    /// score, unless the other side failed in the same way.
    Answer,
    /// The measurement failed: the engine was out of reach, the grader crashed. It says nothing of the answer.
    Measurement,
}

/// A side without a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unscored {
    /// What it says.
    pub cause: Cause,
    /// Why, in words.
    pub why: String,
}

/// The score of one side.
pub type SideScore = Result<f64, Unscored>;

impl Unscored {
    /// The side did not answer.
    pub fn answer(why: impl Into<String>) -> Self {
        Self {
            cause: Cause::Answer,
            why: why.into(),
        }
    }

    /// The side could not be measured.
    pub fn measurement(why: impl Into<String>) -> Self {
        Self {
            cause: Cause::Measurement,
            why: why.into(),
        }
    }
}

impl std::fmt::Display for Unscored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}
