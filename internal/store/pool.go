package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Pools returns every pool, by name.
func (s *Store) Pools(ctx context.Context) ([]job.Pool, error) {
	pools, err := query(ctx, s.read, scanDoc[job.Pool], `SELECT doc FROM pools ORDER BY name`)
	return pools, tried(err, "read the pools")
}

// InsertPool adds a pool, and reports whether the name was free.
func (s *Store) InsertPool(ctx context.Context, p job.Pool) (bool, error) {
	added, err := s.insertDoc(ctx, `INSERT INTO pools (name, doc) VALUES (?, ?) ON CONFLICT DO NOTHING`, p.Name, p)
	return added, tried(err, "write pool %s to %s", p.Name, s.name)
}

// UpdatePool changes a pool in a transaction; job.ErrNotFound. change must not call the store; an
// error from it is returned unwrapped, and nothing is written.
func (s *Store) UpdatePool(ctx context.Context, name string, change func(*job.Pool) error) (job.Pool, error) {
	var p job.Pool
	err := s.transaction(ctx, func(tx *tx) (err error) {
		p, err = s.updatePool(ctx, tx, name, change)
		return err
	})
	return p, tried(err, "write pool %s to %s", name, s.name)
}

func (s *Store) updatePool(ctx context.Context, tx *tx, name string, change func(*job.Pool) error) (job.Pool, error) {
	p, err := changeDoc(ctx, s, tx, "pools", "name", name, func(p *job.Pool) error {
		err := change(p)
		p.Name = name
		return err
	})
	if err == nil {
		tx.tell(job.NoticePools, "")
	}
	return p, err
}

// DeletePool removes a pool's row. Its members stay.
func (s *Store) DeletePool(ctx context.Context, name string) error {
	_, err := execCounted(ctx, s.transaction, job.NoticePools, `DELETE FROM pools WHERE name = ?`, name)
	return tried(err, "remove pool %s from %s", name, s.name)
}

// pooled is the condition of the index on pools' VMs.
const pooled = `member NOT IN ('', 'gone', 'own')`

// Members returns the VMs of all pools that are not known to be gone, oldest first. A VM that could
// not be made is included until it is doomed.
func (s *Store) Members(ctx context.Context) ([]vm.VM, error) {
	return vms(ctx, s.read, pooled+` ORDER BY id`)
}

// Claim gives a job a member of a pool, in one transaction; see executor.PoolStore.
// choose must not call the store.
func (s *Store) Claim(ctx context.Context, id, pool string, choose func(j *job.Job, idle []vm.VM) (at int, events []job.Event)) (j job.Job, claimed bool, err error) {
	err = s.transaction(ctx, func(tx *tx) error {
		var err error
		if j, err = s.one(ctx, tx, `jobs.id = ?`+s.dialect.lock("jobs"), id); err != nil {
			return err
		}
		idle, err := s.idle(ctx, tx, pool)
		if err != nil {
			return err
		}
		status, state := j.Status, j.VMState()
		at, events := choose(&j, idle)
		if claimed = at >= 0; claimed {
			if err := follows(status, state, j); err != nil {
				return err
			}
			tx.tell(job.NoticeChanged, idle[at].Job)
			tx.told = append(tx.told, job.Change{Job: j, Events: events}, job.VMChanged{VM: *j.VM})
			if err := errors.Join(writeVM(tx, idle[at]), updateRow(tx, nil, j, job.Record{Events: events})); err != nil {
				return err
			}
		}
		return s.countClaim(ctx, tx, pool, claimed)
	})
	if err != nil {
		return job.Job{}, false, fmt.Errorf("claim a VM of pool %s in %s: %w", pool, s.name, err)
	}
	return j, claimed, nil
}

// idle returns a pool's VMs that can be claimed, oldest first, and keeps others from them until the
// transaction ends.
func (s *Store) idle(ctx context.Context, tx *tx, pool string) ([]vm.VM, error) {
	idle, err := vms(ctx, tx, pooled+` AND member IN (?, ?) ORDER BY id`+s.dialect.lock("vms"), string(vm.MemberWarm), string(vm.MemberHibernated))
	return slices.DeleteFunc(idle, func(v vm.VM) bool { return v.Member.Pool != pool }), err
}

// countClaim counts a request to a pool for a VM, and whether the pool had one.
func (s *Store) countClaim(ctx context.Context, tx *tx, pool string, claimed bool) error {
	_, err := s.updatePool(ctx, tx, pool, func(p *job.Pool) error {
		p.AskedAt = time.Now().UTC()
		if claimed {
			p.Hits++
		} else {
			p.Misses++
		}
		return nil
	})
	if errors.Is(err, job.ErrNotFound) { // the pool was removed meanwhile
		err = nil
	}
	return err
}
