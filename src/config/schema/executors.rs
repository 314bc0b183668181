//! `executors`

use crate::config::section;

section! {
    /// Named places where work runs. Nothing can be set yet: all work runs in this process or in programs it starts.
    pub Executors in "executors" {
    }
}
