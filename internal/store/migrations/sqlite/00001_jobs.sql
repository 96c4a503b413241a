-- +goose Up
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

CREATE TABLE jobs (
  id              TEXT PRIMARY KEY, -- UUID version 7: sorts by creation
  created_at      TEXT NOT NULL,
  status          TEXT NOT NULL,
  done            INTEGER NOT NULL, -- job.Job.Done
  task_head       TEXT NOT NULL,    -- for lists
  idempotency_key TEXT UNIQUE,
  token_hash      TEXT NOT NULL,
  stdout          TEXT,             -- job.OutputInfo, once the stream is sealed
  stderr          TEXT,
  doc             TEXT NOT NULL     -- job.Job without manifest and output counts
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_unfinished ON jobs (id) WHERE done = 0;

-- Apart from jobs, because it is up to a MiB and never changes, while an
-- update writes its whole row again.
CREATE TABLE job_manifests (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  manifest TEXT NOT NULL -- without the files' contents
) STRICT;

CREATE TABLE job_events (
  seq    INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  at     TEXT NOT NULL,
  kind   TEXT NOT NULL,
  phase  TEXT NOT NULL,
  text   TEXT NOT NULL
) STRICT;
CREATE INDEX job_events_by_job ON job_events (job_id, seq);
