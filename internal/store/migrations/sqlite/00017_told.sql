-- +goose Up
-- The status that was told of last; '': none was.
ALTER TABLE dispatchers ADD COLUMN told TEXT NOT NULL DEFAULT '';
