-- +goose Up
-- VMs of ours. The row is there before the VM can exist, and as long as a job has it or has
-- had it.
CREATE TABLE vms (
  id     TEXT PRIMARY KEY, -- UUID: the one in the VM's marker
  state  TEXT NOT NULL,    -- vm.State
  member TEXT NOT NULL,    -- of a pool's VM: vm.MemberState; own: somebody has asked for the VM; gone: it was one of these; '': a job has made it
  principal TEXT NOT NULL DEFAULT '', -- that has asked for it; '': the operator, or nobody
  idempotency_key TEXT UNIQUE,        -- that it was asked for with; see jobs
  doc    TEXT NOT NULL     -- vm.VM
) STRICT;
CREATE INDEX vms_there ON vms (id) WHERE (state IN ('intended', 'created', 'left_alone') OR state = 'reserved' AND member = 'own');
CREATE INDEX vms_members ON vms (id) WHERE member NOT IN ('', 'gone', 'own');
CREATE INDEX vms_of_principal ON vms (principal, id) WHERE principal <> '';
CREATE INDEX vms_gone_members ON vms (id) WHERE member = 'gone';

-- What happened to VMs that no job has made: what happened to others stands with their jobs.
CREATE TABLE vm_events (
  seq   INTEGER PRIMARY KEY AUTOINCREMENT,
  vm_id TEXT NOT NULL REFERENCES vms (id) ON DELETE CASCADE,
  at    TEXT NOT NULL,
  kind  TEXT NOT NULL,
  phase TEXT NOT NULL,
  text  TEXT NOT NULL
) STRICT;
CREATE INDEX vm_events_by_vm ON vm_events (vm_id, seq);

-- VMs that somebody has asked for, unless their creation has ended without one.
UPDATE jobs SET member = 'own' WHERE member IS NULL AND json_extract(doc, '$.kind') = 'vm' AND NOT EXISTS (SELECT 1 FROM webhooks WHERE job_id = jobs.id)
  AND (done = 0 AND (vm_job <> '' OR json_extract(doc, '$.outcome') IS NULL) OR vm_state IN ('created', 'left_alone'));

-- A VM that has no node yet is reserved.
UPDATE jobs SET vm_job = id, vm_state = 'reserved', doc = json_set(doc, '$.vm', json_object('name',
    coalesce((SELECT json_extract(manifest, '$.vmName') FROM job_manifests WHERE job_id = id), 'linus-job-' || substr(id, -12)), 'job', id,
    'owner', (SELECT value FROM meta WHERE key = 'installation_id'), 'state', 'reserved', 'source', 'cold'))
  WHERE member IS NOT NULL AND done = 0 AND vm_job = '';

INSERT INTO vms (id, state, member, principal, idempotency_key, doc)
  SELECT id, vm_state, CASE member WHEN '' THEN 'gone' ELSE coalesce(member, '') END,
    CASE member WHEN 'own' THEN principal ELSE '' END, CASE member WHEN 'own' THEN idempotency_key END, json_patch(json_set(json_remove(json_extract(doc, '$.vm'), '$.source', '$.lent'), '$.made', json_patch('{}', json_object(
      'lifecycle', json_extract(manifest, '$.lifecycle'), 'template', json_extract(manifest, '$.vmTemplate'), 'os', json_extract(manifest, '$.os'),
      'resources', json(json_extract(manifest, '$.resources')), 'network', json(json_extract(manifest, '$.network')),
      'principal', nullif(principal, ''), 'created_at', created_at)), '$.kept', json(CASE WHEN member IS NOT NULL OR done = 1 AND vm_state = 'created' THEN 'true' ELSE 'null' END), '$.unwanted', json(CASE
        WHEN json_extract(doc, '$.vm.unwanted') OR member = 'doomed' OR member IN ('making', 'own') AND json_extract(doc, '$.outcome.status') <> 'success' THEN 'true' ELSE 'null' END)),
      CASE WHEN member IS NULL THEN '{}' ELSE json_object('member', CASE WHEN member <> 'own' THEN json(json_extract(doc, '$.member')) END, 'own', json_patch(json_object(
        'ready_at', CASE WHEN member <> 'own' THEN json_extract(doc, '$.member.ready_at') WHEN json_extract(doc, '$.outcome.status') = 'success' THEN json_extract(doc, '$.outcome.at') END,
        'failed', CASE WHEN member IN ('making', 'own') AND json_extract(doc, '$.outcome.reason') NOT IN ('cancelled', 'killed', 'exit_status') THEN json_extract(doc, '$.outcome.error') END,
        'failed_at', CASE WHEN member = 'own' AND json_extract(doc, '$.outcome.status') <> 'success' THEN json_extract(doc, '$.outcome.at') END),
        CASE WHEN member <> 'own' THEN '{}' ELSE json_object('client', client, 'token', json_extract(doc, '$.token_id'), 'submission', json_extract(doc, '$.submission'), 'ttl', json_extract(manifest, '$.ttl'),
          'ended_by', json_extract(doc, '$.ended_by'), 'ended_for', json_extract(doc, '$.ended_for'), 'ended_token', json_extract(doc, '$.ended_token')) END)) END)
    FROM jobs JOIN job_manifests ON job_id = id WHERE vm_job = id;

DROP INDEX jobs_with_vm;
ALTER TABLE jobs RENAME COLUMN vm_job TO vm_id;
CREATE INDEX jobs_of_vm ON jobs (vm_id) WHERE vm_id <> '';
UPDATE jobs SET doc = json_set(json_remove(doc, '$.vm'), '$.hold',
    json_object('state', json_extract(doc, '$.vm.state'), 'source', json_extract(doc, '$.vm.source')))
  WHERE vm_id <> '';

DROP INDEX jobs_members;
-- Those that made VMs and nothing else: the VMs go on as they are.
INSERT INTO vm_events (vm_id, at, kind, phase, text) SELECT vms.id, at, kind, phase, text FROM job_events JOIN jobs ON jobs.id = job_id JOIN vms ON vms.id = job_id
  WHERE jobs.member IS NOT NULL ORDER BY seq;
DELETE FROM jobs WHERE member IS NOT NULL;
ALTER TABLE jobs DROP COLUMN member;
UPDATE jobs SET doc = json_set(json_remove(doc, '$.into'), '$.shared_vm', json_extract(doc, '$.into')) WHERE json_extract(doc, '$.into') IS NOT NULL;
