CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
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
, waiting INTEGER NOT NULL DEFAULT 0, client TEXT NOT NULL DEFAULT '', vm_job TEXT NOT NULL DEFAULT '', vm_state TEXT NOT NULL DEFAULT '', completed_at TEXT NOT NULL DEFAULT '', member TEXT, engine TEXT REFERENCES engines (id) ON DELETE SET NULL, slot INTEGER NOT NULL DEFAULT 0, principal TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', started_at TEXT NOT NULL DEFAULT '', stored INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_waiting ON jobs (id) WHERE waiting = 1;
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
CREATE INDEX jobs_begun ON jobs (id) WHERE done = 0 AND waiting = 0;
CREATE INDEX jobs_of_client ON jobs (client) WHERE done = 0 OR vm_state IN ('created', 'left_alone');
CREATE INDEX jobs_with_vm ON jobs (id) WHERE vm_job = id AND vm_state IN ('intended', 'created', 'left_alone');
CREATE INDEX jobs_ended ON jobs (completed_at) WHERE done = 1;
CREATE TABLE job_files (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  contents TEXT NOT NULL
) STRICT;
CREATE TABLE pools (
  name TEXT PRIMARY KEY,
  doc  TEXT NOT NULL -- job.Pool
) STRICT;
CREATE INDEX jobs_members ON jobs (id) WHERE member <> '';
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
CREATE INDEX jobs_of_engine ON jobs (engine) WHERE engine IS NOT NULL;
CREATE INDEX jobs_in_slots ON jobs (id) WHERE slot = 1 AND done = 0;
CREATE INDEX jobs_of_principal ON jobs (principal, id) WHERE principal <> '';
CREATE INDEX jobs_open_of_principal ON jobs (principal) WHERE principal <> '' AND (done = 0 OR vm_state IN ('created', 'left_alone'));
CREATE TABLE tokens (
  id   TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE, -- hex sha256 of the token
  doc  TEXT NOT NULL         -- job.Token
) STRICT;
CREATE TABLE webhooks (
  id       TEXT PRIMARY KEY,
  job_id   TEXT NOT NULL,    -- the job may be deleted before
  next_at  TEXT NOT NULL,    -- when the next attempt is due
  attempts INTEGER NOT NULL, -- begun so far
  doc      TEXT NOT NULL     -- job.Webhook
) STRICT;
CREATE INDEX webhooks_due ON webhooks (next_at);
INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1);
