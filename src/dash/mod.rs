//! Law: shows, never decides. Reads the store and the chain read-only, or a server's status over HTTP; holds no write
//! lock. State: the screen. The terminal is restored on every way out.
