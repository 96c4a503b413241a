-- +goose Up
-- Jobs that a job has made of its manifest. '': none has made it.
ALTER TABLE jobs ADD COLUMN parent text COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX jobs_of_parent ON jobs (parent, id) WHERE parent <> '';
