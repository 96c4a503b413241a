package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"linus/internal/vm"
)

// UsageQuery asks what jobs and VMs that stay have used.
type UsageQuery struct {
	By        string    `json:"by,omitempty"`        // principal, queue, repository, template or label=KEY; empty: everything together
	Since     time.Time `json:"since,omitzero"`      // of jobs submitted at this time or later, and of VMs that stay from this time on; zero: 30 days ago
	Principal string    `json:"principal,omitempty"` // only of this principal; empty: of all that the caller may see
}

// UsageDays is the default number of days for which usage is reported.
const UsageDays = 30

// UsageKinds are the values of By, besides a label.
var UsageKinds = []string{"principal", "queue", "repository", "template"}

// UsageLabel is the prefix of By before a label's key.
const UsageLabel = "label="

// Check returns a *FieldError for an invalid query.
func (q UsageQuery) Check() error {
	key, label := strings.CutPrefix(q.By, UsageLabel)
	if q.By == "" || slices.Contains(UsageKinds, q.By) || label && IsLabelKey(key) {
		return nil
	}
	return field("by", "use one of: "+strings.Join(UsageKinds, ", ")+", or label=KEY", "%.80q is unknown", q.By)
}

// Usage is what a group of jobs and VMs has used. A job's VM counts from when the job left the queue to the
// job's end, with the requested size; a job in an existing VM, and a parent, count none. A VM that stays
// counts by itself, from its job's end or from its creation, while it is neither stopped nor suspended.
type Usage struct {
	Of       string         `json:"of"` // the group, as named by the query; empty: none, or everything
	Jobs     int            `json:"jobs"`
	VMHours  float64        `json:"vm_hours"`
	CPUHours float64        `json:"cpu_hours"`        // of the cores that VMs had
	GiBHours float64        `json:"memory_gib_hours"` // of the memory that VMs had
	QueueP50 float64        `json:"queue_p50_seconds"`
	QueueP95 float64        `json:"queue_p95_seconds"` // both to within 5 percent
	Failed   map[Reason]int `json:"failed,omitempty"`  // jobs that did not succeed, by reason
}

// Accounting are the operations on what was used.
type Accounting interface {
	// Usage returns what jobs and VMs have used, grouped as the query says, the most VM hours first.
	// Deleted ones count, too, but not by a label.
	Usage(ctx context.Context, q UsageQuery) ([]Usage, error)
}

