-- +goose Up
-- VMs of ours. The row is there before the VM can exist, and as long as a job has it or has
-- had it.
CREATE TABLE vms (
  id    TEXT PRIMARY KEY, -- UUID: the one in the VM's marker
  state TEXT NOT NULL,    -- vm.State
  doc   TEXT NOT NULL     -- vm.VM
) STRICT;
CREATE INDEX vms_there ON vms (id) WHERE state IN ('intended', 'created', 'left_alone');

INSERT INTO vms (id, state, doc)
  SELECT id, vm_state, json_set(json_remove(json_extract(doc, '$.vm'), '$.source', '$.lent'), '$.made', json_patch('{}', json_object(
      'lifecycle', json_extract(manifest, '$.lifecycle'), 'template', json_extract(manifest, '$.vmTemplate'), 'os', json_extract(manifest, '$.os'),
      'resources', json(json_extract(manifest, '$.resources')), 'network', json(json_extract(manifest, '$.network')),
      'principal', nullif(principal, ''), 'created_at', created_at)))
    FROM jobs JOIN job_manifests ON job_id = id WHERE vm_job = id;

DROP INDEX jobs_with_vm;
ALTER TABLE jobs RENAME COLUMN vm_job TO vm_id;
CREATE INDEX jobs_of_vm ON jobs (vm_id) WHERE vm_id <> '';
UPDATE jobs SET doc = json_set(json_remove(doc, '$.vm'), '$.hold', json_patch(
    json_object('state', json_extract(doc, '$.vm.state'), 'source', json_extract(doc, '$.vm.source')),
    CASE WHEN json_extract(doc, '$.vm.lent') THEN '{"lent":true}' ELSE '{}' END))
  WHERE vm_id <> '';
