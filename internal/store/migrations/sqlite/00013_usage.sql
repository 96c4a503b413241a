-- +goose Up
-- What jobs have used that were removed: a row for each day and all that they have in common.
CREATE TABLE usage (
  id  TEXT PRIMARY KEY, -- a JSON array: day, principal, queue, repository, template
  doc TEXT NOT NULL     -- job.Used
) STRICT;
