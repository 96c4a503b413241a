// Package capture keeps what a running job writes: its output, by offset and
// without its secrets; what its agent says it does; and the files it leaves. It
// decides nothing about the job: when to look, for how long, and what the job's
// outcome is, is the executor's business.
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

// Store keeps what was captured. Everything acknowledged survives kill -9.
type Store interface {
	// Job returns the job without its files' contents; job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// AppendOutput appends data that begins at offset of the stream, as far as
	// it is new and below the size limit, and returns how much of the stream
	// has been seen: the offset to send next.
	AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error)
	// CutOutput forgets what of an open stream is held beyond its first size bytes,
	// and that more was seen.
	CutOutput(ctx context.Context, id, stream string, size int64) error
	// SealOutput makes the stream final. When total is more than the limit it
	// keeps the head, a marker with the count of dropped bytes, and tail.
	SealOutput(ctx context.Context, id, stream string, total int64, tail []byte) (job.OutputInfo, error)
	// Output returns at most limit bytes held of a stream, marker included, from
	// offset, which counts these.
	Output(ctx context.Context, id, stream string, offset, limit int64) ([]byte, error)
	// Written returns at most limit bytes of what the task wrote to a stream:
	// those from offset on, or, where they are not held, the next that are, and
	// the offset at which they begin. At the end there are none, and the offset
	// is no more than the end.
	Written(ctx context.Context, id, stream string, offset, limit int64) (data []byte, at int64, err error)
	// PutArtifact keeps a part of a file the job left, at offset; the file at
	// path becomes what was written from offset 0 on.
	PutArtifact(ctx context.Context, id, path string, offset int64, data []byte) error
	// DropArtifact removes what was kept of a file; none is fine.
	DropArtifact(ctx context.Context, id, path string) error
	// OpenArtifact returns a kept file; job.ErrNotFound, or an error that is
	// fs.ErrNotExist.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, error)
}

// Guest reads what a job has written inside its VM, *j.VM. Every method may be
// called again.
type Guest interface {
	// ReadOutput returns at most limit bytes of stdout or stderr from offset;
	// fewer only at the end.
	ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error)
	// Sums returns the sha256, in hex, of the first bytes of stdout and of stderr,
	// so many of each: with that, what is held can be compared.
	Sums(ctx context.Context, j job.Job, stdout, stderr int64) (sums [2]string, err error)
	// Artifacts finds what the job's patterns match once the task has ended, and
	// says what was left out and why.
	Artifacts(ctx context.Context, j job.Job, limits job.ArtifactLimits) (found []job.FoundArtifact, skipped job.SkippedArtifacts, err error)
	// ReadArtifact returns at most limit bytes of a found file from offset;
	// fewer only at the end.
	ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error)
}

// Options of a Capture. All are required, but for Guest where nothing runs.
type Options struct {
	Store Store
	Guest Guest
	Log   *slog.Logger

	// Secrets returns the secrets that a job of this manifest has.
	Secrets func(job.Manifest) ([]secret.Value, error)
	// Update changes the job's row, and records the events that tell of it.
	Update func(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error)

	MaxOutput int64              // bytes kept of each stream
	Artifacts job.ArtifactLimits // of what is kept of one job
	// Patience is how long a VM that does not answer is asked for its artifacts,
	// and for each of them.
	Patience time.Duration
}

// Capture is what captures one job, while somebody works on it. Its methods may be
// called from any goroutine, but for those that are said to be its follower's.
type Capture struct {
	o        Options
	id       string
	manifest job.Manifest // without its files' contents

	receiving sync.RWMutex // held for reading while output that was sent is taken
	closed    bool         // no more is taken

	hiding sync.Mutex
	masker *secret.Masker // hides the job's secrets; nil: not made yet

	story *story // what its agent does; nil: not told yet
}

// New makes what captures j.
func New(o Options, j job.Job) *Capture { return &Capture{o: o, id: j.ID, manifest: j.Manifest} }

// Close has Append take no more; what it was taking is written when Close returns.
func (c *Capture) Close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.closed = true
}
