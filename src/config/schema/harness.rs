//! `harness`

use std::path::PathBuf;

use crate::config::section;

section! {
    /// Agents' harness trees: what their files are made of, and what each scenario starts with.
    pub Harness in "harness" {
        /// The agent that trees are made for: `pi`, `claude`, `codex`, `opencode`, `qwen`, `openclaw`, `hermes`, or one
        /// of `harness.adapters`. Setting it makes every scenario serve a tree; `pi` where the recipe or a seed asks for
        /// trees and this is not set.
        adapter: Option<String>, env "REEF_ADAPTER";
        /// The tree every new scenario starts with: a JSON or TOML file of entries, or a directory with `AGENTS.md`,
        /// `rules/`, `commands/`, `skills/` and `extensions/`. An empty tree without it.
        seed: Option<PathBuf>;
        /// The agent's program, for episodes of an evolving tree; found on the search path without it.
        binary: Option<PathBuf>;
        /// A directory of further adapter descriptors, one TOML file each.
        adapters: Option<PathBuf>;
        /// Ids of entries whose text may look like an injected directive, because a person read it: a rule that quotes
        /// one as a warning, say.
        allow_directives: Vec<String> = [];
    }
}
