-- Scenarios, records, bodies, references, consumption, interruptions. See docs/design/experience.md.

CREATE TABLE scenario (
    scenario_id INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    mode        TEXT NOT NULL,
    settings    TEXT NOT NULL,            -- JSON object
    served      TEXT,                     -- JSON of the frozen release it serves; a cache of the chain's head
    created_us  INTEGER NOT NULL,
    archived_us INTEGER
) STRICT;
-- Archiving frees the name.
CREATE UNIQUE INDEX scenario_active ON scenario (name) WHERE archived_us IS NULL;

-- A frozen release is the same for thousands of records: kept once.
CREATE TABLE frozen_release (
    frozen_id INTEGER PRIMARY KEY,
    json      TEXT NOT NULL UNIQUE
) STRICT;

-- One row for each record, for ever. AUTOINCREMENT: a sequence is never used twice.
CREATE TABLE record (
    sequence       INTEGER PRIMARY KEY AUTOINCREMENT,
    record_id      TEXT NOT NULL,
    scenario_id    INTEGER NOT NULL REFERENCES scenario (scenario_id),
    kind           INTEGER NOT NULL,      -- 0 inference, 1 report, 2 train
    content_sha256 BLOB NOT NULL,         -- identity: decides retry or conflict, also without the bodies
    created_us     INTEGER NOT NULL,      -- when it happened; never part of the identity
    stored_us      INTEGER NOT NULL,      -- when it entered this file; retention goes by it
    route          TEXT,
    frozen_id      INTEGER REFERENCES frozen_release (frozen_id),
    status         INTEGER,
    streamed       INTEGER,
    tags           TEXT,                  -- JSON object, NULL when there are none
    first_byte_us  INTEGER,
    total_us       INTEGER,
    model          TEXT,
    stop_reason    TEXT,
    input_tokens   INTEGER,
    output_tokens  INTEGER,
    has_capture    INTEGER NOT NULL,
    score          REAL,
    eligible       INTEGER NOT NULL,      -- 0: metadata.training.eligible was false
    body_bytes     INTEGER NOT NULL,      -- bodies as given
    stored_bytes   INTEGER NOT NULL,      -- bodies as stored
    pruned_us      INTEGER                -- when retention dropped the bodies
) STRICT;
-- An id is unique within its scenario; led by the id so that it can also be looked up without one.
CREATE UNIQUE INDEX record_by_id ON record (record_id, scenario_id);
-- Both end in the sequence, as every index of a rowid table does: pages come in order without a sort.
CREATE INDEX record_by_scenario ON record (scenario_id);
CREATE INDEX record_by_kind ON record (scenario_id, kind);

-- Dropped by retention. First byte of each blob: how it is encoded.
CREATE TABLE body (
    sequence INTEGER PRIMARY KEY REFERENCES record (sequence),
    request  BLOB NOT NULL,
    response BLOB,
    turn     BLOB,
    capture  BLOB
) STRICT;

-- Which exchanges a report grades, in its order.
CREATE TABLE reference (
    report_sequence INTEGER NOT NULL REFERENCES record (sequence),
    position        INTEGER NOT NULL,
    record_sequence INTEGER NOT NULL REFERENCES record (sequence),
    PRIMARY KEY (report_sequence, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX reference_by_record ON reference (record_sequence, report_sequence);

-- Which batch used a record, for each consumer (the trainer of a component).
CREATE TABLE consumption (
    record_sequence INTEGER NOT NULL REFERENCES record (sequence),
    consumer        TEXT NOT NULL,
    batch_id        TEXT NOT NULL,
    step            INTEGER,
    outcome         TEXT NOT NULL,
    at_us           INTEGER NOT NULL,
    PRIMARY KEY (record_sequence, consumer)
) STRICT, WITHOUT ROWID;
CREATE INDEX consumption_by_batch ON consumption (batch_id);

-- Exchanges that never finished: diagnostics, never experience. Old rows are dropped, the counts stay.
CREATE TABLE interruption (
    interruption_id INTEGER PRIMARY KEY,
    scenario_id     INTEGER NOT NULL REFERENCES scenario (scenario_id),
    record_id       TEXT,
    route           TEXT NOT NULL,
    reason          TEXT NOT NULL,
    detail          TEXT NOT NULL,
    at_us           INTEGER NOT NULL,
    bytes           INTEGER NOT NULL
) STRICT;
CREATE INDEX interruption_by_record ON interruption (record_id) WHERE record_id IS NOT NULL;

-- Counts kept in the transaction that changes them, so that reading them never scans.
CREATE TABLE tally (
    scenario_id   INTEGER NOT NULL REFERENCES scenario (scenario_id),
    name          TEXT NOT NULL,
    value         REAL NOT NULL,
    PRIMARY KEY (scenario_id, name)
) STRICT, WITHOUT ROWID;
