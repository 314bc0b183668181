-- The evolution of harness trees. An attempt is one try at a better tree, whatever came of it; a release is only made by
-- one that won. See docs/design/evolution.md.

CREATE TABLE attempt (
    attempt_id  TEXT PRIMARY KEY,         -- the batch id of its step
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    state       TEXT NOT NULL,            -- queued, proposing, evaluating, rejected, skipped, won, held, published, rolled_back
    source      TEXT NOT NULL,            -- failures, instruction, proposal
    request     TEXT,                     -- id of the instruction or proposal
    base        TEXT NOT NULL,            -- the release it starts from
    step        INTEGER,                  -- the step that records its end
    release_id  TEXT,                     -- what it made
    digest      TEXT,                     -- of its mutations, to know it again
    mutations   TEXT,                     -- JSON list
    reason      TEXT,                     -- why it was proposed
    outcome     TEXT,                     -- what became of it, in a sentence
    notes       TEXT NOT NULL DEFAULT '{}', -- JSON: design, usage, failing checks
    begun_us    INTEGER NOT NULL,
    changed_us  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_by_scenario ON attempt (scenario_id, begun_us);
CREATE INDEX attempt_by_request ON attempt (scenario_id, request) WHERE request IS NOT NULL;
CREATE INDEX attempt_by_digest ON attempt (scenario_id, digest) WHERE digest IS NOT NULL;

-- What an attempt did, for whoever watches.
CREATE TABLE attempt_event (
    event_id    INTEGER PRIMARY KEY,
    attempt_id  TEXT NOT NULL REFERENCES attempt (attempt_id),
    at_us       INTEGER NOT NULL,
    kind        TEXT NOT NULL,            -- model, agent, check, trial, proposer
    text        TEXT NOT NULL,
    failed      INTEGER NOT NULL
) STRICT;
CREATE INDEX attempt_event_by_attempt ON attempt_event (attempt_id, event_id);

-- Changes that agents and people propose, until an attempt takes them up.
CREATE TABLE proposal (
    proposal_id TEXT PRIMARY KEY,
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    state       TEXT NOT NULL,            -- waiting, claimed, settled, refused
    mutations   TEXT NOT NULL,            -- JSON list
    reason      TEXT NOT NULL,
    session     TEXT NOT NULL,
    client_release TEXT NOT NULL,         -- what the proposer says it ran on
    head        TEXT NOT NULL,            -- what it was admitted against
    outcome     TEXT,                     -- in a sentence, once it ended
    received_us INTEGER NOT NULL,
    changed_us  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX proposal_waiting ON proposal (scenario_id, received_us) WHERE state IN ('waiting', 'claimed');

-- Scores of served trees, so that they need not be measured again for every candidate.
CREATE TABLE baseline (
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    conditions  TEXT NOT NULL,            -- digest of tree, model, adapter, suite
    task        TEXT NOT NULL,
    repeat      INTEGER NOT NULL,
    score       REAL NOT NULL,
    at_us       INTEGER NOT NULL,
    PRIMARY KEY (scenario_id, conditions, task, repeat)
) STRICT, WITHOUT ROWID;

-- What evolution has cost, by day of the Unix epoch.
CREATE TABLE spend (
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    day         INTEGER NOT NULL,
    calls       INTEGER NOT NULL DEFAULT 0,
    tokens      INTEGER NOT NULL DEFAULT 0,
    episodes    INTEGER NOT NULL DEFAULT 0,
    cost        REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (scenario_id, day)
) STRICT, WITHOUT ROWID;
