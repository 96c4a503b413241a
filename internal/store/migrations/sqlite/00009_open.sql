-- +goose Up
-- A VM that is left alone still takes what it takes.
DROP INDEX jobs_of_client;
CREATE INDEX jobs_of_client ON jobs (client) WHERE done = 0 OR vm_state IN ('created', 'left_alone');
DROP INDEX jobs_open_of_principal;
CREATE INDEX jobs_open_of_principal ON jobs (principal) WHERE principal <> '' AND (done = 0 OR vm_state IN ('created', 'left_alone'));
