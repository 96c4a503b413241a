-- +goose Up
-- What makes jobs at given times.
CREATE TABLE schedules (
  name text COLLATE "C" PRIMARY KEY,
  doc  text NOT NULL -- job.Schedule
);
