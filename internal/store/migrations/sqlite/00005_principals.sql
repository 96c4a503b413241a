-- +goose Up
-- The principal that the job belongs to; '': the operator. An idempotency key of any other than the
-- operator begins with its name and a character that no name contains.
ALTER TABLE jobs ADD COLUMN principal TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_of_principal ON jobs (principal, id) WHERE principal <> '';
CREATE INDEX jobs_open_of_principal ON jobs (principal) WHERE principal <> '' AND (done = 0 OR vm_state = 'created');

CREATE TABLE tokens (
  id   TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE, -- hex sha256 of the token
  doc  TEXT NOT NULL         -- job.Token
) STRICT;
