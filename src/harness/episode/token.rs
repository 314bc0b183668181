//! The token an agent is given in an episode. It opens the gateway of that episode, and marks whoever shows it elsewhere:
//! an agent that is being measured must not add to the experience that trains, least of all scores of its own.

use crate::sys::random;

const PREFIX: &str = "reef-episode-";

/// A token of a new episode.
pub(super) fn fresh() -> String {
    format!("{PREFIX}{}", random::hex_token())
}

/// Whether a credential is one of an episode, of whichever process.
pub fn is_episode_token(credential: &[u8]) -> bool {
    credential.starts_with(PREFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_token_is_known_as_one() {
        assert!(is_episode_token(fresh().as_bytes()));
        assert_ne!(fresh(), fresh());
        assert!(!is_episode_token(b"sk-reef-episode-"));
    }
}
