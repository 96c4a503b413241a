package job

import (
	"strings"
	"testing"
	"time"

	"linus/internal/vm"
)

// The whole life of a job, every pair decided by hand: a row is the status
// now, a column the one that may follow (x).
const life = `
               pending provisioning running success failed timeout
pending        .       x            .       .       x      .
provisioning   .       .            x       .       x      .
running        .       .            .       x       x      x
success        .       .            .       .       .      .
failed         .       .            .       .       .      .
timeout        .       .            .       .       .      .
`

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pairs returns every pair of a picture of all states, and whether it is allowed.
func pairs[S ~string](t *testing.T, picture string, all []S) map[[2]S]bool {
	t.Helper()
	rows := strings.Split(strings.TrimSpace(picture), "\n")
	columns := strings.Fields(rows[0])
	decided := map[[2]S]bool{}
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		for i, to := range columns {
			decided[[2]S{S(cells[0]), S(to)}] = cells[i+1] == "x"
		}
	}
	if want := len(all) * len(all); len(decided) != want {
		t.Fatalf("the picture decides %d pairs of %d", len(decided), want)
	}
	return decided
}

func TestStatus_EveryPairIsDecided(t *testing.T) {
	decided := pairs(t, life, Statuses)
	for _, from := range Statuses {
		for _, to := range Statuses {
			want, ok := decided[[2]Status{from, to}]
			if !ok {
				t.Fatalf("%s to %s is not in the picture", from, to)
			}
			if got := from.CanBecome(to); got != want {
				t.Errorf("%s can become %s: %v, want %v", from, to, got, want)
			}
			j := Job{ID: "j", Status: from}
			err := j.Become(to)
			if (err == nil) != want {
				t.Errorf("%s becomes %s: %v", from, to, err)
			}
			if want && j.Status != to || !want && j.Status != from {
				t.Errorf("after %s became %s: %s", from, to, j.Status)
			}
		}
	}
}

func TestStatus_UnknownOnesGoNowhere(t *testing.T) {
	for _, unknown := range []Status{"", "cancelled", "killed", "Running"} {
		if unknown.Valid() || unknown.Terminal() {
			t.Errorf("%q: valid %v, terminal %v", unknown, unknown.Valid(), unknown.Terminal())
		}
		for _, s := range Statuses {
			if unknown.CanBecome(s) || s.CanBecome(unknown) {
				t.Errorf("%q and %s follow each other", unknown, s)
			}
		}
	}
}

func TestStatus_TerminalIsWhereNothingFollows(t *testing.T) {
	decided := pairs(t, life, Statuses)
	for _, from := range Statuses {
		follows := false
		for _, to := range Statuses {
			follows = follows || decided[[2]Status{from, to}]
		}
		if from.Terminal() == follows || !from.Valid() {
			t.Errorf("%s: terminal %v, valid %v", from, from.Terminal(), from.Valid())
		}
	}
}

func TestBecome_SaysWhatIsInTheWay(t *testing.T) {
	j := Job{ID: "j1", Status: Success}
	err := j.Become(Running)
	if err == nil || err.Error() != "job j1 cannot become running: it is success" {
		t.Error(err)
	}
}

func TestDecide_FirstWins(t *testing.T) {
	first := Outcome{Status: Failed, Reason: ReasonCancelled, At: at}
	later := Outcome{Status: Success, Reason: ReasonExitStatus, At: at.Add(time.Second)}
	j := Job{Status: Running}
	if !j.Decide(first) {
		t.Fatal("the first did not win")
	}
	for range 2 {
		if j.Decide(later) || *j.Outcome != first {
			t.Fatalf("a later outcome won: %+v", j.Outcome)
		}
	}
	if j.Status != Running {
		t.Errorf("deciding made the job %s", j.Status)
	}
}

