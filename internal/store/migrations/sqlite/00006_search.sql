-- +goose Up
-- What lists are searched by, and what charts are made from.
ALTER TABLE jobs ADD COLUMN reason TEXT NOT NULL DEFAULT '';     -- of its outcome; '': it has none yet
ALTER TABLE jobs ADD COLUMN started_at TEXT NOT NULL DEFAULT ''; -- '': its task has not started

UPDATE jobs SET
  reason     = coalesce(json_extract(doc, '$.outcome.reason'), ''),
  started_at = coalesce(json_extract(doc, '$.started_at'), '');
