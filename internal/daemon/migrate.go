package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"linus/internal/config"
	"linus/internal/store"
)

// MigrateStore copies the state directory from, in which no engine may run, to the configured
// PostgreSQL database. Login keys stay in the directory.
func MigrateStore(ctx context.Context, o Options, from string) (store.Copied, error) {
	var done store.Copied
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
	return store.Copy(ctx, store.Options{Dir: from, Log: o.Log}, storeOptions(c, o.Log))
}
