//! `executors`

use crate::config::{Table, section};

section! {
    /// Named places where work runs; each is a table with `backend`, `workers`, `resources` and `options`.
    pub Executors in "executors" {
        /// Where training steps run.
        training: Table = {};
        /// Where episodes run.
        evolution: Table = {};
        /// Where evaluations run.
        evaluation: Table = {};
    }
}
