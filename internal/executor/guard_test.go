package executor_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/verbtest"
	"linus/internal/vm"
)

// as returns a context in which a principal makes its requests.
func as(t *testing.T, name string, role job.Role) context.Context {
	return job.WithPrincipal(t.Context(), job.Principal{Name: name, Role: role})
}

// call calls a verb about what ref names, and returns its error.
func call(ctx context.Context, e job.Engine, v *job.Verb, ref string) error {
	_, err := v.Do(ctx, e, verbtest.About(v, ref))
	return err
}

func TestGuard_RefusesEveryVerbWithoutAPrincipal(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	for _, v := range job.Verbs() {
		if err := call(t.Context(), e, v, "x"); !errors.Is(err, job.ErrNoPrincipal) {
			t.Errorf("%s without a principal: %v", v.Name, err)
		}
	}
}

func TestGuard_RefusesWhatTheRoleDoesNotInclude(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	for _, v := range job.Verbs() {
		for _, role := range append([]job.Role{"", "root"}, job.Roles...) {
			var denied *job.DeniedError
			err := call(as(t, "alice", role), e, v, "x")
			if got := errors.As(err, &denied); got == role.Includes(v.Role) {
				t.Errorf("%s as %q: denied %v, %v", v.Name, role, got, err)
			}
		}
	}
}

func TestGuard_RefusesWhatIsInOtherToolsets(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	for _, v := range job.Verbs() {
		if len(v.Toolsets) == 0 {
			t.Errorf("%s is in no toolset", v.Name)
		}
		for _, set := range job.TokenToolsets {
			ctx := job.WithPrincipal(t.Context(), job.Principal{Name: "alice", Role: job.RoleAdmin, Toolsets: []string{set}})
			var narrowed *job.NarrowedError
			err := call(ctx, e, v, "x")
			want := !slices.Contains(v.Toolsets, set)
			if got := errors.As(err, &narrowed); got != want {
				t.Errorf("%s with toolset %s: narrowed %v, %v", v.Name, set, got, err)
			}
		}
	}
}

// A verb about several things, or about a new one, has an input that the guard knows how to
// narrow.
func TestGuard_KnowsHowToNarrowEveryInput(t *testing.T) {
	known := map[job.Subject][]reflect.Type{
		job.OfJobs: {reflect.TypeFor[job.Filter](), reflect.TypeFor[job.UsageQuery]()},
		job.OfNew:  {reflect.TypeFor[job.Submission]()},
		job.OfVMs:  {reflect.TypeFor[job.None]()}, // the executor shows the caller's
	}
	for _, v := range job.Verbs() {
		if of, limited := known[v.Of]; limited && !slices.Contains(of, v.In) {
			t.Errorf("%s has %v, which guard.call does not narrow to what the caller may see", v.Name, v.In)
		}
	}
}

