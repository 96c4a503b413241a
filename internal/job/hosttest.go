package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	spec "linus/internal/field"
)

// HostTestLabel is the label of everything that a test of the host creates; its value is the test's ID.
const HostTestLabel = "linus-host-test"

// HostFacts are the conditions under which a node was tested. With another version of Proxmox,
// storage or template, the test no longer says anything.
type HostFacts struct {
	Node     string `json:"node"`
	Proxmox  string `json:"proxmox"`  // the version of Proxmox VE
	Storage  string `json:"storage"`  // the types of the storages that hold VMs
	Template string `json:"template"` // the generation of the template in use
}

// Differs says what has changed since; empty if nothing has.
func (f HostFacts) Differs(now HostFacts) string {
	var all []string
	for _, of := range []struct{ what, then, now string }{
		{"Proxmox VE was ", f.Proxmox, now.Proxmox}, {"the storage was ", f.Storage, now.Storage},
	} {
		if of.then != of.now {
			all = append(all, of.what+of.then+" and is "+of.now)
		}
	}
	if f.Template != now.Template {
		all = append(all, "the template is a different one")
	}
	return strings.Join(all, ", ")
}

// HostTestSpec says what to test.
type HostTestSpec struct {
	Node    string `json:"node,omitempty"`    // empty: the first node asked
	Storage string `json:"storage,omitempty"` // for the volume; empty: the storage of volumes. VMs are stored where their template is
	Quick   bool   `json:"quick,omitempty"`   // boot, job, cancel and destroy only
}

// HostTestStatus is the state of a test.
type HostTestStatus string

// The states.
const (
	HostTestRunning   HostTestStatus = "running"
	HostTestPassed    HostTestStatus = "passed" // what was not possible was skipped
	HostTestFailed    HostTestStatus = "failed"
	HostTestCancelled HostTestStatus = "cancelled"
)

// HostTestStatuses are all statuses.
var HostTestStatuses = []HostTestStatus{HostTestRunning, HostTestPassed, HostTestFailed, HostTestCancelled}

// StepResult is the result of a step of a test.
type StepResult string

// The results.
const (
	StepRunning StepResult = "running"
	StepPassed  StepResult = "passed"
	StepFailed  StepResult = "failed"
	StepSkipped StepResult = "skipped" // impossible there, or it depends on a step that failed
)

// HostTestStep is a step of a test.
type HostTestStep struct {
	Name    string     `json:"name"`
	Result  StepResult `json:"result"`
	Seconds float64    `json:"seconds"`
	Text    string     `json:"text,omitempty"` // what was seen, or why the step failed or was skipped
	Remedy  string     `json:"remedy,omitempty"`
}

// Level returns the level of a check with the step's result.
func (s HostTestStep) Level() string {
	return map[StepResult]string{StepPassed: "ok", StepFailed: "fail"}[s.Result] + map[StepResult]string{StepSkipped: "warn", StepRunning: "warn"}[s.Result]
}

// HostTest is a test of a node: the whole chain, in VMs that are removed afterwards. The last test
// of each node, storage and kind is kept.
type HostTest struct {
	ID        string         `json:"id"`
	Status    HostTestStatus `json:"status"`
	Quick     bool           `json:"quick,omitempty"`
	Node      string         `json:"node"`
	Storage   string         `json:"storage,omitempty"` // as asked for
	Template  string         `json:"template"`
	Of        HostFacts      `json:"true_of"`
	Outdated  string         `json:"outdated,omitempty"` // why the result no longer holds, as of the last check of the host
	Steps     []HostTestStep `json:"steps"`
	Principal string         `json:"principal,omitempty"` // the name of its owner; empty: the operator
	CreatedAt time.Time      `json:"created_at"`
	EndedAt   time.Time      `json:"ended_at,omitzero"`
}

// Cells returns the test's cells.
func (t HostTest) Cells() Cells {
	return Cells{"id": t.ID, "node": t.Node, "status": State{[]string{string(t.Status)}, spec.Words(HostTestStatuses)}, "created_at": t.CreatedAt, "principal": t.Principal}
}

// Step returns the step of a name, or nil if the test did not get to it.
func (t HostTest) Step(name string) *HostTestStep {
	if at := slices.IndexFunc(t.Steps, func(s HostTestStep) bool { return s.Name == name }); at >= 0 {
		return &t.Steps[at]
	}
	return nil
}

// Proves reports whether a step passed and nothing is known to have changed since.
func (t HostTest) Proves(name string) bool {
	s := t.Step(name)
	return s != nil && s.Result == StepPassed && t.Outdated == ""
}

// Check returns what a check of the host says about the test.
func (t HostTest) Check() Check {
	c := Check{Node: t.Node, Name: "test", Level: "warn", Remedy: string(ProveHost)}
	at := t.EndedAt.UTC().Format("2006-01-02 15:04 UTC")
	named := func(r StepResult) string {
		var names []string
		for _, s := range t.Steps {
			if s.Result == r {
				names = append(names, s.Name)
			}
		}
		return strings.Join(names, ", ")
	}
	skipped := named(StepSkipped)
	if skipped != "" {
		skipped = "; not tested: " + skipped
	}
	switch {
	case t.Status == HostTestRunning:
		c.Level, c.Text, c.Remedy = "ok", "a test of this host is running", ""
	case t.Outdated != "":
		c.Text = fmt.Sprintf("the test of %s no longer holds: %s", at, t.Outdated)
	case t.Status == HostTestPassed:
		c.Level, c.Text, c.Remedy = "ok", fmt.Sprintf("passed on %s: %s%s", at, named(StepPassed), skipped), ""
	default:
		c.Text = fmt.Sprintf("%s on %s: %s%s", t.Status, at, cutNone(named(StepFailed)), skipped)
	}
	return c
}

func cutNone(names string) string {
	if names == "" {
		return "before its end"
	}
	return names
}

// HostTests are the operations on tests of the host.
type HostTests interface {
	// TestHost starts a test of a node: VMs of the template in use, which expire by themselves, go
	// through everything that VMs can do and are removed at the end. It returns once the test is stored.
	TestHost(ctx context.Context, spec HostTestSpec) (HostTest, error)
	// HostTests returns the running tests, and the last of each node, storage and kind.
	HostTests(ctx context.Context) ([]HostTest, error)
	// CancelHostTest ends a test and removes what it created. The test runs until it notices.
	CancelHostTest(ctx context.Context, id string) (HostTest, error)
}
