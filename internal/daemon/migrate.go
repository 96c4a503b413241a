package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"linus/internal/config"
	"linus/internal/store"
)

// Migrated says what MigrateStore has copied.
type Migrated struct {
	store.Copied
	Keys int `json:"keys"` // login keys of VMs that were given a file of their own
}

// MigrateStore copies the state directory from, in which no engine runs, to the
// configured PostgreSQL database. Login keys stay in the directory.
func MigrateStore(ctx context.Context, o Options, from string) (Migrated, error) {
	var done Migrated
	c := o.Config
	if c.DatabaseURL.Reveal() == "" {
		return done, &config.Error{Problems: []config.Problem{{Name: "LINUS_DATABASE_URL", Text: "is not set", Remedy: "give the PostgreSQL database to copy to, in the environment or an env file"}}}
	}
	if _, err := os.Stat(from); err != nil { // Lock would create it
		return done, fmt.Errorf("copy a state directory: %w", err)
	}
	lock, err := Lock(from)
	if errors.Is(err, ErrLocked) {
		return done, fmt.Errorf("%s: %w; stop it with linus serve --stop, or systemctl stop linus", from, err)
	}
	if err != nil {
		return done, err
	}
	defer lock.Close() //nolint:errcheck // nothing to lose
	to := storeOptions(c, o.Log)
	if done.Copied, err = store.Copy(ctx, store.Options{Dir: from, Log: o.Log}, to); err != nil {
		return done, err
	}
	done.Keys, err = ownKeys(ctx, from, to)
	return done, err
}

// ownKeys gives each VM that logs in with the key that all old VMs share a copy of
// it as its own: other keys are derived from now on.
func ownKeys(ctx context.Context, from string, o store.Options) (copied int, err error) {
	old, err := os.ReadFile(filepath.Join(from, "id_ed25519"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the key of old VMs: %w", err)
	}
	st, err := store.Open(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	creators, err := st.VMs(ctx)
	if err != nil {
		return 0, err
	}
	dir := filepath.Join(from, "keys")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("copy the key of old VMs: %w", err)
	}
	for _, j := range creators {
		path := filepath.Join(dir, j.ID)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			return copied, fmt.Errorf("copy the key of old VMs: %w", err)
		}
		copied++
	}
	return copied, nil
}
