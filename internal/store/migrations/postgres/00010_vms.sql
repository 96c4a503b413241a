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
  member TEXT NOT NULL,    -- of a pool's VM: vm.MemberState, or gone; '': it is no pool's
  doc    TEXT NOT NULL     -- vm.VM
);
CREATE INDEX vms_there ON vms (id) WHERE state IN ('intended', 'created', 'left_alone');

CREATE INDEX vms_members ON vms (id) WHERE member NOT IN ('', 'gone');
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

-- A pool's VM that has no node yet is reserved.
UPDATE jobs SET vm_job = id, vm_state = 'reserved', doc = (doc::jsonb || jsonb_build_object('vm', jsonb_build_object('name', 'linus-job-' || right(id, 12), 'job', id,
    'owner', (SELECT value FROM meta WHERE key = 'installation_id'), 'state', 'reserved', 'source', 'cold')))::text
  WHERE member IS NOT NULL AND done = 0 AND vm_job = '';

INSERT INTO vms (id, state, member, doc)
  SELECT id, vm_state, CASE member WHEN '' THEN 'gone' ELSE coalesce(member, '') END, ((doc::jsonb -> 'vm') - 'source' - 'lent' || jsonb_build_object('made', jsonb_strip_nulls(jsonb_build_object(
      'lifecycle', manifest::json -> 'lifecycle', 'template', manifest::json -> 'vmTemplate', 'os', manifest::json -> 'os',
      'resources', manifest::json -> 'resources', 'network', manifest::json -> 'network',
      'principal', nullif(principal, ''), 'created_at', created_at)), 'kept', member IS NOT NULL OR done = 1 AND vm_state = 'created', 'unwanted', coalesce(doc::jsonb #>> '{vm,unwanted}' = 'true', false) OR coalesce(member, '') = 'doomed'
        OR coalesce(member, '') = 'making' AND coalesce(doc::jsonb #>> '{outcome,status}', 'success') <> 'success')
      || CASE WHEN member IS NULL THEN '{}' ELSE jsonb_build_object('member', doc::jsonb -> 'member' || CASE
        WHEN member = 'making' AND doc::jsonb #>> '{outcome,reason}' NOT IN ('cancelled', 'killed') AND doc::jsonb #>> '{outcome,error}' <> '' THEN jsonb_build_object('failed', doc::jsonb #> '{outcome,error}')
        ELSE '{}' END) END)::text
    FROM jobs JOIN job_manifests ON job_id = id WHERE vm_job = id;

DROP INDEX jobs_with_vm;
ALTER TABLE jobs RENAME COLUMN vm_job TO vm_id;
CREATE INDEX jobs_of_vm ON jobs (vm_id) WHERE vm_id <> '';
UPDATE jobs SET doc = (doc::jsonb - 'vm' || jsonb_build_object('hold', jsonb_strip_nulls(jsonb_build_object(
    'state', doc::jsonb #> '{vm,state}', 'source', doc::jsonb #> '{vm,source}'))))::text
  WHERE vm_id <> '';

DROP INDEX jobs_members;
-- Those that made pools' VMs: the VMs go on as they are.
DELETE FROM jobs WHERE member IS NOT NULL;
ALTER TABLE jobs DROP COLUMN member;
UPDATE jobs SET doc = (doc::jsonb - 'into' || jsonb_build_object('shared_vm', doc::jsonb -> 'into'))::text WHERE doc::jsonb -> 'into' IS NOT NULL;
