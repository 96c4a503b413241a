package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// Submit checks the submission, stores the job and returns at once. For an idempotency key that was
// used before it returns the first job, if that had the same manifest.
func (e *Executor) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	s.Principal, _ = job.PrincipalFrom(ctx)
	if err := job.CheckKey(s.IdempotencyKey); err != nil {
		return job.Job{}, err
	}
	if err := s.CheckSession(); err != nil {
		return job.Job{}, err
	}
	digest, err := s.Digest()
	if err != nil {
		return job.Job{}, err
	}
	m, err := e.complete(ctx, s)
	if err != nil {
		return job.Job{}, err
	}
	owner, shared := s.Principal.Owner(), ""
	key := s.Principal.Key(s.IdempotencyKey)
	var down error
	if m.VM != "" {
		down = e.o.Fleet.Runs(ctx, m.VM) // before the decision, which others wait for: this may ask the host
	}
	if m.VM != "" || e.o.Fleet.Limited() { // other jobs decide nothing, and can be stored concurrently
		end, err := e.o.Fleet.Decide(ctx)
		if err != nil {
			return job.Job{}, err
		}
		defer end()
		if first, err := e.o.Jobs.Submitted(ctx, key); !errors.Is(err, job.ErrNotFound) {
			if err != nil {
				return job.Job{}, err
			}
			return first.Same(digest)
		}
		if down != nil {
			return job.Job{}, down
		}
		if shared, err = e.enterable(ctx, s, m); err != nil {
			return job.Job{}, err
		}
	}
	if !m.FansOut() {
		if err := e.o.Fleet.Admit(ctx, s, m); err != nil {
			return job.Job{}, err
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return job.Job{}, fmt.Errorf("create a job ID: %w", err)
	}
	j := job.Job{ID: id.String(), Kind: job.KindTask, Client: s.Client, Principal: owner, TokenID: s.Principal.Token, SharedVM: shared, Manifest: m, Session: s.Session, Schedule: s.Schedule, Status: job.Pending, CreatedAt: now(), Submission: digest}
	var children []job.Job
	if m.FansOut() {
		if j, children, err = e.withChildren(ctx, s, j); err != nil {
			return job.Job{}, err
		}
	}
	j, created, err := e.o.Jobs.Insert(ctx, j, key, s.Principal.Limits, children...)
	if over, ok := errors.AsType[*job.FieldError](err); ok {
		return job.Job{}, over
	}
	if err != nil {
		e.recheckStore() // it may be stored nevertheless
		return job.Job{}, fmt.Errorf("store the job: %w", err)
	}
	if !created {
		return j.Same(digest)
	}
	e.o.Log.Info("job submitted", "job_id", j.ID, "client", j.Client)
	e.enqueue(j)
	for _, c := range children {
		e.enqueue(c)
	}
	return j, nil
}

// enterable returns the marker ID of the VM that the manifest names, empty if it names none. It
// returns an error if that VM does not accept the job, or is on a network that the client may not use.
func (e *Executor) enterable(ctx context.Context, s job.Submission, m job.Manifest) (id string, err error) {
	if m.VM == "" {
		return "", nil
	}
	kept, err := e.o.Fleet.Enter(ctx, m.VM)
	if err != nil {
		return "", err
	}
	if e.o.Allow != nil {
		there := job.Manifest{Network: vm.Network{Bridge: kept.Network.Bridge, VLAN: kept.Network.VLAN}}
		if err := e.o.Allow(job.Submission{Client: s.Client, Principal: s.Principal, Manifest: there}); err != nil {
			return "", fmt.Errorf("vm: %q is on a network that this client may not choose: %w", kept.Name, err)
		}
	}
	secrets, err := e.secrets(ctx, s.Principal.Owner(), m)
	if err == nil && len(secrets)+len(m.Credentials) > 0 {
		err = job.Pinned(kept)
	}
	if err == nil {
		err = reachable(m, kept.Network)
	}
	return kept.Job, err
}

// complete is completed for Submit's input: for a parent, the children are checked instead.
func (e *Executor) complete(ctx context.Context, s job.Submission) (job.Manifest, error) {
	if s.Manifest.FansOut() {
		return s.Manifest.Complete(e.o.Defaults)
	}
	return e.completed(ctx, s)
}

// completed checks a submission, including whether it is allowed, and returns its manifest with
// every default.
func (e *Executor) completed(ctx context.Context, s job.Submission) (job.Manifest, error) {
	m, err := s.Manifest.WithoutKeyCredential().Complete(e.o.Defaults)
	if err != nil {
		return m, err
	}
	if e.o.Allow != nil {
		s.Manifest = m
		if err := e.o.Allow(s); err != nil {
			return m, err
		}
	}
	if _, err := e.secrets(ctx, s.Principal.Owner(), m); err != nil {
		return m, err
	}
	if err := e.checkCredentials(ctx, m); err != nil {
		return m, err
	}
	if err := e.checkRepository(ctx, m); err != nil {
		return m, err
	}
	if m, err = e.withKey(ctx, s.Principal, m); err != nil {
		return m, err
	}
	return m, e.o.Fleet.Fits(ctx, m)
}

// Plan returns what creating the submission's VM would do. It changes nothing.
func (e *Executor) Plan(ctx context.Context, s job.Submission) ([]string, error) {
	s.Principal, _ = job.PrincipalFrom(ctx)
	if s.Manifest.VMName != "" && strings.TrimSpace(s.Manifest.Task) == "" {
		return e.o.Fleet.PlanVM(ctx, s)
	}
	m, err := e.complete(ctx, s)
	if err != nil {
		return nil, err
	}
	if m.FansOut() {
		variants, err := s.Manifest.Variants() // the first stands for all
		if err != nil {
			return nil, err
		}
		if m, err = e.completed(ctx, job.Submission{Manifest: variants[0].Manifest, Client: s.Client, Principal: s.Principal}); err != nil {
			return nil, err
		}
	}
	return e.o.Fleet.Plan(ctx, m, s.Principal.Owner())
}
