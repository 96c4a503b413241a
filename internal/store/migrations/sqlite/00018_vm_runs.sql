-- +goose Up
-- When VMs have run that stay on their own: no job's usage has them.
CREATE TABLE vm_runs (
  id    TEXT PRIMARY KEY,
  vm_id TEXT NOT NULL,
  began TEXT NOT NULL,
  ended TEXT NOT NULL, -- '': it runs
  doc   TEXT NOT NULL  -- job.VMRun
) STRICT;
CREATE INDEX vm_runs_ended ON vm_runs (ended, vm_id);

-- What is known of VMs so far: not when they were stopped, other than the last time because they were idle.
INSERT INTO vm_runs (id, vm_id, began, ended, doc)
  SELECT vms.id, vms.id, coalesce(nullif(jobs.completed_at, ''), (SELECT min(at) FROM vm_events WHERE vm_id = vms.id AND kind = 'phase_started'), json_extract(vms.doc, '$.made.created_at')),
    CASE WHEN state IN ('intended', 'created', 'left_alone') AND json_extract(vms.doc, '$.off') IS NULL AND json_extract(vms.doc, '$.suspended_at') IS NULL THEN ''
      ELSE coalesce(json_extract(vms.doc, '$.suspended_at'), (SELECT max(at) FROM vm_events WHERE vm_id = vms.id), (SELECT max(at) FROM job_events WHERE job_id = vms.id), json_extract(vms.doc, '$.made.created_at')) END,
    json_object('of', json_patch('{}', json_object('principal', json_extract(vms.doc, '$.made.principal'), 'queue', json_extract(jobs.doc, '$.session.queue'),
        'repository', coalesce(json_extract(jobs.doc, '$.session.work.of'), json_extract(manifest, '$.repository.url')),
        'template', coalesce(json_extract(vms.doc, '$.made.template'), json_extract(vms.doc, '$.made.os')), 'labels', json(json_extract(vms.doc, '$.made.labels')))),
      'resources', json(json_extract(vms.doc, '$.made.resources')))
    FROM vms LEFT JOIN jobs ON jobs.id = vms.id LEFT JOIN job_manifests ON job_id = vms.id
    WHERE json_extract(vms.doc, '$.made.created_at') IS NOT NULL
      AND (state IN ('intended', 'created', 'left_alone') OR state IN ('destroyed', 'forgotten') AND json_extract(vms.doc, '$.id') IS NOT NULL)
      AND CASE WHEN json_extract(vms.doc, '$.own') IS NULL THEN json_extract(vms.doc, '$.kept')
        ELSE json_extract(vms.doc, '$.member') IS NULL AND json_extract(vms.doc, '$.checkpoint') IS NULL END;
