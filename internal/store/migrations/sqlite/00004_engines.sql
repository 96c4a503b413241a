-- +goose Up
-- Engines that share this database. One that has no row can write nothing: see
-- engines.go.
CREATE TABLE engines (
  id          TEXT PRIMARY KEY,           -- UUID version 7: sorts by when it joined
  doc         TEXT NOT NULL,              -- job.EngineInfo
  lease_until REAL NOT NULL,              -- seconds since 1970, by the database's clock
  draining    INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE locks (
  name   TEXT PRIMARY KEY,
  engine TEXT NOT NULL REFERENCES engines (id) ON DELETE CASCADE,
  what   TEXT NOT NULL                    -- is done meanwhile, in one word
) STRICT;

-- The engine that works on the job; NULL: none does, or engines do not share.
ALTER TABLE jobs ADD COLUMN engine TEXT REFERENCES engines (id) ON DELETE SET NULL;
-- 1 once an engine has worked on the job in one of the installation's slots.
ALTER TABLE jobs ADD COLUMN slot INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_of_engine ON jobs (engine) WHERE engine IS NOT NULL;
CREATE INDEX jobs_in_slots ON jobs (id) WHERE slot = 1 AND done = 0;
