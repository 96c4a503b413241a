package job

import (
	"errors"
	"io"
	"time"
)

// Payload is everything a VM needs to run one job.
type Payload struct {
	Manifest          Manifest          // with file contents
	Trusts            bool              // the task is told about the CAs in Trust
	Secrets           map[string]string // values by name; they go to a tmpfs
	CallbackURL       string            // without a trailing slash; empty: no callbacks
	Token             string            // the job's callback token
	HeartbeatInterval int               // seconds
	MaxOutput         int64             // bytes

	Repository     io.ReaderAt // a tar archive of its .git, which is at Commit; nil: no repository
	RepositorySize int64       // bytes
	Commit         string
}

// RunState is what the runner in the VM reports about the task.
type RunState struct {
	Started     bool
	Exited      bool
	Unattended  bool // the task has not ended, but its runner is gone: Start restarts the runner
	ExitCode    int
	Reason      string        // exit, timeout, stopped or lost
	Text        string        // the runner's text where Reason is not exit
	Duration    time.Duration // how long the task has run, by the VM's clock since boot
	StdoutBytes int64
	StderrBytes int64
	DiskFull    bool // the VM's disk was full while the task ran: output from that time is lost
	// Sums are the sha256, in hex, of all of stdout and of stderr, where the task has
	// ended and the runner computed them; else empty.
	Sums [2]string
}

// Written returns how much the task has written to a stream, Stdout or Stderr.
func (s RunState) Written(stream string) int64 {
	if stream == Stderr {
		return s.StderrBytes
	}
	return s.StdoutBytes
}

// Piece is one read from a task's channel: a part of its output, or its end.
type Piece struct {
	Stream string // Stdout or Stderr
	Offset int64  // of Data in the stream, which is where the stream's last piece ended
	Data   []byte
	End    *RunState // nil: the task has not ended; otherwise this is the last piece
}

// ErrNoChannel says that no connection reports on a task while it runs.
var ErrNoChannel = errors.New("the task has no channel")

// CallbackWay is how a runner's callbacks arrive.
type CallbackWay string

// The ways.
const (
	CallbacksDirect CallbackWay = "direct" // the VM reaches the URL
	CallbacksTunnel CallbackWay = "tunnel" // through the SSH connection to the VM
	CallbacksNone   CallbackWay = "none"   // no callbacks: Probe and ReadOutput are used instead
)

// ArtifactLimits bound what is collected from one job.
type ArtifactLimits struct {
	Files int   // number of files
	Each  int64 // bytes of one file
	All   int64 // bytes of all files together
}

// FoundArtifact is a file in the VM that matches the job's patterns.
type FoundArtifact struct {
	Artifact
	Source string // its absolute path in the VM
}
