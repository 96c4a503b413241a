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
  id    TEXT COLLATE "C" PRIMARY KEY, -- UUID: the one in the VM's marker
  state TEXT NOT NULL,    -- vm.State
  doc   TEXT NOT NULL     -- vm.VM
);
CREATE INDEX vms_there ON vms (id) WHERE state IN ('intended', 'created', 'left_alone');

INSERT INTO vms (id, state, doc)
  SELECT id, vm_state, ((doc::jsonb -> 'vm') - 'source' - 'lent' || jsonb_build_object('made', jsonb_strip_nulls(jsonb_build_object(
      'lifecycle', manifest::json -> 'lifecycle', 'template', manifest::json -> 'vmTemplate', 'os', manifest::json -> 'os',
      'resources', manifest::json -> 'resources', 'network', manifest::json -> 'network',
      'principal', nullif(principal, ''), 'created_at', created_at))))::text
    FROM jobs JOIN job_manifests ON job_id = id WHERE vm_job = id;

DROP INDEX jobs_with_vm;
ALTER TABLE jobs RENAME COLUMN vm_job TO vm_id;
CREATE INDEX jobs_of_vm ON jobs (vm_id) WHERE vm_id <> '';
UPDATE jobs SET doc = (doc::jsonb - 'vm' || jsonb_build_object('hold', jsonb_strip_nulls(jsonb_build_object(
    'state', doc::jsonb #> '{vm,state}', 'source', doc::jsonb #> '{vm,source}', 'lent', doc::jsonb #> '{vm,lent}'))))::text
  WHERE vm_id <> '';
