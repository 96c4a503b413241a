-- +goose Up
-- Messages about ended jobs that are to be delivered, recorded with the jobs' last status.
CREATE TABLE webhooks (
  id       TEXT PRIMARY KEY,
  job_id   TEXT NOT NULL,    -- the job may be deleted before
  next_at  TEXT NOT NULL,    -- when the next attempt is due
  attempts INTEGER NOT NULL, -- begun so far
  doc      TEXT NOT NULL     -- job.Webhook
) STRICT;
CREATE INDEX webhooks_due ON webhooks (next_at);
