//! The generated reference is in step with the program. `REEF_UPDATE_DOCS=1 cargo test --test docs` rewrites it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::Path;
use std::process::Command;

const PAGES: [&str; 4] = [
    "cli.md",
    "configuration.md",
    "exit-codes.md",
    "configuration.schema.json",
];

#[test]
fn the_generated_reference_is_in_step() {
    let fresh = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(["docs", "--out"])
        .arg(fresh.path())
        .status()
        .unwrap();
    assert!(status.success());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
    let mut stale = Vec::new();
    for page in PAGES {
        let now = std::fs::read_to_string(fresh.path().join(page)).unwrap();
        if std::fs::read_to_string(kept.join(page)).unwrap_or_default() == now {
            continue;
        }
        if std::env::var_os("REEF_UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(&kept).unwrap();
            std::fs::write(kept.join(page), now).unwrap();
        } else {
            stale.push(page);
        }
    }
    assert!(
        stale.is_empty(),
        "docs/reference is behind the program in {stale:?}; run REEF_UPDATE_DOCS=1 cargo test --test docs"
    );
}
