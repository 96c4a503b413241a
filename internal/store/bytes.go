package store

import (
	"context"
	"database/sql"
	"io"

	"linus/internal/job"
)

// files are the named bytes of jobs, of which the database knows nothing but
// the counts of sealed output. A job's ID has passed isID or comes from the
// database.
type files interface {
	// change calls work with the files of a job's output, and with the final counts of
	// its streams, while nobody else changes either; job.ErrNotFound. work may run
	// again, like that of a transaction, and must not call the store.
	change(ctx context.Context, id string, work func(f outputFiles, sealed sealedStreams) error) error
	// open returns how many bytes of each open stream are stored, and how many
	// were seen; a file of a job's output counts as one.
	open(ctx context.Context, q querier, streams ...streamOf) ([]openCounts, error)
	// counts is an expression for what open returns of both streams of the row in jobs, as
	// four numbers; empty: there is none.
	counts() string
	// read returns n bytes of a file of a job's output, which it has, from offset.
	read(ctx context.Context, id, name string, offset, n int64) ([]byte, error)

	// put, drop and artifact are what Store says of an artifact.
	put(ctx context.Context, id, path string, offset int64, data []byte) error
	drop(ctx context.Context, id, path string) error
	artifact(ctx context.Context, id, path string) (io.ReadCloser, error)

	// forget removes all files of a job whose row is gone.
	forget(id string) error
	// forgetOrphans removes files of jobs that are none.
	forgetOrphans(ctx context.Context) error
}

// outputFiles are the files of one job's output, which is locked, or the
// transaction in which it is.
type outputFiles interface {
	// open returns how much of a stream is stored, and how much was seen.
	open(stream string) (openCounts, error)
	// append writes data at the end of a file, which is at offset.
	append(name string, offset int64, data []byte) error
	// truncate cuts a file to size bytes, which it has.
	truncate(name string, size int64) error
	// sync makes a file's bytes durable. It may be missing.
	sync(name string) error
	// replace writes a whole file, durably: others find the old bytes or the new.
	replace(name string, data []byte) error
	// see stores how much of a stream was seen, 0 for as much as is stored.
	see(stream string, n int64) error
	// seal stores the final counts of all streams in the job's row, in one commit.
	seal(counts sealedStreams) error
}

// sealedStreams are the final counts of a job's streams, as text; not valid while open.
type sealedStreams map[string]sql.NullString

// streamOf is a stream of a job.
type streamOf struct{ id, stream string }

// openCounts are how many bytes of an open stream are stored, and how many were
// seen.
type openCounts struct{ held, seen int64 }

// set sets the counts of a job's output.
func (c openCounts) set(info *job.OutputInfo) {
	info.Held, info.Total, info.Dropped = c.held, c.seen, c.seen-c.held
}
