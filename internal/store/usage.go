package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"linus/internal/job"
)

// usageColumns are what is read of a job for its usage: the first phase begins as it leaves the queue.
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

// usedAtOnce bounds the jobs that are read for their usage at once.
const usedAtOnce = 1000

// Usage returns what jobs have used, by the group that of returns: those that there are, as of a
// time, and those that were removed.
func (s *Store) Usage(ctx context.Context, q job.UsageQuery, at time.Time) (map[string]*job.Used, error) {
	all := map[string]*job.Used{}
	group := func(of job.UsageOf) *job.Used {
		name := of.In(q)
		if all[name] == nil {
			all[name] = &job.Used{}
		}
		return all[name]
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
		some, err := query(ctx, s.read, scanUsed, `SELECT `+usageColumns+where.text+` ORDER BY jobs.id LIMIT ?`, append(slices.Clone(where.args), usedAtOnce)...)
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

// owner is a principal's name as rows have it.
func owner(principal string) string {
	if principal == job.OperatorName {
		return ""
	}
	return principal
}

// removedUsage is a row of usage.
type removedUsage struct {
	of   job.UsageOf
	used job.Used
}

// removedID is the row's key: an array, which begins with the day.
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

// keepUsage adds what jobs that are about to be removed have used to the rows of their days.
func (s *Store) keepUsage(ctx context.Context, tx *tx, some []forgettable) error {
	sums := map[string]*job.Used{}
	for _, j := range some {
		found, err := query(ctx, tx, scanUsed, `SELECT `+usageColumns+`jobs.id = ?`, j.id)
		if err != nil {
			return err
		}
		for _, u := range found { // none: somebody else has removed it
			id := removedID(job.UsageOfJob(u.job))
			if sums[id] == nil {
				sums[id] = &job.Used{}
			}
			sums[id].Add(u.job, u.left, u.job.CompletedAt)
		}
	}
	for id, sum := range sums {
		if err := setOnce(ctx, tx, id); err != nil {
			return err
		}
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

func setOnce(ctx context.Context, tx *tx, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO usage (id, doc) VALUES (?, '{}') ON CONFLICT DO NOTHING`, id)
	return err
}
