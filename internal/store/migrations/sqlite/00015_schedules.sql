-- +goose Up
-- What makes jobs at given times.
CREATE TABLE schedules (
  name TEXT PRIMARY KEY,
  doc  TEXT NOT NULL -- job.Schedule
) STRICT;
