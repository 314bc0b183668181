//! Law: owns the SQLite file with everything served and said about it, and is the only code that speaks SQL. One writer
//! thread with group commit, a pool of readers. Never serves HTTP, never touches git. A write is acknowledged only after
//! its transaction is on disk. State: `experience.db`. Fails with a typed store error; a full or unwritable disk is an
//! error to the caller, never a panic and never a silent loss.
