// Package capture stores what a running job writes: its output, by offset and without its secrets;
// its agent's steps; and its artifacts. It decides nothing about the job: the executor decides when
// and for how long to read, and the job's outcome.
package capture

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/secret"
)

// Store holds captured data. Everything acknowledged survives kill -9.
type Store interface {
	// Job returns the job without its files' contents; job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// AppendOutput appends data that begins at offset of the stream, as far as it is new and below the
	// size limit. It returns how many bytes of the stream have been seen: the offset to send next.
	AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error)
	// AppendTurn is AppendOutput for a stream after output of the other one. OutputOrder returns
	// the stored parts, in Output's offsets, in the order of those turns.
	AppendTurn(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error)
	OutputOrder(ctx context.Context, id string) ([]job.OutputPart, error)
	// CutOutput truncates an open stream to its first size bytes, and forgets that more was seen.
	CutOutput(ctx context.Context, id, stream string, size int64) error
	// SealOutput makes streams final, all together. Of a stream that exceeds the limit it keeps the
	// head, a marker with the number of dropped bytes, and the tail.
	SealOutput(ctx context.Context, id string, ends ...job.StreamEnd) ([]job.OutputInfo, error)
	// Output returns at most limit bytes of a stream as stored, marker included, from offset, which
	// counts stored bytes.
	Output(ctx context.Context, id, stream string, offset, limit int64) ([]byte, error)
	// Written returns at most limit bytes that the task wrote to a stream, and the offset at which
	// they begin: offset or, if those bytes are not stored, the next stored offset. At the end it
	// returns no bytes, and an offset of at most the end.
	Written(ctx context.Context, id, stream string, offset, limit int64) (data []byte, at int64, err error)
	// PutArtifact writes a part of an artifact at offset. Offset 0 replaces the file at path.
	PutArtifact(ctx context.Context, id, path string, offset int64, data []byte) error
	// DropArtifact removes the stored part of a file, if there is any.
	DropArtifact(ctx context.Context, id, path string) error
	// OpenArtifact returns a stored file. It returns job.ErrNotFound, or an error that is fs.ErrNotExist.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, error)
}

// Runner reads what a job wrote inside its VM, *j.VM. Every method can be repeated.
type Runner interface {
	// ReadOutput returns at most limit bytes of stdout or stderr from offset; fewer only at the end.
	ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error)
	// Sums returns the sha256, in hex, of the given number of first bytes of stdout and of stderr,
	// to compare with the stored bytes. They are empty if the VM returns none.
	Sums(ctx context.Context, j job.Job, stdout, stderr int64) (sums [2]string, err error)
	// Artifacts returns the files that the job's patterns match once the task has ended, and the
	// files that were left out, with reasons.
	Artifacts(ctx context.Context, j job.Job, limits job.ArtifactLimits) (found []job.FoundArtifact, skipped job.SkippedArtifacts, err error)
	// ReadArtifact returns at most limit bytes of a found file from offset; fewer only at the end.
	ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error)
}

// Options configure a Capture. All are required, except Runner if nothing runs.
type Options struct {
	Store  Store
	Runner Runner
	Log    *slog.Logger

	// Secrets returns the secrets of a job with this manifest.
	Secrets func(job.Manifest) ([]secret.Value, error)
	// Update changes the job's row and records the events.
	Update func(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error)

	MaxOutput int64              // bytes stored per stream
	Artifacts job.ArtifactLimits // per job
	// Patience is how long to try to reach a VM for its list of artifacts, and for each artifact.
	Patience time.Duration
}

// Capture captures one job while the executor works on it. Its methods may be called from any
// goroutine, except those that only the job's follower may call.
type Capture struct {
	o        Options
	id       string
	manifest job.Manifest // without its files' contents

	receiving sync.RWMutex // read-locked while Append stores output

	order  sync.Mutex       // held while storing output
	turn   string           // the stream of the last stored part; empty: unknown
	stored map[string]int64 // bytes seen, by stream
	closed bool             // Append stores nothing more

	hiding sync.Mutex
	masker *secret.Masker // hides the job's secrets; nil: not created yet

	story *story               // what the agent does; nil: nothing read yet
	back  map[string]*heldBack // by stream
	ended *job.RunState        // the task's end from its channel; nil: not received
}

// New returns the Capture of j.
func New(o Options, j job.Job) *Capture {
	return &Capture{o: o, id: j.ID, manifest: j.Manifest, back: map[string]*heldBack{}}
}

// Close makes Append store nothing more. Pending writes are finished when it returns.
func (c *Capture) Close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.closed = true
}
