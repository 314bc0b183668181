//! Manifests from anywhere: whatever the bytes, reading them ends, and what is read holds to the rules.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::Manifest;

/// What must be so of any manifest that is read; false where it is refused.
fn holds(bytes: &[u8]) -> bool {
    let Ok(manifest) = Manifest::parse("x", bytes) else {
        return false;
    };
    assert!(manifest.content.fault().is_none());
    assert_eq!(manifest.content.id().unwrap(), manifest.content_id);
    let again = Manifest::parse("x", manifest.to_text().unwrap().as_bytes()).unwrap();
    assert_eq!(again, manifest);
    true
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/manifests");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

#[test]
fn of_the_corpus_only_what_is_sound_is_read() {
    let read: Vec<String> = corpus()
        .into_iter()
        .filter(|(_, bytes)| holds(bytes))
        .map(|(name, _)| name)
        .collect();
    // What is said twice of a component counts once, and the content id covers it; a field that nobody knows is passed
    // over, however deep it is.
    let mut read: Vec<&str> = read.iter().map(String::as_str).collect();
    read.sort_unstable();
    assert_eq!(read, ["component-twice", "deep-unknown", "sound"]);
}

proptest! {
    #[test]
    fn a_changed_manifest_is_refused_or_holds(
        which in any::<prop::sample::Index>(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, "\\PC{0,12}|[\\[\\]{}\":,0-9e.+-]{0,6}"), 1..4),
    ) {
        let corpus = corpus();
        let mut bytes = which.get(&corpus).1.clone();
        for (at, length, with) in cuts {
            let from = if bytes.is_empty() { 0 } else { at.index(bytes.len()) };
            let to = (from + length).min(bytes.len());
            bytes.splice(from..to, with.into_bytes());
        }
        holds(&bytes);
    }

    #[test]
    fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        holds(&bytes);
    }
}
