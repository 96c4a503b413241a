package store

import (
	"context"
	"database/sql"
	"io"

	"linus/internal/job"
)

// files stores the named bytes of jobs. The database knows only the counts of sealed output. A
// job's ID has passed isID or comes from the database.
type files interface {
	// change calls work with the files of a job's output and the final counts of its streams, while
	// nobody else changes either; job.ErrNotFound. Like a transaction's, work may run again, and it
	// must not call the store.
	change(ctx context.Context, id string, work func(f outputFiles, sealed sealedStreams) error) error
	// open returns how many bytes of each open stream are stored, and how many were seen. Any file
	// of a job's output counts as a stream.
	open(ctx context.Context, q querier, streams ...streamOf) ([]openCounts, error)
	// counts is an SQL expression for what open returns for both streams of the row in jobs, as
	// four numbers; empty: there is none.
	counts() string
	// read returns n bytes of an output file from offset; the file has them.
	read(ctx context.Context, id, name string, offset, n int64) ([]byte, error)

	// put, drop and artifact implement Store's methods for artifacts.
	put(ctx context.Context, id, path string, offset int64, data []byte) error
	drop(ctx context.Context, id, path string) error
	artifact(ctx context.Context, id, path string) (io.ReadCloser, error)

	// forget removes all files of a job whose row is gone.
	forget(id string) error
	// forgetOrphans removes files of jobs that do not exist.
	forgetOrphans(ctx context.Context) error
}

// outputFiles are the files of one job's output while it is locked, or within the transaction that
// locks it.
type outputFiles interface {
	// open returns how much of a stream is stored, and how much was seen.
	open(stream string) (openCounts, error)
	// append writes data at offset, which is the end of the file.
	append(name string, offset int64, data []byte) error
	// truncate cuts a file to size bytes; the file has at least as many.
	truncate(name string, size int64) error
	// sync makes a file's bytes durable. The file may be missing.
	sync(name string) error
	// replace writes a whole file durably: readers find the old bytes or the new.
	replace(name string, data []byte) error
	// see stores how much of a stream was seen; 0: as much as is stored.
	see(stream string, n int64) error
	// seal stores the final counts of all streams in the job's row, in one commit.
	seal(counts sealedStreams) error
}

// sealedStreams are the final counts of a job's streams, as text; not valid while a stream is open.
type sealedStreams map[string]sql.NullString

type streamOf struct{ id, stream string }

// openCounts are the numbers of bytes of an open stream that are stored, and that were seen.
type openCounts struct{ held, seen int64 }

func (c openCounts) set(info *job.OutputInfo) {
	info.Held, info.Total, info.Dropped = c.held, c.seen, c.seen-c.held
}
