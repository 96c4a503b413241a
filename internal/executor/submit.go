package executor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// Submit checks the submission, stores the job and returns at once. For an idempotency
// key used before it returns the first job, if that was submitted with the same
// manifest.
func (e *Executor) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	s.Kind = cmp.Or(s.Kind, job.KindTask)
	s.Principal, _ = job.PrincipalFrom(ctx)
	if err := job.CheckKey(s.IdempotencyKey); err != nil {
		return job.Job{}, err
	}
	digest, err := submissionDigest(s)
	if err != nil {
		return job.Job{}, err
	}
	m, err := e.complete(ctx, s)
	if err != nil {
		return job.Job{}, err
	}
	owner, shared := s.Principal.Owner(), ""
	key := scopedKey(owner, s.IdempotencyKey)
	if m.VM != "" || e.o.Admit != nil { // others decide nothing, and can be stored side by side
		d, err := e.access.decide(ctx)
		if err != nil {
			return job.Job{}, err
		}
		defer d.end()
		if first, err := e.o.Jobs.Submitted(ctx, key); !errors.Is(err, job.ErrNotFound) {
			return sameSubmission(first, digest, err)
		}
		if shared, err = e.enterable(ctx, d, s, m); err != nil {
			return job.Job{}, err
		}
		if err := e.admit(ctx, s, m); err != nil {
			return job.Job{}, err
		}
	}
	if e.o.Spare != nil {
		if err := e.o.Spare(); err != nil {
			return job.Job{}, fmt.Errorf("no job is accepted: %w", err)
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return job.Job{}, fmt.Errorf("create a job ID: %w", err)
	}
	j := job.Job{ID: id.String(), Kind: s.Kind, Client: s.Client, Principal: owner, TokenID: s.Principal.Token, SharedVM: shared, Manifest: m, Status: job.Pending, CreatedAt: now(), Submission: digest}
	j, created, err := e.o.Jobs.Insert(ctx, j, key, s.Principal.Limits)
	var over *job.FieldError
	if errors.As(err, &over) {
		return job.Job{}, over
	}
	if err != nil {
		e.recheckStore() // it may be stored nevertheless
		return job.Job{}, fmt.Errorf("store the job: %w", err)
	}
	if !created {
		return sameSubmission(j, digest, nil)
	}
	e.o.Log.Info("job submitted", "job_id", j.ID, "kind", j.Kind, "client", j.Client)
	e.enqueue(j)
	return j, nil
}

// submissionDigest distinguishes submissions with an idempotency key by everything that
// defines the job: its kind, and its manifest with the files' contents.
func submissionDigest(s job.Submission) (string, error) {
	if s.IdempotencyKey == "" {
		return "", nil
	}
	hash := sha256.New()
	err := json.NewEncoder(hash).Encode(job.Submission{Kind: s.Kind, Manifest: s.Manifest})
	return hex.EncodeToString(hash.Sum(nil)), err
}

// sameSubmission returns the job first submitted with a key; an error if its digest
// differs.
func sameSubmission(first job.Job, digest string, err error) (job.Job, error) {
	if err != nil || first.Submission == digest {
		return first, err
	}
	return job.Job{}, &job.FieldError{
		Field: "idempotency_key", Problem: "was used for another submission, job " + first.ID,
		Remedy: "use a new key for a new job; a key returns its job again only for the same manifest",
	}
}

// enterable returns the ID, in its marker, of the VM that the manifest names, empty if it names none;
// an error if that VM does not accept the job, or is on a network that its client may
// not use.
func (e *Executor) enterable(ctx context.Context, d decision, s job.Submission, m job.Manifest) (id string, err error) {
	if m.VM == "" {
		return "", nil
	}
	kept, err := e.openVM(ctx, d, m.VM)
	if err != nil {
		return "", err
	}
	if e.o.Allow != nil {
		there := job.Manifest{Network: vm.Network{Bridge: kept.Network.Bridge, VLAN: kept.Network.VLAN}}
		if err := e.o.Allow(job.Submission{Kind: job.KindVM, Client: s.Client, Principal: s.Principal, Manifest: there}); err != nil {
			return "", fmt.Errorf("vm: %q is on a network that this client may not choose: %w", kept.Name, err)
		}
	}
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return "", err
	}
	if jobs := sharers(begun, kept); len(jobs) >= maxShared {
		return "", &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("%q has %d jobs, which is the limit", kept.Name, len(jobs)),
			Remedy: "wait for one to end, or use another VM",
		}
	}
	secrets, err := e.secrets(s.Principal.Owner(), m)
	if err == nil && len(secrets) > 0 {
		err = pinned(kept)
	}
	return kept.Job, err
}

// admit returns an error if the client may not have one more job, of this manifest.
func (e *Executor) admit(ctx context.Context, s job.Submission, m job.Manifest) error {
	if e.o.Admit == nil {
		return nil
	}
	has, err := e.o.Jobs.OfClient(ctx, s.Principal.Owner(), s.Client)
	if err != nil {
		return err
	}
	return e.o.Admit(has, m)
}

// complete checks a submission, including whether it is allowed, and returns its
// manifest with every default.
func (e *Executor) complete(ctx context.Context, s job.Submission) (job.Manifest, error) {
	m := s.Manifest
	switch s.Kind {
	case job.KindTask:
	case job.KindVM:
		m.Task, m.AgentType, m.Lifecycle = "create VM "+m.VMName, job.AgentScript, vm.Persistent
	default:
		return m, &job.FieldError{Field: "kind", Problem: fmt.Sprintf("%q is unknown", s.Kind), Remedy: "use task or vm"}
	}
	if err := m.Validate(); err != nil {
		return m, err
	}
	m = m.WithDefaults(e.o.Defaults)
	if err := m.Validate(); err != nil {
		return m, fmt.Errorf("a configured default is wrong: %w", err)
	}
	if e.o.Allow != nil {
		s.Manifest = m
		if err := e.o.Allow(s); err != nil {
			return m, err
		}
	}
	if _, err := e.secrets(s.Principal.Owner(), m); err != nil {
		return m, err
	}
	m, err := e.withKey(s.Principal, m)
	if err != nil {
		return m, err
	}
	return m, e.fits(ctx, m)
}
