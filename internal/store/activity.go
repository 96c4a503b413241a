package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
)

// mostActive is how many jobs an Activity counts.
const mostActive = 20000

// submitted is a job as an Activity counts it.
type submitted struct {
	at, started time.Time
	status      job.Status
}

// Activity returns what was submitted in the hours until now; see
// executor.JobStore. It reads at most mostActive rows, the newest.
func (s *Store) Activity(ctx context.Context, principal string, now time.Time) (job.Activity, error) {
	from := now.UTC().Truncate(time.Hour).Add(-(job.ActivityHours - 1) * time.Hour)
	c := conditions{}
	c.ofPrincipal(principal)
	c.add("id >= ?", idAt(from))
	all, err := query(ctx, s.read, scanSubmitted, `SELECT created_at, started_at, status FROM jobs
		WHERE true`+c.and()+` ORDER BY id DESC LIMIT ?`, append(c.args, mostActive+1)...)
	if err != nil {
		return job.Activity{}, fmt.Errorf("count jobs: %w", err)
	}
	a := job.Activity{Hours: make([]job.Hour, job.ActivityHours), Cut: len(all) > mostActive}
	waits := make([][]time.Duration, len(a.Hours))
	for _, j := range all[:min(len(all), mostActive)] {
		i := min(int(j.at.Sub(from)/time.Hour), len(a.Hours)-1)
		if j.at.Before(from) {
			continue // its ID is a moment older than the job
		}
		h := &a.Hours[i]
		switch {
		case j.status == job.Success:
			h.Succeeded++
		case j.status.Terminal():
			h.Failed++
		default:
			h.Unfinished++
		}
		if !j.started.IsZero() {
			waits[i] = append(waits[i], max(0, j.started.Sub(j.at)))
		}
	}
	for i := range a.Hours {
		a.Hours[i].From = from.Add(time.Duration(i) * time.Hour)
		if a.Hours[i].Started = len(waits[i]); len(waits[i]) > 0 {
			slices.Sort(waits[i])
			a.Hours[i].MedianWait, a.Hours[i].MaxWait = waits[i][len(waits[i])/2], waits[i][len(waits[i])-1]
		}
	}
	return a, nil
}

func scanSubmitted(row scanner) (j submitted, err error) {
	var at, started string
	if err = row.Scan(&at, &started, &j.status); err != nil {
		return j, err
	}
	if j.at, err = time.Parse(time.RFC3339Nano, at); err == nil && started != "" {
		j.started, err = time.Parse(time.RFC3339Nano, started)
	}
	return j, err
}
