-- +goose Up
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

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

-- Columns are what queries ask for; they are written together with the document.
CREATE TABLE jobs (
  id              TEXT PRIMARY KEY, -- UUID version 7: sorts by creation
  created_at      TEXT NOT NULL,
  status          TEXT NOT NULL,
  done            INTEGER NOT NULL, -- job.Job.Done
  task_head       TEXT NOT NULL,    -- for lists
  idempotency_key TEXT UNIQUE,      -- a principal's begins with its name and a character that no name contains, the operator's does not
  token_hash      TEXT NOT NULL,
  stdout          TEXT,             -- job.OutputInfo, once the stream is sealed
  stderr          TEXT,
  doc             TEXT NOT NULL,    -- job.Job without manifest and output counts
  waiting         INTEGER NOT NULL DEFAULT 0, -- for a slot: see executor.Store
  client          TEXT NOT NULL DEFAULT '',
  vm_job          TEXT NOT NULL DEFAULT '',   -- the job that created its VM; '': it has none
  vm_state        TEXT NOT NULL DEFAULT '',
  completed_at    TEXT NOT NULL DEFAULT '',
  member          TEXT,             -- of a job that makes a VM of a pool: its state; '': it is gone
  engine          TEXT REFERENCES engines (id) ON DELETE SET NULL, -- that works on the job; NULL: none does, or engines do not share
  slot            INTEGER NOT NULL DEFAULT 0, -- 1 once an engine has worked on it in one of the installation's slots
  principal       TEXT NOT NULL DEFAULT '',   -- that it belongs to; '': the operator
  reason          TEXT NOT NULL DEFAULT '',   -- of its outcome; '': it has none yet
  started_at      TEXT NOT NULL DEFAULT '',   -- '': its task has not started
  stored          INTEGER NOT NULL DEFAULT 0  -- bytes: of its manifest, of its files until it is done, and then of its output and artifacts
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_waiting ON jobs (id) WHERE waiting = 1;
CREATE INDEX jobs_begun ON jobs (id) WHERE done = 0 AND waiting = 0;
CREATE INDEX jobs_of_client ON jobs (client) WHERE done = 0 OR vm_state IN ('created', 'left_alone');
CREATE INDEX jobs_with_vm ON jobs (id) WHERE vm_job = id AND vm_state IN ('intended', 'created', 'left_alone');
CREATE INDEX jobs_ended ON jobs (completed_at) WHERE done = 1;
CREATE INDEX jobs_members ON jobs (id) WHERE member <> '';
CREATE INDEX jobs_of_engine ON jobs (engine) WHERE engine IS NOT NULL;
CREATE INDEX jobs_in_slots ON jobs (id) WHERE slot = 1 AND done = 0;
CREATE INDEX jobs_of_principal ON jobs (principal, id) WHERE principal <> '';
CREATE INDEX jobs_open_of_principal ON jobs (principal) WHERE principal <> '' AND (done = 0 OR vm_state IN ('created', 'left_alone'));

-- Apart from jobs, because it is up to a MiB and never changes, while an
-- update writes its whole row again.
CREATE TABLE job_manifests (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  manifest TEXT NOT NULL -- without the files' contents
) STRICT;

-- The contents of a manifest's files, until the job is done: a JSON array of
-- texts in base64.
CREATE TABLE job_files (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  contents TEXT NOT NULL
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

CREATE TABLE pools (
  name TEXT PRIMARY KEY,
  doc  TEXT NOT NULL -- job.Pool
) STRICT;

CREATE TABLE tokens (
  id   TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE, -- hex sha256 of the token
  doc  TEXT NOT NULL         -- job.Token
) STRICT;

-- Messages about ended jobs that are to be delivered, recorded with the jobs' last status.
CREATE TABLE webhooks (
  id       TEXT PRIMARY KEY,
  job_id   TEXT NOT NULL,    -- the job may be deleted before
  next_at  TEXT NOT NULL,    -- when the next attempt is due
  attempts INTEGER NOT NULL, -- begun so far
  doc      TEXT NOT NULL     -- job.Webhook
) STRICT;
CREATE INDEX webhooks_due ON webhooks (next_at);

-- Engines that know this schema as several steps look for each of them.
INSERT INTO goose_db_version (version_id, is_applied) VALUES (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1);
