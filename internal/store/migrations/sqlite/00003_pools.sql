-- +goose Up
CREATE TABLE pools (
  name TEXT PRIMARY KEY,
  doc  TEXT NOT NULL -- job.Pool
) STRICT;

-- For a job that makes a VM of a pool: its member's state, empty once it is
-- gone. NULL for all other jobs.
ALTER TABLE jobs ADD COLUMN member TEXT;
CREATE INDEX jobs_members ON jobs (id) WHERE member <> '';