func TestDecide_NotAfterTheEnd(t *testing.T) {
	for _, s := range Statuses {
		j := Job{Status: s}
		if got := j.Decide(Outcome{Status: Failed}); got == s.Terminal() || (j.Outcome != nil) != got {
			t.Errorf("%s: decided %v, outcome %v", s, got, j.Outcome)
		}
	}
}

func TestFinish(t *testing.T) {
	tests := []struct {
		name    string
		status  Status
		outcome *Outcome
		want    Status
		err     string
	}{
		{"success", Running, &Outcome{Status: Success}, Success, ""},
		{"failed while running", Running, &Outcome{Status: Failed}, Failed, ""},
		{"timeout", Running, &Outcome{Status: Timeout}, Timeout, ""},
		{"failed before anything began", Pending, &Outcome{Status: Failed}, Failed, ""},
		{"failed while provisioning", Provisioning, &Outcome{Status: Failed}, Failed, ""},
		{"nothing decided", Running, nil, Running, "nothing has decided"},
		{"success without having run", Provisioning, &Outcome{Status: Success}, Provisioning, "cannot become success"},
		{"twice", Failed, &Outcome{Status: Failed}, Failed, "cannot become failed"},
		{"an outcome that is no end", Provisioning, &Outcome{Status: Running}, Provisioning, "not a terminal status"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := Job{ID: "j", Status: tt.status, Outcome: tt.outcome}
			err := j.Finish(at)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
			if j.Status != tt.want || j.CompletedAt.IsZero() != (tt.err != "") {
				t.Errorf("status %s, completed at %v", j.Status, j.CompletedAt)
			}
		})
	}
}

func TestDone(t *testing.T) {
	v := func(s vm.State) *vm.VM { return &vm.VM{State: s} }
	tests := []struct {
		name      string
		status    Status
		vm        *vm.VM
		lifecycle vm.Lifecycle
		want      bool
	}{
		{"running", Running, v(vm.Created), vm.Ephemeral, false},
		{"pending without a VM", Pending, nil, vm.Ephemeral, false},
		{"ended, never had a VM", Failed, nil, vm.Ephemeral, true},
		{"ended, VM perhaps there", Failed, v(vm.Intended), vm.Ephemeral, false},
		{"ended, VM there", Success, v(vm.Created), vm.Ephemeral, false},
		{"ended, VM gone", Timeout, v(vm.Destroyed), vm.Ephemeral, true},
		{"persistent, running", Running, v(vm.Created), vm.Persistent, false},
		{"persistent, ended, VM goes on", Success, &vm.VM{State: vm.Created, Kept: true}, vm.Persistent, true},
		{"ended, VM of another that goes on", Success, &vm.VM{Job: "another", State: vm.Created, Kept: true}, vm.Ephemeral, false},
		{"persistent, just ended", Success, v(vm.Created), vm.Persistent, false},
		{"persistent, ended, VM was never made", Failed, v(vm.Intended), vm.Persistent, false},
		{"persistent, VM gone", Success, v(vm.Destroyed), vm.Persistent, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := Job{Status: tt.status, VM: tt.vm, Manifest: Manifest{Lifecycle: tt.lifecycle}}
			if got := j.Done(); got != tt.want || got != j.Finished() {
				t.Errorf("done %v, finished %v", got, j.Finished())
			}
			if j.VM != nil && j.VM.Kept && tt.want {
				j.VM.Unwanted = true
				if j.Done() || !j.Finished() {
					t.Error("while its VM is destroyed, something happens, which is not the job's")
				}
			}
		})
	}
}

