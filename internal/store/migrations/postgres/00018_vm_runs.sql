-- +goose Up
-- When VMs have run that stay on their own: no job's usage has them.
CREATE TABLE vm_runs (
  id    text COLLATE "C" PRIMARY KEY,
  vm_id text COLLATE "C" NOT NULL,
  began text COLLATE "C" NOT NULL,
  ended text COLLATE "C" NOT NULL, -- '': it runs
  doc   text NOT NULL              -- job.VMRun
);
CREATE INDEX vm_runs_ended ON vm_runs (ended, vm_id);

-- What is known of VMs so far: not when they were stopped, other than the last time because they were idle.
INSERT INTO vm_runs (id, vm_id, began, ended, doc)
  SELECT vms.id, vms.id, coalesce(nullif(jobs.completed_at, ''), (SELECT min(at) FROM vm_events WHERE vm_id = vms.id AND kind = 'phase_started'), made ->> 'created_at'),
    CASE WHEN state IN ('intended', 'created', 'left_alone') AND v ->> 'off' IS NULL AND v ->> 'suspended_at' IS NULL THEN ''
      ELSE coalesce(v ->> 'suspended_at', (SELECT max(at) FROM vm_events WHERE vm_id = vms.id), (SELECT max(at) FROM job_events WHERE job_id = vms.id), made ->> 'created_at') END,
    json_build_object('of', jsonb_strip_nulls(jsonb_build_object('principal', made ->> 'principal', 'queue', jobs.doc::json -> 'session' ->> 'queue',
        'repository', coalesce(jobs.doc::json -> 'session' -> 'work' ->> 'of', manifest::json -> 'repository' ->> 'url'),
        'template', coalesce(made ->> 'template', made ->> 'os'), 'labels', made -> 'labels')),
      'resources', made -> 'resources')::text
    FROM vms CROSS JOIN LATERAL (SELECT vms.doc::json AS v, vms.doc::json -> 'made' AS made) AS machine
      LEFT JOIN jobs ON jobs.id = vms.id LEFT JOIN job_manifests ON job_id = vms.id
    WHERE made ->> 'created_at' IS NOT NULL
      AND (state IN ('intended', 'created', 'left_alone') OR state IN ('destroyed', 'forgotten') AND v ->> 'id' IS NOT NULL)
      AND CASE WHEN v ->> 'own' IS NULL THEN coalesce(v ->> 'kept', '') = 'true' ELSE v ->> 'member' IS NULL AND v ->> 'checkpoint' IS NULL END;
