-- A state directory as the version with schema 1 left it.
CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;
CREATE TABLE jobs (
  id              TEXT PRIMARY KEY, -- UUID version 7: sorts by creation
  created_at      TEXT NOT NULL,
  status          TEXT NOT NULL,
  done            INTEGER NOT NULL, -- job.Job.Done
  task_head       TEXT NOT NULL,    -- for lists
  idempotency_key TEXT UNIQUE,
  token_hash      TEXT NOT NULL,
  stdout          TEXT,             -- job.OutputInfo, once the stream is sealed
  stderr          TEXT,
  doc             TEXT NOT NULL     -- job.Job without manifest and output counts
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_unfinished ON jobs (id) WHERE done = 0;
CREATE TABLE job_manifests (
  job_id   TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  manifest TEXT NOT NULL -- without the files' contents
) STRICT;
CREATE TABLE job_events (
  seq    INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  at     TEXT NOT NULL,
  kind   TEXT NOT NULL,
  phase  TEXT NOT NULL,
  text   TEXT NOT NULL
) STRICT;
CREATE INDEX job_events_by_job ON job_events (job_id, seq);
INSERT INTO goose_db_version VALUES ('1', '0', '1', '2026-11-22T03:51:54Z');
INSERT INTO goose_db_version VALUES ('2', '1', '1', '2026-11-22T03:51:54Z');
INSERT INTO meta VALUES ('installation_id', '7c9e6679-7425-40de-944b-e07fc1f90ae7');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000001', '2026-03-01T12:00:00.123456789Z', 'pending', '0', 'echo', 'key-019aa000-0000-7000-8000-000000000001', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000001","kind":"task","client":"cli","status":"pending","created_at":"2026-03-01T12:00:00.123456789Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000002', '2026-03-01T12:00:00.123456789Z', 'pending', '0', 'echo', 'key-019aa000-0000-7000-8000-000000000002', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000002","kind":"task","client":"cli","status":"pending","created_at":"2026-03-01T12:00:00.123456789Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000003', '2026-03-01T12:00:00.123456789Z', 'pending', '0', 'echo', 'key-019aa000-0000-7000-8000-000000000003', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000003","kind":"task","status":"pending","created_at":"2026-03-01T12:00:00.123456789Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000004', '2026-03-01T12:00:00.123456789Z', 'running', '0', 'echo', 'key-019aa000-0000-7000-8000-000000000004', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000004","kind":"task","client":"cli","status":"running","phase":"provision","vm":{"id":101,"name":"linus-job-000000000004","node":"pve","ip":"10.0.0.4","user":"debian","job":"019aa000-0000-7000-8000-000000000004","owner":"me","state":"created"},"created_at":"2026-03-01T12:00:00.123456789Z","started_at":"2026-03-01T12:30:00.000005Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000005', '2026-03-01T12:00:00.123456789Z', 'pending', '0', 'echo', 'key-019aa000-0000-7000-8000-000000000005', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000005","kind":"task","client":"cli","status":"pending","outcome":{"status":"failed","reason":"cancelled","at":"2026-03-01T12:30:00.000005Z"},"created_at":"2026-03-01T12:00:00.123456789Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000006', '2026-03-01T12:00:00.123456789Z', 'failed', '1', 'echo', 'key-019aa000-0000-7000-8000-000000000006', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000006","kind":"task","client":"cli","status":"failed","outcome":{"status":"failed","reason":"cancelled","at":"2026-03-01T12:30:00.000005Z"},"vm":{"id":102,"name":"x","job":"019aa000-0000-7000-8000-000000000006","owner":"me","state":"destroyed"},"created_at":"2026-03-01T12:00:00.123456789Z","completed_at":"2026-03-01T12:31:00.000005Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO jobs VALUES ('019aa000-0000-7000-8000-000000000007', '2026-03-01T12:00:00.123456789Z', 'success', '1', 'echo', 'key-019aa000-0000-7000-8000-000000000007', 'hash', NULL, NULL, '{"job_id":"019aa000-0000-7000-8000-000000000007","kind":"vm","client":"cli","status":"success","outcome":{"status":"success","reason":"exit_status","exit_code":0,"at":"2026-03-01T12:30:00.000005Z"},"vm":{"id":103,"name":"dev","job":"019aa000-0000-7000-8000-000000000007","owner":"me","state":"created"},"created_at":"2026-03-01T12:00:00.123456789Z","completed_at":"2026-03-01T12:30:00.000005Z","stdout":{"held":0,"total":0,"dropped":0},"stderr":{"held":0,"total":0,"dropped":0}}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000001', '{"task":"echo","agentType":"script","resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000002', '{"task":"echo","agentType":"script","files":[{"path":"/a","content":"","mode":"0600"},{"path":"/b","content":""}],"resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000003', '{"task":"echo","agentType":"script","resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vm":"dev","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000004', '{"task":"echo","agentType":"script","files":[{"path":"/c","content":""}],"resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000005', '{"task":"echo","agentType":"script","resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000006', '{"task":"echo","agentType":"script","resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"ephemeral","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_manifests VALUES ('019aa000-0000-7000-8000-000000000007', '{"task":"echo","agentType":"script","resources":{"cpu":2,"memory":"2G","disk":"10G"},"timeout":60,"lifecycle":"persistent","vmName":"dev","vmTemplate":"agent-template","statusMode":"simple"}');
INSERT INTO job_events VALUES ('1', '019aa000-0000-7000-8000-000000000004', '2026-03-01T12:30:00.000005Z', 'phase_started', 'provision', '');