// UsageOf says which group a job belongs to, for each way to group usage.
type UsageOf struct {
	Day        string            `json:"-"`
	Principal  string            `json:"principal,omitempty"`
	Queue      string            `json:"queue,omitempty"`
	Repository string            `json:"repository,omitempty"`
	Template   string            `json:"template,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// In returns the job's group in a query.
func (o UsageOf) In(q UsageQuery) string {
	switch q.By {
	case "principal":
		return cmp.Or(o.Principal, OperatorName)
	case "queue":
		return o.Queue
	case "repository":
		return o.Repository
	case "template":
		return o.Template
	}
	if key, label := strings.CutPrefix(q.By, UsageLabel); label {
		return o.Labels[key]
	}
	return ""
}

// UsageOfJob returns the groups of a job.
func UsageOfJob(j Job) UsageOf {
	of := UsageOf{
		Day: j.CreatedAt.UTC().Format(time.DateOnly), Principal: j.Principal, Repository: j.Manifest.Repository.URL,
		Template: cmp.Or(j.Manifest.VMTemplate, j.Manifest.OS), Labels: j.Manifest.Labels,
	}
	if s := j.Session; s != nil {
		of.Queue, of.Repository = s.Queue, cmp.Or(s.Work.Of, of.Repository)
	}
	return of
}

// UsageOfVM is UsageOfJob for a VM that no job has created.
func UsageOfVM(v vm.VM) UsageOf {
	return UsageOf{Principal: v.Principal, Template: cmp.Or(v.Template, v.OS), Labels: v.Labels}
}

// VMRun is a period in which a VM that stays ran, with its groups and size. No job counts it.
type VMRun struct {
	Of           UsageOf      `json:"of"`
	Resources    vm.Resources `json:"resources"`
	Began, Ended time.Time    `json:"-"`
}

// Days splits the run by days of UTC.
func (r VMRun) Days() (parts []VMRun) {
	for ended := r.Ended; r.Began.Before(ended); r.Began = r.Ended {
		day := r.Began.UTC().Truncate(24 * time.Hour)
		r.Ended = day.AddDate(0, 0, 1)
		if ended.Before(r.Ended) {
			r.Ended = ended
		}
		r.Of.Day = day.Format(time.DateOnly)
		parts = append(parts, r)
	}
	return parts
}

// Used is a sum of what jobs and VMs have used.
type Used struct {
	Jobs       int            `json:"jobs"`
	VMSeconds  float64        `json:"vm_seconds"`
	CPUSeconds float64        `json:"cpu_seconds"`
	MBSeconds  float64        `json:"mb_seconds"`
	Failed     map[Reason]int `json:"failed,omitempty"`
	Waits      map[int]int    `json:"waits,omitempty"` // jobs by their time in the queue: see waitStep
}

// waitStep is the factor between the bounds of Used.Waits.
const waitStep = 1.05

// Add adds a job that left the queue at time left, zero if it has not. Its VM counts until at if the
// job has not ended.
func (u *Used) Add(j Job, left, at time.Time) {
	if u.Jobs++; u.Failed == nil {
		u.Failed, u.Waits = map[Reason]int{}, map[int]int{}
	}
	if j.Status.Terminal() && j.Status != Success && j.Outcome != nil {
		u.Failed[j.Outcome.Reason]++
	}
	if left.IsZero() || !j.WantsVM() {
		return
	}
	u.Waits[int(math.Round(math.Log1p(max(0, left.Sub(j.CreatedAt).Seconds()))/math.Log(waitStep)))]++
	if !j.CompletedAt.IsZero() {
		at = j.CompletedAt
	}
	u.AddRun(VMRun{Resources: j.Manifest.Resources, Began: left, Ended: at})
}

// AddRun adds what a VM has used.
func (u *Used) AddRun(r VMRun) {
	took := max(0, r.Ended.Sub(r.Began).Seconds())
	u.VMSeconds += took
	u.CPUSeconds += took * float64(r.Resources.CPU)
	u.MBSeconds += took * float64(SizeMB(r.Resources.Memory))
}

// Merge adds another sum.
func (u *Used) Merge(o Used) {
	u.Jobs, u.VMSeconds, u.CPUSeconds, u.MBSeconds = u.Jobs+o.Jobs, u.VMSeconds+o.VMSeconds, u.CPUSeconds+o.CPUSeconds, u.MBSeconds+o.MBSeconds
	if u.Failed == nil {
		u.Failed, u.Waits = map[Reason]int{}, map[int]int{}
	}
	for reason, n := range o.Failed {
		u.Failed[reason] += n
	}
	for wait, n := range o.Waits {
		u.Waits[wait] += n
	}
}

// waited returns the time in seconds that this share of all jobs that left the queue waited at most.
func (u Used) waited(share float64) float64 {
	all := 0
	for _, n := range u.Waits {
		all += n
	}
	seen := 0
	for _, wait := range slices.Sorted(maps.Keys(u.Waits)) {
		if seen += u.Waits[wait]; float64(seen) >= share*float64(all) {
			return math.Round(10*(math.Pow(waitStep, float64(wait))-1)) / 10
		}
	}
	return 0
}

// Told returns the sum as the usage of a group.
func (u Used) Told(of string) Usage {
	hours := func(seconds float64) float64 { return math.Round(seconds/3600*1000) / 1000 }
	return Usage{
		Of: of, Jobs: u.Jobs, VMHours: hours(u.VMSeconds), CPUHours: hours(u.CPUSeconds), GiBHours: hours(u.MBSeconds / 1024),
		QueueP50: u.waited(0.5), QueueP95: u.waited(0.95), Failed: u.Failed,
	}
}

// UsageTable returns the answer to a query as rows of texts, the first with the column names. Texts
// are escaped so that spreadsheet programs do not take them for formulas.
func UsageTable(q UsageQuery, all []Usage) [][]string {
	of := cmp.Or(strings.TrimPrefix(q.By, UsageLabel), "of")
	rows := [][]string{{of, "jobs", "vm_hours", "cpu_hours", "memory_gib_hours", "queue_p50_seconds", "queue_p95_seconds"}}
	for _, reason := range Reasons {
		rows[0] = append(rows[0], "failed_"+string(reason))
	}
	for _, u := range all {
		name := u.Of
		if strings.ContainsAny(name[:min(1, len(name))], "=+-@\t\r") {
			name = "'" + name
		}
		row := []string{name, fmt.Sprint(u.Jobs), fmt.Sprint(u.VMHours), fmt.Sprint(u.CPUHours), fmt.Sprint(u.GiBHours), fmt.Sprint(u.QueueP50), fmt.Sprint(u.QueueP95)}
		for _, reason := range Reasons {
			row = append(row, fmt.Sprint(u.Failed[reason]))
		}
		rows = append(rows, row)
	}
	return rows
}
