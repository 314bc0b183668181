//! `harness`

use crate::config::section;

section! {
    /// Agents' harness trees. Nothing can be set yet.
    pub Harness in "harness" {
    }
}
