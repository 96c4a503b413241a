-- +goose Up
-- Bytes that are stored of the job: of its manifest, of its files until it is done, and then of its
-- output and artifacts.
ALTER TABLE jobs ADD COLUMN stored bigint NOT NULL DEFAULT 0;

-- The contents of files are for unfinished jobs alone.
DELETE FROM job_files WHERE job_id IN (SELECT id FROM jobs WHERE done = 1);
UPDATE jobs SET stored =
  coalesce((SELECT octet_length(manifest) FROM job_manifests WHERE job_id = jobs.id), 0)
  + coalesce((SELECT octet_length(contents) FROM job_files WHERE job_id = jobs.id), 0);
UPDATE jobs SET stored = stored + coalesce((stdout::json->>'held')::bigint, 0) + coalesce((stderr::json->>'held')::bigint, 0)
  + (SELECT coalesce(sum((a->>'size')::bigint), 0) FROM json_array_elements(coalesce(doc::json->'artifacts', '[]')) a)
  WHERE done = 1;
