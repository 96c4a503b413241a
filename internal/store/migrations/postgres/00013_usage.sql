-- +goose Up
-- What jobs have used that were removed: a row for each day and all that they have in common.
CREATE TABLE usage (
  id  text COLLATE "C" PRIMARY KEY, -- a JSON array: day, principal, queue, repository, template
  doc text NOT NULL                 -- job.Used
);
