//! What installations keep that is nobody else's business.

use std::io;

use super::layout::{Home, subdirectories};
use crate::sys::access::{Access, Open};

/// Secrets and what was written down of runs, where others may read them. Blocking.
pub fn exposed(home: &Home) -> io::Result<Open> {
    let (mut open, who) = (Open::default(), Access::Owner);
    let installs = home.installs();
    open.note(&installs, who)?;
    for place in subdirectories(&installs)
        .iter()
        .flat_map(|adapter| subdirectories(adapter))
    {
        open.note(&place, who)?;
        for name in ["token", "env", "setup.json", "runs"] {
            open.note_all(&place.join(name), who)?;
        }
    }
    Ok(open)
}
