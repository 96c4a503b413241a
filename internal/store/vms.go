package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// heldAs is what a job's document says of the job's VM. The VM's row has the rest.
type heldAs struct {
	State  vm.State  `json:"state,omitempty"` // of another job's VM, as this job sees it
	Source vm.Source `json:"source,omitempty"`
}

// heldVM returns the VM of a job from the VM's row and the job's document; nil: the job has none.
func heldVM(id string, doc sql.NullString, h *heldAs) (*vm.VM, error) {
	if !doc.Valid || h == nil {
		return nil, nil
	}
	v, err := decodeVM(doc.String)
	if err != nil {
		return nil, err
	}
	v.Source = h.Source
	if v.Job != id {
		v.State = h.State
	}
	return &v, nil
}

// machine is the document of a VM's row.
type machine struct {
	vm.VM
	As vm.Made    `json:"made"`
	Of *vm.Member `json:"member,omitempty"`
	By *vm.Own    `json:"own,omitempty"`

	Saved  *vm.Checkpoint `json:"checkpoint,omitempty"`
	Named  []vm.Port      `json:"ports,omitempty"`
	OnDisk []vm.Memory    `json:"memories,omitempty"`
}

func decodeVM(doc string) (vm.VM, error) {
	var m machine
	err := json.Unmarshal([]byte(doc), &m)
	m.Made, m.VM.Member, m.VM.Own, m.VM.Checkpoint, m.Ports, m.Memories = m.As, m.Of, m.By, m.Saved, m.Named, m.OnDisk
	switch {
	case m.By == nil:
	case m.By.Fork != nil:
		m.Source = vm.Forked
	case m.Source != "": // not set by older engines
	case m.From != "":
		m.Source = vm.Restored
	default:
		m.Source = vm.Cold
	}
	return m.VM, err
}

// updateVM writes the VM that a job has made, if it differs from was; nil: there was none. Only the
// job that has made a VM writes it.
func updateVM(tx *tx, was *vm.VM, j job.Job) error {
	if j.VM == nil || j.VM.Job != j.ID || was != nil && reflect.DeepEqual(*was, *j.VM) {
		return nil
	}
	if was == nil {
		was = &vm.VM{}
	}
	at := time.Now()
	if !was.Kept && !j.CompletedAt.IsZero() { // the job had the VM until then
		at = j.CompletedAt
	}
	return errors.Join(noteRun(tx, *was, *j.VM, job.UsageOfJob(j), at), writeVM(tx, *j.VM))
}

// lockVM keeps others from changing the VM that a job has made until the transaction ends: they,
// too, write its whole row.
func (s *Store) lockVM(tx *tx, id string) {
	if lock := s.dialect.lock("vms"); lock != "" {
		tx.post(`SELECT 1 FROM vms WHERE id = ?`+lock, id)
	}
}

func writeVM(tx *tx, v vm.VM) error {
	if v.Own == nil { // each job that has the VM records its source
		v.Source = ""
	}
	doc, err := json.Marshal(machine{v, v.Made, v.Member, v.Own, v.Checkpoint, v.Ports, v.Memories})
	if err != nil {
		return err
	}
	tx.post(`INSERT INTO vms (id, state, member, doc) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, member = excluded.member, doc = excluded.doc`,
		v.Job, string(v.State), memberColumn(v), string(doc))
	return nil
}

// memberColumn is the value of vms.member for a VM; empty: a job has made it. A VM that is being
// made is its pool's until the pool has learned why the VM could not be made.
func memberColumn(v vm.VM) string {
	switch {
	case v.AskedFor() && v.State != vm.Destroyed && v.State != vm.Forgotten:
		return "own"
	case v.AskedFor():
		return "gone"
	case v.Member == nil:
		return ""
	case v.Member.State != vm.MemberMaking && v.State.Settled():
		return "gone"
	}
	return string(v.Member.State)
}

// VMs returns the VMs that are asked for, intended, created or left alone, oldest first.
func (s *Store) VMs(ctx context.Context) ([]vm.VM, error) {
	return vms(ctx, s.read, there+` ORDER BY id`)
}

