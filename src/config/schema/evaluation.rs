//! `evaluation`

use crate::config::section;

section! {
    /// How candidates are measured. The recipe says it all so far: its gate names the suite, the repetitions and the rule.
    pub Evaluation in "evaluation" {
    }
}
