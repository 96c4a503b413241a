-- +goose Up
-- The tables of the SQLite migrations up to the same number. Columns have the
-- types that SQLite's have, so that one text of each statement serves both:
-- truth is 0 or 1, times are RFC 3339 in UTC. Texts that are ordered or
-- compared are in byte order, as there.
CREATE TABLE meta (
  key   text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE jobs (
  id              text COLLATE "C" PRIMARY KEY, -- UUID version 7: sorts by creation
  created_at      text COLLATE "C" NOT NULL,
  status          text COLLATE "C" NOT NULL,
  done            smallint NOT NULL CHECK (done IN (0, 1)), -- job.Job.Done
  waiting         smallint NOT NULL CHECK (waiting IN (0, 1)), -- for a slot: see executor.Store
  client          text COLLATE "C" NOT NULL,
  vm_job          text COLLATE "C" NOT NULL, -- the job that created its VM; '': it has none
  vm_state        text COLLATE "C" NOT NULL,
  completed_at    text COLLATE "C" NOT NULL,
  member          text COLLATE "C", -- of a job that makes a VM of a pool: its state; '': it is gone
  task_head       text NOT NULL, -- for lists
  idempotency_key text COLLATE "C" UNIQUE,
  token_hash      text NOT NULL,
  stdout          text, -- job.OutputInfo, once the stream is sealed
  stderr          text,
  doc             text NOT NULL -- job.Job without manifest and output counts
) WITH (fillfactor = 70); -- an update of a row fits beside it, and changes no index
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_waiting ON jobs (id) WHERE waiting = 1;
CREATE INDEX jobs_begun ON jobs (id) WHERE done = 0 AND waiting = 0;
CREATE INDEX jobs_of_client ON jobs (client) WHERE done = 0 OR vm_state = 'created';
CREATE INDEX jobs_with_vm ON jobs (id) WHERE vm_job = id AND vm_state IN ('intended', 'created', 'left_alone');
CREATE INDEX jobs_ended ON jobs (completed_at) WHERE done = 1;
CREATE INDEX jobs_members ON jobs (id) WHERE member <> '';

CREATE TABLE job_manifests (
  job_id   text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  manifest text NOT NULL -- without the files' contents
);

-- The contents of a manifest's files: a JSON array of texts in base64.
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
  doc  text NOT NULL -- job.Pool
);

-- What jobs wrote and left: each file is a row of pieces without a gap.
CREATE TABLE job_data (
  job_id text COLLATE "C" NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  name   text COLLATE "C" NOT NULL, -- as in the directory of a job's files
  at     bigint NOT NULL, -- offset of the piece's first byte
  data   bytea NOT NULL, -- at most 256 KiB
  PRIMARY KEY (job_id, name, at)
);