// VM returns the VM with the ID in its marker; job.ErrNotFound.
func (s *Store) VM(ctx context.Context, id string) (vm.VM, error) {
	return only(vms(ctx, s.read, `id = ?`, id))
}

func vms(ctx context.Context, q querier, where string, args ...any) ([]vm.VM, error) {
	read := func(row scanner) (vm.VM, error) {
		var doc string
		if err := row.Scan(&doc); err != nil {
			return vm.VM{}, err
		}
		return decodeVM(doc)
	}
	found, err := query(ctx, q, read, `SELECT doc FROM vms WHERE `+where, args...)
	return found, tried(err, "read VMs")
}

// InsertVM adds a VM that no job makes; see fleet.Store.
func (s *Store) InsertVM(ctx context.Context, v vm.VM, key string, within job.Limits) (_ vm.VM, created bool, err error) {
	v, created, _, err = s.GiveVM(ctx, v, key, within, nil, nil)
	return v, created, err
}

// GiveVM is InsertVM, or gives the requester an idle VM of a pool; see fleet.Store. choose must not
// call the store.
func (s *Store) GiveVM(ctx context.Context, asked vm.VM, key string, within job.Limits, pools []string, choose func(pool string, idle []vm.VM) (at int, events []job.Event)) (v vm.VM, created bool, missed []string, err error) {
	err = s.transaction(ctx, func(tx *tx) error {
		v, missed = asked, nil
		first, err := vmByKey(ctx, tx, key)
		if created = errors.Is(err, job.ErrNotFound); !created {
			v = first
			return err
		}
		a := asks{vm: true, principal: v.Principal, at: v.CreatedAt, resources: v.Resources}
		if v.Checkpoint != nil {
			a.disk, a.resources = "checkpoint", vm.Resources{Disk: fmt.Sprintf("%dM", job.CheckpointMB(v.Resources))}
		}
		if err := s.within(ctx, tx, a, within); err != nil {
			return err
		}
		var events []job.Event
		if v, events, missed, err = s.takeMember(ctx, tx, v, pools, choose); err != nil {
			return err
		}
		if err := writeVM(tx, v); err != nil || !v.AskedFor() {
			return err
		}
		if v.Job != asked.Job { // its owner must not see what its pool did
			tx.post(`DELETE FROM vm_events WHERE vm_id = ?`, v.Job)
			tx.tell(job.NoticeChanged, v.Job)
			tx.told = append(tx.told, job.VMChanged{VM: v, Events: events})
			if err := noteRun(tx, vm.VM{}, v, job.UsageOfVM(v), time.Now()); err != nil {
				return err
			}
		}
		postVMEvents(tx, v.Job, events)
		tx.tell(job.NoticeFree, "") // the leading engine makes it
		_, err = tx.ExecContext(ctx, `UPDATE vms SET principal = ?, idempotency_key = ? WHERE id = ?`,
			v.Principal, sql.NullString{String: key, Valid: key != ""}, v.Job)
		return err
	})
	if err != nil {
		return vm.VM{}, false, nil, tried(err, "write VM %s to %s", v.Job, s.name)
	}
	return v, created, missed, nil
}

// takeMember returns the idle VM, as changed by choose, of the first pool in which choose picks
// one; otherwise the VM that is asked for. It counts each pool's hit or miss.
func (s *Store) takeMember(ctx context.Context, tx *tx, asked vm.VM, pools []string, choose func(pool string, idle []vm.VM) (at int, events []job.Event)) (v vm.VM, events []job.Event, missed []string, err error) {
	for _, pool := range pools {
		idle, err := s.idle(ctx, tx, pool)
		if err != nil {
			return v, nil, nil, err
		}
		at, events := choose(pool, idle)
		if err := s.countClaim(ctx, tx, pool, at >= 0); err != nil {
			return v, nil, nil, err
		}
		if at >= 0 {
			return idle[at], events, missed, nil
		}
		missed = append(missed, pool)
	}
	return asked, nil, missed, nil
}

// AnyVM reports whether any VM has a row, in whatever state.
func (s *Store) AnyVM(ctx context.Context) (bool, error) {
	any, err := first[int](ctx, s.read, `SELECT count(*) FROM (SELECT 1 FROM vms LIMIT 1) AS found`)
	return any > 0, tried(err, "look for VMs")
}

