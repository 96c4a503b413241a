package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/store"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// onDatabase returns settings with a state directory and a PostgreSQL database.
func onDatabase(t *testing.T, dir, url string) config.Config {
	t.Helper()
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("LINUS_DATABASE_URL", url)
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// keysOf opens the keys as a starting engine does.
func keysOf(t *testing.T, c config.Config) error {
	t.Helper()
	st, err := store.Open(t.Context(), storeOptions(c, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // what counts is what it said
	_, err = engineKeys(t.Context(), c, st)
	return err
}

// The first engine of a database makes the installation key; another starts only
// with a copy of it.
func TestEngineKeys_AreTheSameInAllEngines(t *testing.T) {
	url := pgtest.Database(t)
	first, second := t.TempDir(), t.TempDir()
	path := func(dir string) string { return filepath.Join(dir, "keys", "installation") }
	for range 2 {
		if err := keysOf(t, onDatabase(t, first, url)); err != nil {
			t.Fatal(err)
		}
	}
	key, err := os.ReadFile(path(first))
	if err != nil {
		t.Fatal(err)
	}
	if err := keysOf(t, onDatabase(t, second, url)); err == nil || !strings.Contains(err.Error(), path(second)) || !strings.Contains(err.Error(), "copy it") {
		t.Errorf("without the key: %v", err)
	}
	if _, err := os.Stat(path(second)); err == nil {
		t.Error("a second key was made")
	}
	another := bytes.ReplaceAll(key, key[:1], []byte("0"))
	if bytes.Equal(another, key) {
		another = bytes.ReplaceAll(key, key[:1], []byte("1"))
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path(second)), 0o700), os.WriteFile(path(second), another, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := keysOf(t, onDatabase(t, second, url)); err == nil || !strings.Contains(err.Error(), "replace it") {
		t.Errorf("with another key: %v", err)
	}
	if err := os.WriteFile(path(second), key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keysOf(t, onDatabase(t, second, url)); err != nil {
		t.Errorf("with a copy of the key: %v", err)
	}
	var publics []string
	for _, dir := range []string{first, second} { // ssh and scp use the same key
		keys, err := loginKeys(onDatabase(t, dir, url))
		if err != nil {
			t.Fatal(err)
		}
		public, err := keys.Make("019aa000-0000-7000-8000-000000000001")
		if err != nil {
			t.Fatal(err)
		}
		publics = append(publics, public)
	}
	if publics[0] != publics[1] {
		t.Errorf("keys differ: %q", publics)
	}
}

func TestMigrateStore_CopiesAStoppedDirectory(t *testing.T) {
	url := pgtest.Database(t)
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	j := job.Job{ID: "019aa000-0000-7000-8000-000000000001", Kind: job.KindTask, Status: job.Pending}
	if _, _, err := st.Insert(t.Context(), j, "", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	o := Options{Config: onDatabase(t, t.TempDir(), url), Log: slog.New(slog.DiscardHandler)}

	lock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := MigrateStore(t.Context(), o, dir); err == nil || !strings.Contains(err.Error(), "serve --stop") {
		t.Errorf("while an engine runs: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := MigrateStore(t.Context(), o, filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is none was copied")
	}
	done, err := MigrateStore(t.Context(), o, dir)
	if err != nil || done.Jobs != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	o.Config = config.Config{}
	if _, err := MigrateStore(context.Background(), o, dir); err == nil || !strings.Contains(fmt.Sprint(err), "LINUS_DATABASE_URL") {
		t.Errorf("without a database: %v", err)
	}
}
