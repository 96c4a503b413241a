-- +goose Up
-- As in SQLite's migration of this number.
ALTER TABLE jobs ADD COLUMN principal text COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX jobs_of_principal ON jobs (principal, id) WHERE principal <> '';
CREATE INDEX jobs_open_of_principal ON jobs (principal) WHERE principal <> '' AND (done = 0 OR vm_state = 'created');

CREATE TABLE tokens (
  id   text COLLATE "C" PRIMARY KEY,
  hash text COLLATE "C" NOT NULL UNIQUE, -- hex sha256 of the token
  doc  text NOT NULL -- job.Token
);
