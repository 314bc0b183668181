-- Publications in progress, and an index of the chains. The artifact repository decides what is released; these rows
-- say what the store owes to it. See docs/design/releases.md.

-- Written before the first object of a publication, ended by the transaction that settles or abandons it.
CREATE TABLE intent (
    intent_id   TEXT PRIMARY KEY,
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    owner       TEXT NOT NULL,            -- the process; its lock file tells whether it lives
    settlement  TEXT NOT NULL,            -- JSON: what settling does
    state       TEXT NOT NULL,            -- open, settled, abandoned
    reason      TEXT,                     -- why it was abandoned
    begun_us    INTEGER NOT NULL,
    ended_us    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX intent_open ON intent (scenario_id) WHERE state = 'open';

-- What each release is.
CREATE TABLE release (
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    release_id  TEXT NOT NULL,
    parent      TEXT,
    content_id  TEXT NOT NULL,
    kind        TEXT NOT NULL,
    bytes       INTEGER NOT NULL,
    operation   TEXT NOT NULL,
    sequence    INTEGER NOT NULL,         -- place in the chain; a held one has the place it would have taken
    target      TEXT,
    state       TEXT NOT NULL,            -- released, held, promoted, rejected
    restorable  INTEGER NOT NULL,
    at_us       INTEGER NOT NULL,
    note        TEXT,                     -- what a person said when deciding on a held one
    decided_us  INTEGER,
    PRIMARY KEY (scenario_id, release_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX release_by_id ON release (release_id);

-- Every decision of a scenario in order, rejected candidates included. A step that released nothing names the release
-- that stayed in service.
CREATE TABLE step (
    scenario_id     INTEGER NOT NULL REFERENCES scenario (scenario_id),
    step            INTEGER NOT NULL,     -- 0 is the creation; no gaps
    release_id      TEXT NOT NULL,
    operation       TEXT NOT NULL,
    outcome         TEXT NOT NULL,        -- released, held, rejected, skipped
    batch_id        TEXT,
    base_release_id TEXT,                 -- the head it was judged against
    high_water      INTEGER NOT NULL,     -- the newest record sequence used so far
    metrics         TEXT NOT NULL,        -- JSON object
    reason          TEXT,                 -- the verdict in a sentence
    verdict         TEXT,                 -- JSON, with its evidence
    at_us           INTEGER NOT NULL,
    PRIMARY KEY (scenario_id, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX step_by_release ON step (scenario_id, release_id, step);
CREATE INDEX step_by_batch ON step (scenario_id, batch_id) WHERE batch_id IS NOT NULL;
