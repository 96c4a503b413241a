package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// usageColumns are the columns read of a job for its usage. A job leaves the queue when its first
// phase begins.
const usageColumns = `jobs.id, jobs.doc, m.manifest, jobs.principal,
	(SELECT at FROM job_events WHERE job_id = jobs.id AND kind = '` + job.EventPhaseStarted + `' ORDER BY seq LIMIT 1)
	FROM jobs JOIN job_manifests m ON m.job_id = jobs.id WHERE `

// usedBy is a job, and when it left the queue.
type usedBy struct {
	job  job.Job
	left time.Time
}

func scanUsed(row scanner) (u usedBy, err error) {
	var doc, manifest string
	var left sql.NullString
	if err := row.Scan(&u.job.ID, &doc, &manifest, &u.job.Principal, &left); err != nil {
		return u, err
	}
	err = errors.Join(json.Unmarshal([]byte(doc), &u.job), json.Unmarshal([]byte(manifest), &u.job.Manifest))
	if err == nil && left.Valid {
		u.left, err = time.Parse(time.RFC3339Nano, left.String)
	}
	return u, err
}

// usedAtOnce bounds how many jobs are read for their usage at once.
const usedAtOnce = 1000

// Usage returns what jobs and persistent VMs have used, grouped by UsageOf.In: existing ones as of
// a time, and removed ones.
func (s *Store) Usage(ctx context.Context, q job.UsageQuery, at time.Time) (map[string]*job.Used, error) {
	all := map[string]*job.Used{}
	group := func(of job.UsageOf) *job.Used {
		name := of.In(q)
		if all[name] == nil {
			all[name] = &job.Used{}
		}
		return all[name]
	}
	runs, err := query(ctx, s.read, scanRun, `SELECT began, ended, doc FROM vm_runs
		WHERE ended > ? OR ended = '' AND EXISTS (SELECT 1 FROM vms WHERE vms.id = vm_id AND `+there+`)`, timeText(q.Since))
	if err != nil {
		return nil, tried(err, "read the usage of VMs")
	}
	for _, r := range runs {
		if r.Ended.IsZero() {
			r.Ended = at
		}
		if r.Began.Before(q.Since) {
			r.Began = q.Since
		}
		if q.Principal == "" || owner(q.Principal) == r.Of.Principal {
			group(r.Of).AddRun(r)
		}
	}
	removed, err := query(ctx, s.read, scanRemoved, `SELECT id, doc FROM usage WHERE id >= ?`, removedID(job.UsageOf{Day: q.Since.UTC().Format(time.DateOnly)})[:13])
	if err != nil {
		return nil, tried(err, "read the usage of jobs that were removed")
	}
	for _, r := range removed {
		if q.Principal == "" || owner(q.Principal) == r.of.Principal {
			group(r.of).Merge(r.used)
		}
	}
	var where conditions
	where.ofPrincipal(q.Principal)
	where.add("jobs.id > ?", "")
	for last := idAt(q.Since); ; {
		where.args[len(where.args)-1] = last
		some, err := query(ctx, s.read, scanUsed, `SELECT `+usageColumns+where.text+` ORDER BY jobs.id`+atMost, append(slices.Clone(where.args), usedAtOnce)...)
		if err != nil {
			return nil, tried(err, "read the usage of jobs")
		}
		for _, u := range some {
			group(job.UsageOfJob(u.job)).Add(u.job, u.left, at)
			last = u.job.ID
		}
		if len(some) < usedAtOnce {
			return all, nil
		}
	}
}

// owner is a principal's name as rows store it.
func owner(principal string) string {
	if principal == job.OperatorName {
		return ""
	}
	return principal
}

// removedUsage is a row of usage, of removed jobs.
type removedUsage struct {
	of   job.UsageOf
	used job.Used
}

// removedID returns the row's key: a JSON array that begins with the day.
func removedID(of job.UsageOf) string {
	text, _ := json.Marshal([]string{of.Day, of.Principal, of.Queue, of.Repository, of.Template}) // texts: cannot fail
	return string(text)
}