func TestTaskHead(t *testing.T) {
	for name, tt := range map[string]struct{ task, want string }{
		"short":      {"echo", "echo"},
		"100":        {strings.Repeat("a", 100), strings.Repeat("a", 100)},
		"101":        {strings.Repeat("a", 101), strings.Repeat("a", 100)},
		"wide runes": {strings.Repeat("ü", 101), strings.Repeat("ü", 100)},
		"a run's":    {"exec -- /tmp/linus-run-AB27/run " + strings.Repeat("a", 100), "exec -- " + strings.Repeat("a", 92)},
	} {
		if got := TaskHead(tt.task); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestErrors_SayWhatToDo(t *testing.T) {
	for want, err := range map[string]error{
		"limit: 0 is out of range; give 1 to 200": &FieldError{Field: "limit", Problem: "0 is out of range", Remedy: "give 1 to 200"},
		"limit: 0 is out of range":                &FieldError{Field: "limit", Problem: "0 is out of range"},
		"a: x\nb: y; z":                           &InvalidError{Fields: []*FieldError{{Field: "a", Problem: "x"}, {Field: "b", Problem: "y", Remedy: "z"}}},
		"Job not complete. Status: running":       &NotCompleteError{Status: Running},
		"create VM on root@pve:22: no space; add a disk": &HostError{
			Op: "create VM", Host: "root@pve:22", Class: HostVM, Text: "no space", Remedy: "add a disk",
		},
		"create VM on root@pve:22: no space": &HostError{Op: "create VM", Host: "root@pve:22", Text: "no space"},
		"Job not found":                      ErrNotFound,
		"Job already completed":              ErrCompleted,
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTitle(t *testing.T) {
	for name, tt := range map[string]struct{ task, want string }{
		"a command's":     {"exec -- uname -a\n", "uname -a"},
		"a script's":      {"\nset -e\nmake", "set -e\nmake"},
		"exec elsewhere":  {"echo exec -- x", "echo exec -- x"},
		"fits":            {strings.Repeat("ü", 80), strings.Repeat("ü", 80)},
		"too long":        {strings.Repeat("ü", 81), strings.Repeat("ü", 79) + "…"},
		"of a cut head":   {TaskHead("exec -- " + strings.Repeat("a", 200)), strings.Repeat("a", 79) + "…"},
		"cut at a blank":  {strings.Repeat("a", 78) + " bcd", strings.Repeat("a", 78) + "…"},
		"nothing to show": {"", ""},
		"a run's":         {"exec -- /tmp/linus-run-AB27/run ./tests.sh 'a b'\n", "./tests.sh 'a b'"},
		"no run's":        {"exec -- /tmp/linus-run-my/run x\n", "/tmp/linus-run-my/run x"},
		"nor this":        {"/tmp/linus-run-AB27/run x\n", "/tmp/linus-run-AB27/run x"},
	} {
		if got := Title(tt.task); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestOffered_LeavesOutWhatARunAdds(t *testing.T) {
	j := Job{Artifacts: []Artifact{{Path: RunKept + "app-1/A.changes.tgz"}, {Path: "linus-run/app-1/dist/x"}, {Path: "x"}}}
	j.ArtifactsSkipped = []SkippedArtifact{{Path: RunKept + "app-1/A.changes.tgz"}, {Path: "y"}}
	j.ArtifactsSkippedCount = 60
	o := Offered(j).(Job)
	if w := Offered(WatchedJob{Job: j}).(WatchedJob).Job; len(w.Artifacts) != 2 || w.ArtifactsSkippedCount != 59 {
		t.Errorf("watched: %+v", w)
	}
	if r := Offered(Result{SkippedArtifacts: j.SkippedArtifacts}).(Result); len(r.ArtifactsSkipped) != 1 || r.ArtifactsSkippedCount != 59 {
		t.Errorf("the result: %+v", r)
	}
	if len(o.Artifacts) != 2 || o.Artifacts[0].Path != "linus-run/app-1/dist/x" || len(o.ArtifactsSkipped) != 1 || o.ArtifactsSkipped[0].Path != "y" || o.ArtifactsSkippedCount != 59 {
		t.Errorf("offered: %+v", o)
	}
	if len(j.Artifacts) != 3 || j.Artifacts[0].Path == o.Artifacts[0].Path || len(j.ArtifactsSkipped) != 2 {
		t.Errorf("the job itself: %+v", j)
	}
}
