//! What an agent is made of besides its model: typed entries, changed by mutations, admitted by one gate, rendered into
//! the files of an agent. All of it is pure but for [`Tree::read`].

mod admit;
mod artifact;
mod diff;
mod document;
mod entry;
mod frontmatter;
mod kinds;
mod layout;
mod merge;
mod mutation;
mod refusal;
mod render;
mod render_config;
mod schema;
mod screen;

pub use admit::{Admitted, Origin, Policy, admit, check};
pub use artifact::{read as read_release, write as write_release};
pub use diff::{Change, EntryChange, PartChange, diff};
pub use document::{TREE_FILE, Tree, TreeError};
pub use entry::{Entry, EntryProvenance, Kind};
pub use kinds::{
    AgentEntry, Body, CommandEntry, ConfigEntry, ExtensionEntry, Fact, HookEntry, McpEntry, MemoryEntry, RulesEntry,
    SkillEntry,
};
pub use merge::{MergeConflict, merge};
pub use mutation::{Mutation, Op};
pub use refusal::{Refusal, Rule};
pub use render::{Rendered, render};
pub use schema::schemas;
pub use screen::{Finding, redact, screen_json, screen_text};

/// Entries of one tree.
pub const MOST_ENTRIES: usize = 256;
/// Bytes of one text: a rule, a command, a prompt, a file of a skill that is not code.
pub const LONGEST_TEXT: usize = 64 * 1024;
/// Bytes of one piece of code.
pub const LONGEST_CODE: usize = 256 * 1024;
/// Bytes of one file that is no text.
pub const LONGEST_BINARY: usize = 1024 * 1024;
/// Bytes of one tree, as it is stored.
pub const LARGEST_TREE: usize = 2 * 1024 * 1024;
/// The largest file that holds a tree or changes of one: its bytes as Base64, with room for how it is written.
pub const LARGEST_FILE: u64 = 16 * 1024 * 1024;
/// Characters of an id or a name.
pub const LONGEST_NAME: usize = 64;
/// Files of one skill besides `SKILL.md`.
pub const MOST_SKILL_FILES: usize = 64;
/// Facts of one memory entry.
pub const MOST_FACTS: usize = 256;
/// Characters of one fact.
pub const LONGEST_FACT: usize = 2_000;

/// Entries the program itself looks after; no proposal touches them.
pub const RESERVED_IDS: [&str; 3] = ["reef-version-check", "reef-requests", "reef-pi-extension-api"];

/// Letters, digits, `.`, `_` and `-`, a letter or digit first; at most [`LONGEST_NAME`] characters.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