func TestGuard_AnothersDoesNotExist(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("hi\n")})}, true)
	e := executor.Guarded(r.Executor)
	id := r.submitAs(as(t, "alice", job.RoleRun), func(m *job.Manifest) { m.Lifecycle, m.VMName = vm.Persistent, "dev" })
	r.wait(id)
	bob := as(t, "bob", job.RoleRun)
	for _, v := range job.Verbs() {
		var refs [][2]string // of another's, and of one that does not exist
		if v.Of == job.OfVM || v.Of == job.OfFile {
			refs = append(refs, [2]string{"dev", "nix"})
		}
		if v.Of == job.OfJob || v.Of == job.OfFile { // a job stands for its VM
			refs = append(refs, [2]string{id, "019aa000-0000-7000-8000-000000000000"})
		}
		for _, ref := range refs {
			got, want := call(bob, e, v, ref[0]), call(bob, e, v, ref[1])
			if textWithout(got, ref[0]) != textWithout(want, ref[1]) || reflect.TypeOf(got) != reflect.TypeOf(want) {
				t.Errorf("%s: another's is %v, one that does not exist is %v", v.Name, got, want)
			}
		}
	}
	for _, ref := range []string{id, "019aa000-0000-7000-8000-000000000000"} {
		if killed, err := e.Kill(bob, ref, ""); killed != job.KillNotFound || err != nil {
			t.Errorf("killing %s: %q, %v", ref, killed, err)
		}
		_, err := e.Kill(bob, ref, "NONE")
		refusal(t, err, "is unknown")
	}
	jobs, err := e.List(bob, job.Filter{})
	vms, vmErr := e.VMs(bob)
	if err != nil || vmErr != nil || len(jobs.Jobs) != 0 || len(vms) != 0 {
		t.Errorf("lists show %+v and %+v; %v, %v", jobs.Jobs, vms, err, vmErr)
	}
	for _, of := range []struct {
		who   context.Context
		asked string
		want  int
	}{{as(t, "alice", job.RoleRead), "bob", 0}, {as(t, "alice", job.RoleRead), "alice", 1}, {bob, "alice", 0}, {as(t, "carol", job.RoleAdmin), "alice", 1}, {as(t, "carol", job.RoleAdmin), "bob", 0}} {
		page, err := e.List(of.who, job.Filter{Principal: of.asked})
		if err != nil || len(page.Jobs) != of.want {
			t.Errorf("asked for %s's: %d listed, want %d; %v", of.asked, len(page.Jobs), of.want, err)
		}
	}
	for who, ctx := range map[string]context.Context{"the owner": as(t, "alice", job.RoleRead), "an admin": as(t, "carol", job.RoleAdmin)} {
		jobs, err := e.List(ctx, job.Filter{})
		vms, vmErr := e.VMs(ctx)
		if err != nil || vmErr != nil || len(jobs.Jobs) != 1 || len(vms) != 1 || jobs.Jobs[0].Principal != "alice" || vms[0].Principal != "alice" {
			t.Errorf("lists of %s show %+v and %+v; %v, %v", who, jobs.Jobs, vms, err, vmErr)
		}
	}
}

// textWithout returns an error's text without what it is about.
func textWithout(err error, ref string) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), ref, "REF")
}

// submitAs is submit on behalf of a principal.
func (r *rig) submitAs(ctx context.Context, change ...func(*job.Manifest)) string {
	r.t.Helper()
	m := job.Manifest{Task: "echo hello", AgentType: job.AgentScript}
	for _, c := range change {
		c(&m)
	}
	j, err := executor.Guarded(r.Executor).Submit(ctx, job.Submission{Manifest: m})
	if err != nil {
		r.t.Fatal(err)
	}
	return j.ID
}

func TestGuard_KeysBelongToAPrincipal(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	s := job.Submission{Manifest: job.Manifest{Task: "echo hello", AgentType: job.AgentScript}, IdempotencyKey: "k"}
	ids := map[string]string{}
	for _, name := range []string{"alice", "bob", job.OperatorName, "alice"} {
		j, err := e.Submit(as(t, name, job.RoleAdmin), s)
		if err != nil {
			t.Fatal(err)
		}
		if first := ids[name]; first != "" && first != j.ID {
			t.Errorf("the key of %s returned %s, then %s", name, first, j.ID)
		}
		ids[name] = j.ID
	}
	if ids["alice"] == ids["bob"] || ids["alice"] == ids[job.OperatorName] || ids["bob"] == ids[job.OperatorName] {
		t.Errorf("principals share jobs by a key: %v", ids)
	}
}

