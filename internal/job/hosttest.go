package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	spec "linus/internal/field"
)

// HostTestLabel is the label of all that a test of the host makes: the test's ID.
const HostTestLabel = "linus-host-test"

// HostFacts are what a test of a node was true of: with another Proxmox, storage or template it
// says nothing any more.
type HostFacts struct {
	Node     string `json:"node"`
	Proxmox  string `json:"proxmox"`  // the version of Proxmox VE
	Storage  string `json:"storage"`  // the types of the storages that VMs lie on
	Template string `json:"template"` // the generation of the template in use
}

// Differs says what is otherwise now; empty: nothing.
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
		all = append(all, "the template is another")
	}
	return strings.Join(all, ", ")
}

// HostTestSpec says what is to be tested.
type HostTestSpec struct {
	Node    string `json:"node,omitempty"`    // empty: the one that is asked first
	Storage string `json:"storage,omitempty"` // for the volume; empty: that of volumes. VMs lie where their template does
	Quick   bool   `json:"quick,omitempty"`   // boot, job, cancel and destroy alone
}

// HostTestStatus is the state of a test.
type HostTestStatus string

// The states.
const (
	HostTestRunning   HostTestStatus = "running"
	HostTestPassed    HostTestStatus = "passed" // what was not possible is skipped
	HostTestFailed    HostTestStatus = "failed"
	HostTestCancelled HostTestStatus = "cancelled"
)

// HostTestStatuses are all of them.
var HostTestStatuses = []HostTestStatus{HostTestRunning, HostTestPassed, HostTestFailed, HostTestCancelled}

// StepResult is how a step of a test has ended.
type StepResult string

// The results.
const (
	StepRunning StepResult = "running"
	StepPassed  StepResult = "passed"
	StepFailed  StepResult = "failed"
	StepSkipped StepResult = "skipped" // it cannot be done there, or what it needs has failed
)

// HostTestStep is a step of a test.
type HostTestStep struct {
	Name    string     `json:"name"`
	Result  StepResult `json:"result"`
	Seconds float64    `json:"seconds"`
	Text    string     `json:"text,omitempty"` // what was seen, or why not
	Remedy  string     `json:"remedy,omitempty"`
}

// Level is that of a check.
func (s HostTestStep) Level() string {
	return map[StepResult]string{StepPassed: "ok", StepFailed: "fail"}[s.Result] + map[StepResult]string{StepSkipped: "warn", StepRunning: "warn"}[s.Result]
}

// HostTest is a test of a node: the whole chain, in VMs that are gone afterwards. The last one of
// each node, storage and kind is kept.
type HostTest struct {
	ID        string         `json:"id"`
	Status    HostTestStatus `json:"status"`
	Quick     bool           `json:"quick,omitempty"`
	Node      string         `json:"node"`
	Storage   string         `json:"storage,omitempty"` // as asked for
	Template  string         `json:"template"`
	Of        HostFacts      `json:"true_of"`
	Outdated  string         `json:"outdated,omitempty"` // why it does not hold any more, as of the last check of the host
	Steps     []HostTestStep `json:"steps"`
	Principal string         `json:"principal,omitempty"` // the name of its owner; empty: the operator
	CreatedAt time.Time      `json:"created_at"`
	EndedAt   time.Time      `json:"ended_at,omitzero"`
}

// Cells are those of a test.
func (t HostTest) Cells() Cells {
	return Cells{"id": t.ID, "node": t.Node, "status": State{[]string{string(t.Status)}, spec.Words(HostTestStatuses)}, "created_at": t.CreatedAt, "principal": t.Principal}
}

// Step returns the step of a name; nil: it was not come to.
func (t HostTest) Step(name string) *HostTestStep {
	if at := slices.IndexFunc(t.Steps, func(s HostTestStep) bool { return s.Name == name }); at >= 0 {
		return &t.Steps[at]
	}
	return nil
}

// Proves reports whether a step has passed and nothing is known to have changed since.
func (t HostTest) Proves(name string) bool {
	s := t.Step(name)
	return s != nil && s.Result == StepPassed && t.Outdated == ""
}

// Check is what a check of the host says of the test.
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
		c.Level, c.Text, c.Remedy = "ok", "a test of this host runs", ""
	case t.Outdated != "":
		c.Text = fmt.Sprintf("the test of %s holds no more: %s", at, t.Outdated)
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
	// TestHost begins a test of a node: VMs of the template in use, that expire by themselves, go
	// through all that VMs can do, and are gone at the end. It returns once that is stored.
	TestHost(ctx context.Context, spec HostTestSpec) (HostTest, error)
	// HostTests returns those that run, and the last of each node, storage and kind.
	HostTests(ctx context.Context) ([]HostTest, error)
	// CancelHostTest ends a test. What it has made is removed; it runs until that is seen.
	CancelHostTest(ctx context.Context, id string) (HostTest, error)
}
