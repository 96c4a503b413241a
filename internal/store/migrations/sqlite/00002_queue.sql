-- +goose Up
-- What queries ask for, as columns: written with the row, like status and done.
ALTER TABLE jobs ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;     -- for a slot: see executor.Store
ALTER TABLE jobs ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN vm_job TEXT NOT NULL DEFAULT '';        -- the job that created its VM; '': it has none
ALTER TABLE jobs ADD COLUMN vm_state TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN completed_at TEXT NOT NULL DEFAULT '';

UPDATE jobs SET
  client       = coalesce(json_extract(doc, '$.client'), ''),
  vm_job       = coalesce(json_extract(doc, '$.vm.job'), ''),
  vm_state     = coalesce(json_extract(doc, '$.vm.state'), ''),
  completed_at = coalesce(json_extract(doc, '$.completed_at'), '');
UPDATE jobs SET waiting = 1
  WHERE done = 0 AND status = 'pending' AND json_extract(doc, '$.outcome') IS NULL
  AND (SELECT coalesce(json_extract(manifest, '$.vm'), '') FROM job_manifests WHERE job_id = id) = '';

DROP INDEX jobs_unfinished;
CREATE INDEX jobs_waiting ON jobs (id) WHERE waiting = 1;
CREATE INDEX jobs_begun ON jobs (id) WHERE done = 0 AND waiting = 0;
CREATE INDEX jobs_of_client ON jobs (client) WHERE done = 0 OR vm_state = 'created';
CREATE INDEX jobs_with_vm ON jobs (id) WHERE vm_job = id AND vm_state IN ('intended', 'created', 'left_alone');
CREATE INDEX jobs_ended ON jobs (completed_at) WHERE done = 1;

-- The contents of a manifest's files: a JSON array of texts in base64. Jobs
-- that are older than this table have them in jobs/<id>/manifest.json.
CREATE TABLE job_files (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  contents TEXT NOT NULL
) STRICT;
