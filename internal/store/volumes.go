package store

import (
	"context"
	"encoding/json"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// Volumes returns every volume, by name.
func (s *Store) Volumes(ctx context.Context) ([]vm.Volume, error) {
	all, err := query(ctx, s.read, scanDoc[vm.Volume], `SELECT doc FROM volumes ORDER BY name`)
	return all, tried(err, "read the volumes")
}

// InsertVolume adds a volume, and reports whether the name was free. It checks the principal's
// limits in the same transaction, and returns a *job.FieldError if they would be exceeded.
func (s *Store) InsertVolume(ctx context.Context, v vm.Volume, within job.Limits) (added bool, err error) {
	doc, err := json.Marshal(v)
	if err != nil {
		return false, err
	}
	err = s.transaction(ctx, func(tx *tx) error {
		a := asks{disk: "volume", principal: v.Principal, at: v.CreatedAt, resources: vm.Resources{Disk: fmt.Sprintf("%dG", v.SizeGB)}}
		if err := s.within(ctx, tx, a, within); err != nil {
			return err
		}
		n, err := tx.ExecContext(ctx, `INSERT INTO volumes (id, name, principal, doc) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`, v.ID, v.Name, v.Principal, string(doc))
		added = n > 0
		return err
	})
	return added, tried(err, "write volume %s to %s", v.Name, s.name)
}

// UpdateVolume changes a volume in a transaction; job.ErrNotFound. change must not call the store;
// an error from it is returned unwrapped, and nothing is written.
func (s *Store) UpdateVolume(ctx context.Context, id string, change func(*vm.Volume) error) (v vm.Volume, err error) {
	err = s.transaction(ctx, func(tx *tx) error {
		v, err = changeDoc(ctx, s, tx, "volumes", "id", id, change)
		return err
	})
	return v, tried(err, "write volume %s to %s", id, s.name)
}

// DeleteVolume removes a volume's row.
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM volumes WHERE id = ?`, id)
	return tried(err, "remove volume %s from %s", id, s.name)
}
