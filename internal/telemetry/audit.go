package telemetry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"linus/internal/job"
)

// Record is one line of the audit log: the beginning or the end of a change on the host.
type Record struct {
	Time time.Time `json:"time"`
	Who  string    `json:"who"`           // the client that asked; "engine" if none did
	For  string    `json:"for,omitempty"` // the client whose job created the VM, if known

	Principal string `json:"principal,omitempty"` // for whom Who asked, or the engine works
	Token     string `json:"token,omitempty"`     // ID of the token that was used; empty: none

	Action string `json:"action"` // create_vm, destroy_vm, start_vm, ..., build_template
	Job    string `json:"job_id,omitempty"`
	VMID   int    `json:"vm_id,omitempty"` // 0 if it was never known
	VMName string `json:"vm_name,omitempty"`
	Node   string `json:"node,omitempty"`
	Detail string `json:"detail,omitempty"` // a snapshot's name, or the source of a new VM
	Pool   string `json:"pool,omitempty"`   // the changed pool, or the pool whose VM a job claimed

	// Proof is what the host compared, in one locked step, before it changed an existing VM. For a
	// VM that is created it is the new VM's marker.
	Proof *Proof `json:"proof,omitempty"`

	Result   string  `json:"result"` // begun, then ok, refused, foreign, failed or interrupted
	Error    string  `json:"error,omitempty"`
	Duration float64 `json:"duration_seconds,omitempty"`
}

// Proof distinguishes a VM of this installation from any other.
type Proof struct {
	Name  string `json:"name"`
	Job   string `json:"linus-job"`
	Owner string `json:"linus-owner"`
}

// The actions.
const (
	ActionCreate         = "create_vm"
	ActionDestroy        = "destroy_vm"
	ActionForget         = "forget_vm"
	ActionNetwork        = "set_network"
	ActionStart          = "start_vm"
	ActionStop           = "stop_vm"
	ActionSuspend        = "suspend_vm"
	ActionResume         = "resume_vm"
	ActionCheckpoint     = "save_checkpoint"
	ActionSave           = "save_vm"
	ActionCreateVolume   = "create_volume"
	ActionRemoveVolume   = "remove_volume"
	ActionAttachVolume   = "attach_volume"
	ActionDetachVolume   = "detach_volume"
	ActionFork           = "fork_vm"
	ActionEndFork        = "end_fork"
	ActionSnapshot       = "snapshot_vm"
	ActionRevert         = "revert_vm"
	ActionDeleteSnapshot = "delete_snapshot"
	ActionBuildTemplate  = "build_template"
	ActionRemoveTemplate = "remove_template"
	ActionRenameTemplate = "rename_template"
	ActionUninstall      = "uninstall"
	ActionEnter          = "enter_vm"
	ActionCordon         = "cordon_node"
	ActionUncordon       = "uncordon_node"
	ActionCreateToken    = "create_token"
	ActionRevokeToken    = "revoke_token"
	ActionAddCredential  = "create_credential" //nolint:gosec // a name
	ActionDropCredential = "remove_credential" //nolint:gosec // a name
)

// The results.
const (
	ResultBegun       = "begun"
	ResultOK          = "ok"
	ResultRefused     = "refused" // the VM exists, but is not proven: it was left alone
	ResultForeign     = "foreign" // its ID now belongs to another VM, which was not touched: the VM is gone
	ResultFailed      = "failed"
	ResultInterrupted = "interrupted" // the engine stopped; the change continues, and the next engine joins it
)

// engineName is recorded as the client of changes that no client asked for.
const engineName = "engine"

// AuditOptions configure an audit log. Path and Log are required.
type AuditOptions struct {
	Path string // of the file; older ones are Path.1 and so on
	// MaxSize is how large the file may grow, in bytes, before it is renamed; 0: never. Only one
	// process may rename the file, so the others set 0.
	MaxSize int64
	Keep    int // number of renamed files kept; 0: 9
	Log     *slog.Logger

	// Submitter returns who submitted a job; zero if unknown. Nil: always unknown.
	Submitter func(ctx context.Context, jobID string) job.Caller
	// OnEnd is called with the final record of each change; nil: none.
	OnEnd func(Record)
}

// Audit is the log of changes on the host. Several processes may write to one log.
type Audit struct {
	o  AuditOptions
	mu sync.Mutex
}

// NewAudit returns a log. It opens the file at the first record.
func NewAudit(o AuditOptions) *Audit {
	o.Keep = cmp.Or(o.Keep, 9)
	return &Audit{o: o}
}

