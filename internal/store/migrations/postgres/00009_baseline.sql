-- +goose Up
-- The tables of SQLite's baseline. Columns have the types that SQLite's have, so
-- that one text of each statement serves both: truth is 0 or 1, times are RFC 3339
-- in UTC. Texts that are ordered or compared are in byte order, as there.
CREATE TABLE meta (
  key   text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE engines (
  id          text COLLATE "C" PRIMARY KEY,
  doc         text NOT NULL,
  lease_until double precision NOT NULL,
  draining    smallint NOT NULL DEFAULT 0 CHECK (draining IN (0, 1))
);

CREATE TABLE locks (
  name   text COLLATE "C" PRIMARY KEY,
  engine text COLLATE "C" NOT NULL REFERENCES engines (id) ON DELETE CASCADE,
  what   text NOT NULL
);
CREATE INDEX locks_of_engine ON locks (engine);

CREATE TABLE jobs (
  id              text COLLATE "C" PRIMARY KEY,
  created_at      text COLLATE "C" NOT NULL,
  status          text COLLATE "C" NOT NULL,
  done            smallint NOT NULL CHECK (done IN (0, 1)),
  waiting         smallint NOT NULL CHECK (waiting IN (0, 1)),
  client          text COLLATE "C" NOT NULL,
  vm_job          text COLLATE "C" NOT NULL,
  vm_state        text COLLATE "C" NOT NULL,
  completed_at    text COLLATE "C" NOT NULL,
  member          text COLLATE "C",
  task_head       text NOT NULL,
  idempotency_key text COLLATE "C" UNIQUE,
  token_hash      text NOT NULL,
  stdout          text,
  stderr          text,
  doc             text NOT NULL,
  engine          text COLLATE "C" REFERENCES engines (id) ON DELETE SET NULL,
  slot            smallint NOT NULL DEFAULT 0 CHECK (slot IN (0, 1)),
  principal       text COLLATE "C" NOT NULL DEFAULT '',
  reason          text COLLATE "C" NOT NULL DEFAULT '',
  started_at      text COLLATE "C" NOT NULL DEFAULT '',
  stored          bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70); -- an update of a row fits beside it, and changes no index
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

CREATE TABLE job_manifests (
  job_id   text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  manifest text NOT NULL
);

CREATE TABLE job_files (
  job_id   text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  contents text NOT NULL
);

CREATE TABLE job_events (
  seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id text COLLATE "C" NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  at     text NOT NULL,
  kind   text NOT NULL,
  phase  text NOT NULL,
  text   text NOT NULL
);
CREATE INDEX job_events_by_job ON job_events (job_id, seq);

CREATE TABLE pools (
  name text COLLATE "C" PRIMARY KEY,
  doc  text NOT NULL
);

CREATE TABLE tokens (
  id   text COLLATE "C" PRIMARY KEY,
  hash text COLLATE "C" NOT NULL UNIQUE,
  doc  text NOT NULL
);

CREATE TABLE webhooks (
  id       text COLLATE "C" PRIMARY KEY,
  job_id   text COLLATE "C" NOT NULL,
  next_at  text COLLATE "C" NOT NULL,
  attempts integer NOT NULL,
  doc      text NOT NULL
);
CREATE INDEX webhooks_due ON webhooks (next_at);

-- What jobs wrote and left: each file is a row of pieces without a gap.
CREATE TABLE job_data (
  job_id text COLLATE "C" NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  name   text COLLATE "C" NOT NULL, -- as in the directory of a job's files
  at     bigint NOT NULL, -- offset of the piece's first byte
  data   bytea NOT NULL, -- at most 256 KiB
  PRIMARY KEY (job_id, name, at)
);

-- Engines that know this schema as several steps look for each of them.
INSERT INTO goose_db_version (version_id, is_applied) VALUES (3, true), (4, true), (5, true), (6, true), (7, true), (8, true);
