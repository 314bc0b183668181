//! Law: owns the artifact repository: content, manifests, chains, heads moved by compare-and-swap. Never opens the
//! database, never serves HTTP; git runs with a hermetic configuration. State: `artifacts.git`, `work/`, `cache/`. Fails
//! with a typed error; a stale publisher gets a conflict that names the expected and the actual head.
