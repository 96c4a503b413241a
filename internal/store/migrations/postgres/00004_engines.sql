-- +goose Up
-- As in SQLite's migration of this number.
CREATE TABLE engines (
  id          text COLLATE "C" PRIMARY KEY, -- UUID version 7: sorts by when it joined
  doc         text NOT NULL, -- job.EngineInfo
  lease_until double precision NOT NULL, -- seconds since 1970, by the database's clock
  draining    smallint NOT NULL DEFAULT 0 CHECK (draining IN (0, 1))
);

CREATE TABLE locks (
  name   text COLLATE "C" PRIMARY KEY,
  engine text COLLATE "C" NOT NULL REFERENCES engines (id) ON DELETE CASCADE,
  what   text NOT NULL -- is done meanwhile, in one word
);
CREATE INDEX locks_of_engine ON locks (engine);

-- The engine that works on the job; NULL: none does, or engines do not share.
ALTER TABLE jobs ADD COLUMN engine text COLLATE "C" REFERENCES engines (id) ON DELETE SET NULL;
-- 1 once an engine has worked on the job in one of the installation's slots.
ALTER TABLE jobs ADD COLUMN slot smallint NOT NULL DEFAULT 0 CHECK (slot IN (0, 1));
CREATE INDEX jobs_of_engine ON jobs (engine) WHERE engine IS NOT NULL;
CREATE INDEX jobs_in_slots ON jobs (id) WHERE slot = 1 AND done = 0;
