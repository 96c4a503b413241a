-- +goose Up
-- As in SQLite's migration of this number.
CREATE TABLE webhooks (
  id       text COLLATE "C" PRIMARY KEY,
  job_id   text COLLATE "C" NOT NULL,
  next_at  text COLLATE "C" NOT NULL, -- when the next attempt is due
  attempts integer NOT NULL, -- begun so far
  doc      text NOT NULL -- job.Webhook
);
CREATE INDEX webhooks_due ON webhooks (next_at);