func TestGuard_ANameTakenByAnotherSaysNoMore(t *testing.T) {
	r := newRig(t, 2)
	r.behave(providertest.Behaviour{}, true)
	dev := func(m *job.Manifest) { m.Lifecycle, m.VMName = vm.Persistent, "dev" }
	first := r.wait(r.submitAs(as(t, "alice", job.RoleRun), dev))
	j := r.wait(r.submitAs(as(t, "bob", job.RoleRun), dev))
	if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, `the name "dev" is taken`) {
		t.Fatalf("second VM of the name: %+v", j.Outcome)
	}
	for what, secret := range map[string]string{"the job": first.ID, "the VM": strconv.Itoa(first.VM.ID), "the owner": "alice"} {
		if strings.Contains(j.Outcome.Error, secret) {
			t.Errorf("%s is in %q", what, j.Outcome.Error)
		}
	}
}

func TestGuard_AJobEntersOnlyTheVMItWasSubmittedFor(t *testing.T) {
	r := newRig(t, 2)
	r.behave(providertest.Behaviour{}, true)
	alice := as(t, "alice", job.RoleRun)
	r.wait(r.submitAs(alice, func(m *job.Manifest) { m.Lifecycle, m.VMName = vm.Persistent, "dev" }))
	_, err := executor.Guarded(r.Executor).Submit(as(t, "bob", job.RoleRun), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: "dev"}})
	refusal(t, err, "is not a VM of ours")

	shared := r.wait(r.submitAs(alice, sharing("dev")))
	m, err := r.store.Manifest(t.Context(), shared.ID)
	if err != nil || shared.Status != job.Success {
		t.Fatal(shared.Outcome, err)
	}
	late, _, err := r.store.Insert(t.Context(), job.Job{ // bob had a VM of that name when he submitted it
		ID: "019aa000-0000-7000-8000-000000000001", Kind: job.KindTask, Status: job.Pending, CreatedAt: time.Now(), Manifest: m,
		Principal: "bob", SharedVM: "019aa000-0000-7000-8000-000000000000",
	}, "", job.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.restart()
	if j := r.wait(late.ID); j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "no longer the VM that this job was submitted for") {
		t.Errorf("the job in another's VM: %+v", j.Outcome)
	}
}

func TestGuard_APoolsVMBelongsToWhoHasIt(t *testing.T) {
	r := newRig(t, 2)
	hold := make(chan struct{})
	r.behave(providertest.Behaviour{}, true)
	r.newPool(1)
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	alice, bob := as(t, "alice", job.RoleRun), as(t, "bob", job.RoleRun)
	j := r.until(r.submitAs(alice), func(j job.Job) bool { return j.Status == job.Running })
	e := executor.Guarded(r.Executor)
	ref := strconv.Itoa(j.VM.ID)
	own, err := e.VM(alice, ref)
	if err != nil || own.Principal != "alice" || j.VM.Source != vm.FromPool {
		t.Errorf("her VM %+v, %v", own, err)
	}
	if _, err := e.VM(bob, ref); err == nil {
		t.Error("another sees it")
	}
	if vms, err := e.VMs(alice); err != nil || len(vms) != 1 {
		t.Errorf("her VMs: %+v, %v; the pool's idle ones are not among them", vms, err)
	}
	close(hold)
	r.wait(j.ID)
	r.removePool()
}

func TestGuard_LimitsOfClientsAreNotSharedBetweenPrincipals(t *testing.T) {
	r := newRig(t, 2)
	r.stop()
	r.vms.Admit = func(has []job.Job, _ job.Manifest) error {
		if len(has) > 0 {
			return errors.New("one at a time")
		}
		return nil
	}
	r.restart()
	hold := make(chan struct{})
	defer close(hold)
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	e := executor.Guarded(r.Executor)
	submit := func(name, client string) error {
		_, err := e.Submit(as(t, name, job.RoleRun), job.Submission{Client: client, Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}})
		return err
	}
	if err := submit("alice", "mcp:a"); err != nil {
		t.Fatal(err)
	}
	if err := submit("alice", "mcp:b"); err == nil {
		t.Error("a principal has the limits of a client once more under another name")
	}
	if err := submit("bob", "mcp:a"); err != nil {
		t.Errorf("bob is limited by what alice has: %v", err)
	}
}
