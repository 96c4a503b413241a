package job

import "time"

// Payload is all that a VM needs to run one job.
type Payload struct {
	Manifest          Manifest          // with file contents
	Secrets           map[string]string // values by name; they go to a tmpfs
	CallbackURL       string            // without a trailing slash; empty: no callbacks
	Token             string            // the job's callback token
	HeartbeatInterval int               // seconds
	MaxOutput         int64             // bytes
}

// RunState is what the runner in the VM says of the task.
type RunState struct {
	Started     bool
	Exited      bool
	Unattended  bool // it has not ended, and its runner is gone: Start brings that back
	ExitCode    int
	Reason      string        // exit, timeout, stopped or lost
	Text        string        // the runner's words where Reason is not exit
	Duration    time.Duration // the task has run so far, by the VM's clock since boot
	StdoutBytes int64
	StderrBytes int64
	DiskFull    bool // the VM's disk was full while the task ran: what it printed meanwhile is lost
}

// Written returns how much the task has written to a stream, Stdout or Stderr.
func (s RunState) Written(stream string) int64 {
	if stream == Stderr {
		return s.StderrBytes
	}
	return s.StdoutBytes
}

// CallbackWay is how a runner's callbacks arrive.
type CallbackWay string

// The ways.
const (
	CallbacksDirect CallbackWay = "direct" // the VM reaches the URL
	CallbacksTunnel CallbackWay = "tunnel" // through the SSH connection to the VM
	CallbacksNone   CallbackWay = "none"   // not at all: Probe and ReadOutput tell
)

// ArtifactLimits bound what is collected of one job.
type ArtifactLimits struct {
	Files int   // how many
	Each  int64 // bytes of one file
	All   int64 // bytes of all together
}

// FoundArtifact is a file in the VM that the job's patterns match.
type FoundArtifact struct {
	Artifact
	Source string // its absolute path in the VM
}
