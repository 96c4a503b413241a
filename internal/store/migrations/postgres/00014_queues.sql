-- +goose Up
-- Of a job that serves a piece of work of a queue; '': it serves none. Two that have not ended serve
-- no work together.
ALTER TABLE jobs ADD COLUMN queue text COLLATE "C" NOT NULL DEFAULT '', ADD COLUMN dispatcher text COLLATE "C" NOT NULL DEFAULT '', ADD COLUMN work text COLLATE "C" NOT NULL DEFAULT '';
CREATE UNIQUE INDEX jobs_of_work ON jobs (principal, queue, work) WHERE queue <> '' AND status IN ('pending', 'provisioning', 'running');

-- Who serves queues, as they say themselves.
CREATE TABLE dispatchers (
  principal text COLLATE "C" NOT NULL, -- '': the operator
  queue     text COLLATE "C" NOT NULL,
  name      text COLLATE "C" NOT NULL,
  started   text COLLATE "C" NOT NULL,
  heard     double precision NOT NULL, -- seconds since 1970, by the database's clock
  drain     smallint NOT NULL DEFAULT 0 CHECK (drain IN (0, 1)), -- 1: it is to take no more work, until it starts again
  doc       text NOT NULL, -- job.Dispatcher
  PRIMARY KEY (principal, queue, name)
);
