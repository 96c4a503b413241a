package store

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// Saved templates are in meta, each under the ID of its save.
const (
	savedKey       = "saved/"
	savedTemplates = `SELECT value FROM meta WHERE key LIKE 'saved/%' ORDER BY key`
)

// SavedTemplates returns the templates that were made from VMs, oldest first.
func (s *Store) SavedTemplates(ctx context.Context) ([]vm.SavedTemplate, error) {
	all, err := query(ctx, s.read, scanDoc[vm.SavedTemplate], savedTemplates)
	return all, tried(err, "read the saved templates")
}

// InsertSaved adds a saved template. It checks the principal's limits in the same transaction, and
// returns a *job.FieldError if they would be exceeded.
func (s *Store) InsertSaved(ctx context.Context, t vm.SavedTemplate, within job.Limits) error {
	err := s.transaction(ctx, func(tx *tx) error {
		a := asks{disk: "saved template", principal: t.Principal, at: t.At, resources: vm.Resources{Disk: fmt.Sprintf("%dM", t.DiskMB)}}
		if err := s.within(ctx, tx, a, within); err != nil {
			return err
		}
		return setMetaDoc(ctx, tx, savedKey+t.ID, t)
	})
	return tried(err, "write saved template %s", t.Name)
}

// UpdateSaved rewrites a saved template.
func (s *Store) UpdateSaved(ctx context.Context, t vm.SavedTemplate) error {
	err := s.transaction(ctx, func(tx *tx) error { return setMetaDoc(ctx, tx, savedKey+t.ID, t) })
	return tried(err, "write saved template %s", t.Name)
}

// DeleteSaved removes a saved template.
func (s *Store) DeleteSaved(ctx context.Context, id string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM meta WHERE key = ?`, savedKey+id)
	return tried(err, "remove saved template %s", id)
}
