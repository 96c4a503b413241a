-- +goose Up
-- As in SQLite's migration of this number.
ALTER TABLE jobs ADD COLUMN reason text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN started_at text COLLATE "C" NOT NULL DEFAULT '';

UPDATE jobs SET
  reason     = coalesce(doc::json #>> '{outcome,reason}', ''),
  started_at = coalesce(doc::json #>> '{started_at}', '');