func scanRemoved(row scanner) (r removedUsage, err error) {
	var id, doc string
	if err := row.Scan(&id, &doc); err != nil {
		return r, err
	}
	var of [5]string
	err = errors.Join(json.Unmarshal([]byte(id), &of), json.Unmarshal([]byte(doc), &r.used))
	r.of = job.UsageOf{Day: of[0], Principal: of[1], Queue: of[2], Repository: of[3], Template: of[4]}
	return r, err
}

// keepUsage adds the usage of jobs that are about to be removed to the rows of their days.
func (s *Store) keepUsage(ctx context.Context, tx *tx, some []forgettable) error {
	sums := map[string]*job.Used{}
	for _, j := range some {
		found, err := query(ctx, tx, scanUsed, `SELECT `+usageColumns+`jobs.id = ?`, j.id)
		if err != nil {
			return err
		}
		for _, u := range found { // none: the job has been removed already
			id := removedID(job.UsageOfJob(u.job))
			if sums[id] == nil {
				sums[id] = &job.Used{}
			}
			sums[id].Add(u.job, u.left, u.job.CompletedAt)
		}
	}
	return s.addUsage(ctx, tx, sums)
}

// addUsage adds sums to the rows with their keys.
func (s *Store) addUsage(ctx context.Context, tx *tx, sums map[string]*job.Used) error {
	for id, sum := range sums {
		tx.post(`INSERT INTO usage (id, doc) VALUES (?, '{}') ON CONFLICT DO NOTHING`, id)
		was, err := only(query(ctx, tx, scanRemoved, `SELECT id, doc FROM usage WHERE id = ?`+s.dialect.lock("usage"), id))
		if err != nil {
			return err
		}
		was.used.Merge(*sum)
		doc, err := json.Marshal(was.used)
		if err != nil {
			return err
		}
		tx.post(`UPDATE usage SET doc = ? WHERE id = ?`, string(doc), id)
	}
	return nil
}

// noteRun records that a VM begins or ceases to count at a time.
func noteRun(tx *tx, was, now vm.VM, of job.UsageOf, at time.Time) error {
	switch {
	case was.Counts() == now.Counts():
		return nil
	case was.Counts():
		tx.post(`UPDATE vm_runs SET ended = ? WHERE ended = '' AND vm_id = ?`, timeText(at), now.Job)
		return nil
	}
	doc, err := json.Marshal(job.VMRun{Of: of, Resources: now.Resources})
	tx.post(`INSERT INTO vm_runs (id, vm_id, began, ended, doc) VALUES (?, ?, ?, '', ?) ON CONFLICT DO NOTHING`, now.Job+" "+timeText(at), now.Job, timeText(at), string(doc))
	return err
}

func scanRun(row scanner) (r job.VMRun, err error) {
	var began, ended, doc string
	if err := row.Scan(&began, &ended, &doc); err != nil {
		return r, err
	}
	err = json.Unmarshal([]byte(doc), &r)
	if err == nil {
		r.Began, err = time.Parse(time.RFC3339Nano, began)
	}
	if err == nil && ended != "" {
		r.Ended, err = time.Parse(time.RFC3339Nano, ended)
	}
	return r, err
}

// forgetRuns moves the usage of VM runs that ended before a time to the rows of removed jobs.
func (s *Store) forgetRuns(ctx context.Context, before time.Time) error {
	const old = ` FROM vm_runs WHERE ended <> '' AND ended < ?`
	n, err := first[int](ctx, s.read, `SELECT count(*)`+old, timeText(before))
	if err == nil && n > 0 {
		err = s.transaction(ctx, func(tx *tx) error {
			runs, err := query(ctx, tx, scanRun, `SELECT began, ended, doc`+old+s.dialect.lock("vm_runs"), timeText(before))
			sums := map[string]*job.Used{}
			for _, run := range runs {
				for _, part := range run.Days() {
					id := removedID(part.Of)
					if sums[id] == nil {
						sums[id] = &job.Used{}
					}
					sums[id].AddRun(part)
				}
			}
			if err == nil {
				err = s.addUsage(ctx, tx, sums)
			}
			tx.post(`DELETE`+old, timeText(before))
			return err
		})
	}
	return tried(err, "keep the usage of VMs")
}
