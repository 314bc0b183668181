//! What an agent is made of besides its model: typed entries, changed by mutations, rendered into files.
