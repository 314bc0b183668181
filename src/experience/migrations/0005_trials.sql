-- Trials of a candidate that ended because the measurement failed. Each was one chance to be released by luck, so each
-- counts where the error probability of the gate is spread over trials.
ALTER TABLE job ADD COLUMN invalid_trials INTEGER NOT NULL DEFAULT 0;

-- The session of a held-out exchange. The exchanges of a session resemble each other, so the gate asks one of each.
ALTER TABLE holdout ADD COLUMN session TEXT;