// Do makes a change and writes a line before and after it. change completes the record with what it learns.
// If the log cannot be written the change is made anyway: VMs must not stay because of a full disk.
func (a *Audit) Do(ctx context.Context, r Record, change func(*Record) error) error {
	r = a.attribute(ctx, r, job.CallerFrom(ctx))
	began := time.Now()
	r.Time, r.Result = began.UTC(), ResultBegun
	a.write(r)
	err := change(&r)
	r.Time, r.Duration = time.Now().UTC(), time.Since(began).Seconds()
	r.Result = resultOf(ctx, err)
	if err != nil {
		r.Error = err.Error()
	}
	a.write(r)
	if a.o.OnEnd != nil {
		a.o.OnEnd(r)
	}
	return err
}

// Change is Do for a change that returns a value.
func Change[T any](ctx context.Context, a *Audit, r Record, change func(*Record) (T, error)) (value T, err error) {
	err = a.Do(ctx, r, func(r *Record) (err error) {
		value, err = change(r)
		return err
	})
	return value, err
}

// attribute completes a record with who asked for the change, and for whose job. What the engine
// does for a job on its own initiative is attributed to the job's submitter.
func (a *Audit) attribute(ctx context.Context, r Record, by job.Caller) Record {
	if a.o.Submitter != nil && r.Job != "" {
		of := a.o.Submitter(ctx, r.Job)
		r.For = of.Client
		if of.Principal != "" && of.Principal != job.OperatorName {
			r.For += " of " + of.Principal
		}
		if by.Principal == "" {
			by.Principal, by.Token = of.Principal, of.Token
		}
	}
	r.Who, r.Principal, r.Token = cmp.Or(by.Client, engineName), by.Principal, by.Token
	return r
}

// Observe records happenings that do not change the host: changes of pools, claims of pool VMs,
// cordons, entries to VMs, and changes of tokens and credentials.
func (a *Audit) Observe(h job.Happening) {
	r := Record{Time: time.Now().UTC(), Result: ResultOK}
	var by job.Caller
	switch h := h.(type) {
	case job.PoolEvent:
		switch h.Kind {
		case job.PoolCreated, job.PoolResized, job.PoolRemoved, job.PoolHit:
		default:
			return
		}
		by = h.By
		r.Action, r.Job, r.VMID, r.VMName, r.Node = string(h.Kind), h.Job, h.VM.ID, h.VM.Name, h.VM.Node
		r.Detail, r.Pool, r.Duration = h.Detail, h.Pool, h.Took.Seconds()
	case job.CordonChange:
		r.Action, r.Node, by = ActionUncordon, h.Node, h.By
		if h.Cordoned {
			r.Action = ActionCordon
		}
	case job.TokenChange:
		r.Action, by = ActionRevokeToken, h.By
		if h.Created {
			r.Action = ActionCreateToken
		}
		r.Detail = fmt.Sprintf("token %s of %s, role %s", h.Token.ID, h.Token.Name, h.Token.Role)
	case job.Entered:
		r.Action, by = ActionEnter, h.By
		r.Job, r.VMID, r.VMName, r.Node, r.Detail = h.VM.Job, h.VM.ID, h.VM.Name, h.VM.Node, h.How
	case job.CredentialChange:
		r.Action, by = ActionDropCredential, h.By
		if h.Created {
			r.Action = ActionAddCredential
		}
		r.Detail = fmt.Sprintf("credential %s for %s%s", h.Credential.Name, h.Credential.Host, h.Credential.Path)
	default:
		return
	}
	a.write(a.attribute(context.Background(), r, by))
}

func resultOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return ResultOK
	case errors.Is(err, job.ErrDetach) || errors.Is(context.Cause(ctx), job.ErrDetach):
		return ResultInterrupted
	}
	if host, ok := errors.AsType[*job.HostError](err); ok {
		switch host.Class {
		case job.HostLeftAlone:
			return ResultRefused
		case job.HostForeign:
			return ResultForeign
		}
	}
	return ResultFailed
}

func (a *Audit) write(r Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.append(r); err != nil {
		a.o.Log.Error("audit log not written", "action", r.Action, "vm_id", r.VMID, "result", r.Result, "err", err)
	}
}

// append writes a line in one call, so that lines of several processes do not mix.
func (a *Audit) append(r Record) error {
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false) // people read it
	if err := e.Encode(r); err != nil {
		return err
	}
	if err := a.rotate(int64(line.Len())); err != nil {
		return err
	}
	f, err := os.OpenFile(a.o.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(line.Bytes())
	return errors.Join(err, f.Close())
}

func (a *Audit) rotate(more int64) error {
	info, err := os.Stat(a.o.Path)
	if a.o.MaxSize == 0 || errors.Is(err, fs.ErrNotExist) || err == nil && info.Size()+more <= a.o.MaxSize {
		return nil
	}
	for n := a.o.Keep; n > 0 && err == nil; n-- {
		older := a.o.Path
		if n > 1 {
			older = a.old(n - 1)
		}
		if err = os.Rename(older, a.old(n)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

func (a *Audit) old(n int) string { return fmt.Sprintf("%s.%d", a.o.Path, n) }
