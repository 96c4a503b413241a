// Package storetest opens databases for tests. It knows nothing of what they keep.
package storetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"linus/internal/store"
)

// file is the name of the database in a state directory.
const file = "linus.db"

// migrated is a database without rows. Migrating one takes ten times as long as copying it.
var migrated = sync.OnceValues(func() (data []byte, err error) {
	dir, err := os.MkdirTemp("", "linus-storetest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := store.Open(context.Background(), store.Options{Dir: dir})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, file))
})

// Open is store.Open, except that a new SQLite database is a copy of one that was migrated once.
func Open(ctx context.Context, o store.Options) (*store.Store, error) {
	path := filepath.Join(o.Dir, file)
	if _, err := os.Stat(path); o.URL == "" && errors.Is(err, fs.ErrNotExist) {
		data, err := migrated()
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	return store.Open(ctx, o)
}
