-- +goose Up
-- Of a job that serves a piece of work of a queue; '': it serves none. Two that have not ended serve
-- no work together.
ALTER TABLE jobs ADD COLUMN queue      TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN dispatcher TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN work       TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX jobs_of_work ON jobs (principal, queue, work) WHERE queue <> '' AND status IN ('pending', 'provisioning', 'running');

-- Who serves queues, as they say themselves.
CREATE TABLE dispatchers (
  principal TEXT NOT NULL, -- '': the operator
  queue     TEXT NOT NULL,
  name      TEXT NOT NULL,
  started   TEXT NOT NULL,
  heard     REAL NOT NULL, -- seconds since 1970, by the database's clock
  drain     INTEGER NOT NULL DEFAULT 0, -- 1: it is to take no more work, until it starts again
  doc       TEXT NOT NULL, -- job.Dispatcher
  PRIMARY KEY (principal, queue, name)
) STRICT;
