-- The learning loop: the step in progress of each scenario, and what is held out for the gate. Finished steps are in
-- `step`. See docs/design/loop.md.

-- A step in progress, from the sealed batch to the settled release. Finished ones stay as a log.
CREATE TABLE job (
    job_id      INTEGER PRIMARY KEY,
    scenario_id INTEGER NOT NULL REFERENCES scenario (scenario_id),
    batch_id    TEXT NOT NULL,
    step        INTEGER NOT NULL,         -- the number it will have when it ends with one
    stage       TEXT NOT NULL,            -- sealed, trained, judged
    recipe      TEXT NOT NULL,
    manifest    TEXT NOT NULL,            -- JSON: samples, split, settings in force
    instruction TEXT,                     -- id of the instruction that asked for it
    base        TEXT NOT NULL,            -- the release it builds on
    candidate   TEXT,                     -- JSON: directory and figures of the step
    verdict     TEXT,                     -- JSON
    attempts    INTEGER NOT NULL DEFAULT 0,
    error       TEXT,                     -- of the last attempt
    retry_us    INTEGER,                  -- not before
    outcome     TEXT,                     -- set when it ends
    reason      TEXT,
    sealed_us   INTEGER NOT NULL,
    ended_us    INTEGER
) STRICT;
CREATE UNIQUE INDEX job_open ON job (scenario_id) WHERE ended_us IS NULL;
CREATE INDEX job_by_scenario ON job (scenario_id, job_id);

-- Exchanges kept out of training; the gate replays them.
CREATE TABLE holdout (
    record_sequence INTEGER PRIMARY KEY REFERENCES record (sequence),
    scenario_id     INTEGER NOT NULL REFERENCES scenario (scenario_id)
) STRICT;
CREATE INDEX holdout_by_scenario ON holdout (scenario_id);
