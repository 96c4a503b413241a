package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Copied counts what a Copy has copied, in this call and earlier ones.
type Copied struct {
	Jobs   int   `json:"jobs"`
	Events int   `json:"events"`
	Pools  int   `json:"pools"`
	Files  int   `json:"files"` // of output and artifacts, in this call
	Bytes  int64 `json:"bytes"` // of those files
}

// Names in meta while a copy is under way.
const (
	copyingFrom = "copying_from" // the source's installation ID
	copiedTo    = "copied_to"    // the last job that is complete
)

// table is copied row by row. Its first column is its key or, if the table has rows per job, the
// job's ID.
type table struct {
	name, columns string
	insert        string // how rows are inserted
	compared      string // the expression whose length is compared in the end
	which         string // a condition for the rows to copy; empty: all
}

// ofJobs are copied job by job, others as a whole.
var (
	ofJobs = []table{
		{"jobs", "id, created_at, status, done, waiting, client, principal, parent, vm_id, vm_state, completed_at, reason, started_at, task_head, idempotency_key, token_hash, stdout, stderr, doc, stored, queue, dispatcher, work", "", "doc", ""},
		{"job_manifests", "job_id, manifest", "", "manifest", ""},
		{"job_files", "job_id, contents", "", "''", ""},
		{"job_events", "job_id, seq, at, kind, phase, text", withNumbers, "''", ""},
	}
	others = []table{
		{"vms", "id, state, member, principal, idempotency_key, doc", "", "doc", ""},
		{"vm_events", "seq, vm_id, at, kind, phase, text", withNumbers, "text", ""},
		{"pools", "name, doc", "", "doc", ""},
		{"volumes", "id, name, principal, doc", "", "doc", ""},
		{"tokens", "id, hash, doc", "", "doc", ""},
		{"usage", "id, doc", "", "doc", ""},
		{"vm_runs", "id, vm_id, began, ended, doc", "", "doc", ""},
		{"schedules", "name, doc", "", "doc", ""},
		{"webhooks", "id, job_id, next_at, attempts, doc", "", "doc", ""},
		// Of dispatchers, only drained ones are copied: nobody reports again that they take no more
		// work. Credentials are not copied: their values are in files, and they are added again.
		{"dispatchers", "name, principal, queue, started, heard, drain, told, doc", "", "doc", "drain = 1"},
		{"meta", "key, value", "", "value", "key LIKE '" + strings.Join([]string{branchKey, buildKey, cordonKey, hostTestKey, savedKey}, "%' OR key LIKE '") + "%'"},
	}
)

func (t table) key() string {
	key, _, _ := strings.Cut(t.columns, ",")
	return key
}

func (t table) where() string { return ` WHERE (` + cmp.Or(t.which, "1 = 1") + `)` }

// withNumbers inserts rows with the numbers they have.
const withNumbers = "OVERRIDING SYSTEM VALUE"

// Copy copies the state directory from.Dir, which no engine may use, to the PostgreSQL database
// to.URL, which must have no jobs. It reads each file back to compare it, and counts the rows. The
// installation keeps its ID. An interrupted Copy resumes where it stopped; until a Copy has ended,
// Open refuses the database.
func Copy(ctx context.Context, from, to Options) (Copied, error) {
	if _, err := os.Stat(filepath.Join(from.Dir, databaseName)); err != nil {
		return Copied{}, fmt.Errorf("%s is no state directory: %w", from.Dir, err)
	}
	from.URL, to.copying = "", true
	source, err := Open(ctx, from)
	if err != nil {
		return Copied{}, err
	}
	target, err := Open(ctx, to)
	if err != nil {
		return Copied{}, errors.Join(err, source.Close())
	}
	c := copying{source: source, target: target}
	err = c.all(ctx)
	return c.copied, errors.Join(err, source.Close(), target.Close())
}

type copying struct {
	source, target *Store
	copied         Copied
}

func (c *copying) all(ctx context.Context) error {
	last, err := c.begin(ctx)
	if err != nil {
		return err
	}
	for {
		ids, err := query(ctx, c.source.read, scanValue[string], `SELECT id FROM jobs WHERE id > ? ORDER BY id LIMIT 100`, last)
		if err != nil {
			return fmt.Errorf("read jobs: %w", err)
		}
		if len(ids) == 0 {
			break
		}
		for _, id := range ids {
			if err := c.job(ctx, id, last); err != nil {
				return fmt.Errorf("copy job %s: %w", id, err)
			}
			last = id
		}
	}
	for _, t := range others {
		if err := c.whole(ctx, t); err != nil {
			return fmt.Errorf("copy %s: %w", t.name, err)
		}
	}
	if err := c.compare(ctx); err != nil {
		return err
	}
	return c.end(ctx)
}

