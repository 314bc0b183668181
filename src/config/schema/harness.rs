//! `harness`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::section;

section! {
    /// Agents' harness trees and the episodes that test them.
    pub Harness in "harness" {
        /// The agent the trees are rendered for.
        adapter: String = "pi";
        /// Where agents' programs are installed [default: `~/.local/share/reef-harness`].
        prefix: Option<PathBuf>, env "REEF_HARNESS_PREFIX";
        /// Longest time for one episode.
        episode_timeout_s: Duration = 600.0, min 0.1;
        /// Episodes at once.
        workers: u32 = 1, min 1.0;
        /// Proposals waiting for a decision; a further one is refused.
        max_pending_proposals: u32 = 8, min 1.0;
    }
}