// AskedVM returns the VM that was asked for with an idempotency key; job.ErrNotFound, always for
// the empty key.
func (s *Store) AskedVM(ctx context.Context, key string) (vm.VM, error) {
	return vmByKey(ctx, s.read, key)
}

func vmByKey(ctx context.Context, q querier, key string) (vm.VM, error) {
	if key == "" {
		return vm.VM{}, job.ErrNotFound
	}
	return only(vms(ctx, q, `idempotency_key = ?`, key))
}

// UpdateVM changes a VM in a transaction, and records events with it, in the row of the job that
// made the VM if one did; job.ErrNotFound. It returns ErrForbidden for a state that may not follow
// the current one. change may be called again, with the VM's state at that time.
func (s *Store) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (v vm.VM, err error) {
	return s.changeVM(ctx, id, func(*tx) error { return nil }, change)
}

// GrowVM is UpdateVM for a change that takes mb MiB more of the host's disk; what names the thing
// that takes it. See fleet.Store.
func (s *Store) GrowVM(ctx context.Context, of vm.VM, what string, mb int, within job.Limits, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	a := asks{disk: what, principal: of.Principal, resources: vm.Resources{Disk: fmt.Sprintf("%dM", mb)}}
	return s.changeVM(ctx, of.Job, func(tx *tx) error { return s.within(ctx, tx, a, within) }, change)
}

func (s *Store) changeVM(ctx context.Context, id string, may func(*tx) error, change func(*vm.VM) ([]job.Event, error)) (v vm.VM, err error) {
	var events []job.Event
	made := s.newUpdate(id, func(j *job.Job) (_ job.Record, err error) {
		if j.VM == nil || j.VM.Job != id {
			return job.Record{}, job.ErrNotFound
		}
		events, err = change(j.VM)
		return job.Record{Events: events, Quiet: true}, err
	})
	err = s.transaction(ctx, func(tx *tx) error {
		if err := may(tx); err != nil {
			return err
		}
		if v, err = only(vms(ctx, tx, `id = ?`+s.dialect.lock("vms"), id)); err != nil {
			return err
		}
		if v.Own == nil {
			if err = made.run(ctx, tx); err == nil {
				v = *made.job.VM
				tx.told = append(tx.told, job.VMChanged{VM: v, Events: events})
			}
			return err
		}
		was := v.Clone()
		if events, err = change(&v); err != nil {
			return refusal{err}
		}
		if v.State != was.State && !was.State.CanBecome(v.State) {
			return fmt.Errorf("%w: the state of a VM, %q, cannot become %q", ErrForbidden, string(was.State), string(v.State))
		}
		tx.tell(job.NoticeChanged, id)
		postVMEvents(tx, id, events)
		if s.VMMessages != nil {
			if err := addWebhooks(tx, s.VMMessages(was, v)); err != nil {
				return err
			}
		}
		tx.told = append(tx.told, job.VMChanged{VM: v, Events: events})
		return errors.Join(noteRun(tx, was, v, job.UsageOfVM(v), time.Now()), writeVM(tx, v))
	})
	if err != nil {
		return vm.VM{}, tried(err, "write VM %s to %s", id, s.name)
	}
	return v, nil
}

func postVMEvents(tx *tx, id string, events []job.Event) {
	for _, e := range events {
		if e.At.IsZero() {
			e.At = time.Now()
		}
		tx.post(`INSERT INTO vm_events (vm_id, at, kind, phase, text) VALUES (?, ?, ?, ?, ?)`, id, timeText(e.At), e.Kind, e.Phase, job.Bounded(e.Text))
	}
}

// VMEvents returns the events of a VM that no job has made, in order.
func (s *Store) VMEvents(ctx context.Context, id string) ([]job.Event, error) {
	events, err := query(ctx, s.read, scanEvent(id), `SELECT seq, at, kind, phase, text FROM vm_events WHERE vm_id = ? ORDER BY seq`, id)
	return events, tried(err, "read events of VM %s", id)
}