// begin marks the target, and returns the last job that is already there.
func (c *copying) begin(ctx context.Context) (last string, err error) {
	id, err := c.source.InstallationID(ctx)
	if err != nil {
		return "", err
	}
	err = c.target.transaction(ctx, func(tx *tx) error {
		known := map[string]string{}
		for _, name := range []string{copyingFrom, copiedTo} {
			found, err := query(ctx, tx, scanValue[string], `SELECT value FROM meta WHERE key = ?`, name)
			if err != nil {
				return err
			}
			known[name] = strings.Join(found, "")
		}
		last = known[copiedTo]
		if known[copyingFrom] == id {
			_, err := tx.ExecContext(ctx, `DELETE FROM jobs WHERE id > ?`, last)
			return err
		}
		if known[copyingFrom] != "" {
			return errors.New("it has an unfinished copy of another state directory; use another database")
		}
		used, err := first[bool](ctx, tx, `SELECT EXISTS (SELECT 1 FROM jobs) OR EXISTS (SELECT 1 FROM pools) OR EXISTS (SELECT 1 FROM tokens)`)
		if err == nil && used {
			err = errors.New("it has jobs, pools or tokens already; use an empty database")
		}
		if err != nil {
			return err
		}
		for name, value := range map[string]string{copyingFrom: id, "installation_id": id, copiedTo: ""} {
			if err := setMeta(ctx, tx, name, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("copy to %s: %w", c.target.name, err)
	}
	return last, nil
}

func setMeta(ctx context.Context, tx *tx, name, value string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value`, name, value)
	return err
}

func setMetaDoc(ctx context.Context, tx *tx, name string, value any) error {
	doc, err := json.Marshal(value)
	if err == nil {
		err = setMeta(ctx, tx, name, string(doc))
	}
	return err
}

// job copies a job's rows and files. With the rows it records that the job before is complete.
func (c *copying) job(ctx context.Context, id, before string) error {
	rows := make([][][]any, len(ofJobs))
	for i, t := range ofJobs {
		var err error
		if rows[i], err = c.rows(ctx, t, `WHERE `+t.key()+` = ?`, id); err != nil {
			return err
		}
	}
	err := c.target.transaction(ctx, func(tx *tx) error {
		for i, t := range ofJobs {
			if err := insertRows(ctx, tx, t, rows[i]); err != nil {
				return err
			}
		}
		return setMeta(ctx, tx, copiedTo, before)
	})
	if err != nil {
		return err
	}
	return c.files(ctx, id)
}

func (c *copying) rows(ctx context.Context, t table, which string, args ...any) ([][]any, error) {
	n := strings.Count(t.columns, ",") + 1
	return query(ctx, c.source.read, func(row scanner) ([]any, error) {
		values, to := make([]any, n), make([]any, n)
		for i := range values {
			to[i] = &values[i]
		}
		return values, row.Scan(to...)
	}, `SELECT `+t.columns+` FROM `+t.name+` `+which, args...)
}

func insertRows(ctx context.Context, tx *tx, t table, rows [][]any) error {
	marks := strings.Repeat(", ?", strings.Count(t.columns, ",")+1)[2:]
	for _, values := range rows {
		if _, err := tx.ExecContext(ctx, `INSERT INTO `+t.name+` (`+t.columns+`) `+t.insert+` VALUES (`+marks+`)`, values...); err != nil {
			return err
		}
	}
	return nil
}

// files copies a job's output and artifacts.
func (c *copying) files(ctx context.Context, id string) error {
	root, err := os.OpenRoot(c.source.files.(*directories).jobDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	return fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		stream, isSeen := strings.CutSuffix(path, seenSuffix)
		artifact, isArtifact := strings.CutPrefix(path, artifactsDir+"/")
		switch {
		case err != nil || !entry.Type().IsRegular():
			return err
		case isArtifact:
			err = c.file(ctx, root, id, path, artifactName(artifact))
		case isSeen && checkStream(stream) == nil:
			err = c.seen(ctx, root, id, stream)
		case path == orderName, checkStream(strings.TrimSuffix(path, tailSuffix)) == nil:
			err = c.file(ctx, root, id, path, path)
		}
		return tried(err, "file %s", path)
	})
}

func (c *copying) seen(ctx context.Context, root *os.Root, id, stream string) error {
	text, err := root.ReadFile(stream + seenSuffix)
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return err
	}
	return c.writing(ctx, id, func(w pieceWriter) error { return w.see(stream, n) })
}

func (c *copying) writing(ctx context.Context, id string, work func(pieceWriter) error) error {
	to := c.target.files.(*pieces)
	return c.target.transaction(ctx, func(tx *tx) error { return work(pieceWriter{to, tx, id}) })
}

// copyBuffer is how much of a file is copied in one transaction.
const copyBuffer = 4 << 20

// file copies a file and compares the copy.
func (c *copying) file(ctx context.Context, root *os.Root, id, path, name string) error {
	f, err := root.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	sum, buffer, offset := sha256.New(), make([]byte, copyBuffer), int64(0)
	for {
		n, err := io.ReadFull(f, buffer)
		atEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !atEnd {
			return err
		}
		sum.Write(buffer[:n])
		err = c.writing(ctx, id, func(w pieceWriter) error {
			if offset == 0 {
				w.put(name, 0, []byte{}) // an empty file is a file, too
			}
			return w.append(name, offset, buffer[:n])
		})
		if err != nil {
			return err
		}
		if offset += int64(n); atEnd {
			break
		}
	}
	arrived := sha256.New()
	n, err := io.Copy(arrived, c.target.files.(*pieces).reader(ctx, id, name))
	if err == nil && (n != offset || string(arrived.Sum(nil)) != string(sum.Sum(nil))) {
		err = fmt.Errorf("%d of %d bytes have arrived, or they differ", n, offset)
	}
	c.copied.Files++
	c.copied.Bytes += offset
	return err
}

// whole copies a table, a batch of rows at a time.
func (c *copying) whole(ctx context.Context, t table) error {
	const most = 1000
	where, last := t.where(), []any(nil)
	for empty := false; ; empty = true {
		rows, err := c.rows(ctx, t, where+` ORDER BY `+t.key()+` LIMIT `+strconv.Itoa(most), last...)
		if err != nil {
			return err
		}
		err = c.target.transaction(ctx, func(tx *tx) error {
			if !empty { // an interrupted copy has left rows
				if _, err := tx.ExecContext(ctx, `DELETE FROM `+t.name+t.where()); err != nil {
					return err
				}
			}
			return insertRows(ctx, tx, t, rows)
		})
		if err != nil || len(rows) < most {
			return err
		}
		where, last = t.where()+` AND `+t.key()+` > ?`, rows[most-1][:1]
	}
}

// compare compares each table's number of rows, and the total length of its compared expression, on
// both sides.
func (c *copying) compare(ctx context.Context) error {
	for _, t := range slices.Concat(ofJobs, others) {
		text := `SELECT count(*) || ' rows of ' || coalesce(sum(length(` + t.compared + `)), 0) || ' characters' FROM ` + t.name + t.where()
		want, err := first[string](ctx, c.source.read, text)
		if err != nil {
			return fmt.Errorf("count in %s: %w", c.source.name, err)
		}
		got, err := first[string](ctx, c.target.read, text)
		if err != nil {
			return fmt.Errorf("count in %s: %w", c.target.name, err)
		}
		if got != want {
			return fmt.Errorf("%s of %s are %s, those of %s are %s: has an engine written meanwhile?", t.name, c.source.name, want, c.target.name, got)
		}
	}
	for n, name := range map[*int]string{&c.copied.Jobs: "jobs", &c.copied.Events: "job_events", &c.copied.Pools: "pools"} {
		var err error
		if *n, err = first[int](ctx, c.target.read, `SELECT count(*) FROM `+name); err != nil {
			return fmt.Errorf("count in %s: %w", c.target.name, err)
		}
	}
	return nil
}

// end opens the target to engines.
func (c *copying) end(ctx context.Context) error {
	err := c.target.transaction(ctx, func(tx *tx) error {
		_, err := first[int64](ctx, tx, `SELECT setval(pg_get_serial_sequence('job_events', 'seq'), (SELECT coalesce(max(seq), 0) + 1 FROM job_events), false)`)
		if err == nil {
			_, err = first[int64](ctx, tx, `SELECT setval(pg_get_serial_sequence('vm_events', 'seq'), (SELECT coalesce(max(seq), 0) + 1 FROM vm_events), false)`)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM meta WHERE key IN (?, ?)`, copyingFrom, copiedTo)
		}
		return err
	})
	return tried(err, "end the copy to %s", c.target.name)
}

// refuseUnfinished returns an error if a copy to this database was interrupted.
func (s *Store) refuseUnfinished(ctx context.Context) error {
	found, err := query(ctx, s.read, scanValue[string], `SELECT value FROM meta WHERE key = ?`, copyingFrom)
	if err == nil && len(found) > 0 {
		err = errors.New("a copy to it was interrupted; run linus store migrate again, with the same directory")
	}
	return tried(err, "open %s", s.name)
}
