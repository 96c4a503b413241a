-- +goose Up
-- Engines that know schema 9 do not find VMs where they are now.
-- +goose StatementBegin
DO $$ BEGIN
  IF EXISTS (SELECT 1 FROM engines WHERE lease_until > extract(epoch FROM clock_timestamp())) THEN
    RAISE EXCEPTION 'engines of an older version are running, which cannot work with this one: stop them first (linus serve --stop, or systemctl stop linus, on each machine; linus engine list)';
  END IF;
END $$;
-- +goose StatementEnd

-- VMs of ours. The row is there before the VM can exist, and as long as a job has it or has
-- had it.
CREATE TABLE vms (
  id     TEXT COLLATE "C" PRIMARY KEY, -- UUID: the one in the VM's marker
  state  TEXT NOT NULL,    -- vm.State
  member TEXT NOT NULL,    -- of a pool's VM: vm.MemberState; own: somebody has asked for the VM; gone: it was one of these; '': a job has made it
  principal TEXT COLLATE "C" NOT NULL DEFAULT '', -- that has asked for it; '': the operator, or nobody
  idempotency_key TEXT COLLATE "C" UNIQUE,        -- that it was asked for with; see jobs
  doc    TEXT NOT NULL     -- vm.VM
);
CREATE INDEX vms_there ON vms (id) WHERE (state IN ('intended', 'created', 'left_alone') OR state = 'reserved' AND member = 'own');
CREATE INDEX vms_members ON vms (id) WHERE member NOT IN ('', 'gone', 'own');
CREATE INDEX vms_of_principal ON vms (principal, id) WHERE principal <> '';
CREATE INDEX vms_gone_members ON vms (id) WHERE member = 'gone';

-- What happened to VMs that no job has made: what happened to others stands with their jobs.
CREATE TABLE vm_events (
  seq   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  vm_id text COLLATE "C" NOT NULL REFERENCES vms (id) ON DELETE CASCADE,
  at    text NOT NULL,
  kind  text NOT NULL,
  phase text NOT NULL,
  text  text NOT NULL
);
CREATE INDEX vm_events_by_vm ON vm_events (vm_id, seq);

-- VMs that somebody has asked for, unless their creation has ended without one.
UPDATE jobs SET member = 'own' WHERE member IS NULL AND doc::jsonb ->> 'kind' = 'vm' AND NOT EXISTS (SELECT 1 FROM webhooks WHERE job_id = jobs.id)
  AND (done = 0 AND (vm_job <> '' OR doc::jsonb -> 'outcome' IS NULL) OR vm_state IN ('created', 'left_alone'));

-- A VM that has no node yet is reserved.
UPDATE jobs SET vm_job = id, vm_state = 'reserved', doc = (doc::jsonb || jsonb_build_object('vm', jsonb_build_object('name',
    coalesce((SELECT manifest::json ->> 'vmName' FROM job_manifests WHERE job_id = id), 'linus-job-' || right(id, 12)), 'job', id,
    'owner', (SELECT value FROM meta WHERE key = 'installation_id'), 'state', 'reserved', 'source', 'cold')))::text
  WHERE member IS NOT NULL AND done = 0 AND vm_job = '';

INSERT INTO vms (id, state, member, principal, idempotency_key, doc)
  SELECT id, vm_state, CASE member WHEN '' THEN 'gone' ELSE coalesce(member, '') END,
    CASE member WHEN 'own' THEN principal ELSE '' END, CASE member WHEN 'own' THEN idempotency_key END, ((doc::jsonb -> 'vm') - 'source' - 'lent' || jsonb_build_object('made', jsonb_strip_nulls(jsonb_build_object(
      'lifecycle', manifest::json -> 'lifecycle', 'template', manifest::json -> 'vmTemplate', 'os', manifest::json -> 'os',
      'resources', manifest::json -> 'resources', 'network', manifest::json -> 'network',
      'principal', nullif(principal, ''), 'created_at', created_at)), 'kept', member IS NOT NULL OR done = 1 AND vm_state = 'created', 'unwanted', coalesce(doc::jsonb #>> '{vm,unwanted}' = 'true', false) OR coalesce(member, '') = 'doomed'
        OR coalesce(member, '') IN ('making', 'own') AND coalesce(doc::jsonb #>> '{outcome,status}', 'success') <> 'success')
      || CASE WHEN member IS NULL THEN '{}' ELSE jsonb_strip_nulls(jsonb_build_object('member', CASE WHEN member <> 'own' THEN doc::jsonb -> 'member' END, 'own', jsonb_build_object(
        'ready_at', CASE WHEN member <> 'own' THEN doc::jsonb #> '{member,ready_at}' WHEN doc::jsonb #>> '{outcome,status}' = 'success' THEN doc::jsonb #> '{outcome,at}' END,
        'failed', CASE WHEN member IN ('making', 'own') AND doc::jsonb #>> '{outcome,reason}' NOT IN ('cancelled', 'killed', 'exit_status') AND doc::jsonb #>> '{outcome,error}' <> '' THEN doc::jsonb #> '{outcome,error}' END,
        'failed_at', CASE WHEN member = 'own' AND doc::jsonb #>> '{outcome,status}' <> 'success' THEN doc::jsonb #> '{outcome,at}' END)
        || CASE WHEN member <> 'own' THEN '{}' ELSE jsonb_build_object('client', client, 'token', doc::jsonb -> 'token_id', 'submission', doc::jsonb -> 'submission', 'ttl', manifest::jsonb -> 'ttl',
          'ended_by', doc::jsonb -> 'ended_by', 'ended_for', doc::jsonb -> 'ended_for', 'ended_token', doc::jsonb -> 'ended_token') END)) END)::text
    FROM jobs JOIN job_manifests ON job_id = id WHERE vm_job = id;

DROP INDEX jobs_with_vm;
ALTER TABLE jobs RENAME COLUMN vm_job TO vm_id;
CREATE INDEX jobs_of_vm ON jobs (vm_id) WHERE vm_id <> '';
UPDATE jobs SET doc = (doc::jsonb - 'vm' || jsonb_build_object('hold', jsonb_strip_nulls(jsonb_build_object(
    'state', doc::jsonb #> '{vm,state}', 'source', doc::jsonb #> '{vm,source}'))))::text
  WHERE vm_id <> '';

DROP INDEX jobs_members;
-- Those that made VMs and nothing else: the VMs go on as they are.
INSERT INTO vm_events (vm_id, at, kind, phase, text) SELECT vms.id, at, kind, phase, text FROM job_events JOIN jobs ON jobs.id = job_id JOIN vms ON vms.id = job_id
  WHERE jobs.member IS NOT NULL ORDER BY seq;
DELETE FROM jobs WHERE member IS NOT NULL;
ALTER TABLE jobs DROP COLUMN member;
UPDATE jobs SET doc = (doc::jsonb - 'into' || jsonb_build_object('shared_vm', doc::jsonb -> 'into'))::text WHERE doc::jsonb -> 'into' IS NOT NULL;
