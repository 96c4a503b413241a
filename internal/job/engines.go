package job

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// EngineInfo describes an engine, as the engines that share its database see it.
type EngineInfo struct {
	ID        string    `json:"id"`             // UUID version 7; an engine that lost its lease comes back with a new one
	Host      string    `json:"host,omitempty"` // name of the machine it runs on
	PID       int       `json:"pid,omitempty"`
	Version   string    `json:"version,omitempty"`
	URL       string    `json:"url,omitempty"` // where it takes callbacks; empty: through tunnels only
	StartedAt time.Time `json:"started_at"`

	Lease    time.Duration `json:"lease" api:"lease_seconds"` // how much longer it is considered alive; negative: it is not
	Draining bool          `json:"draining,omitempty"`        // it takes no more jobs
	Jobs     int           `json:"jobs"`                      // jobs it works on
	Leads    bool          `json:"leads,omitempty"`           // it does what one engine does for all, such as sweeping and tending pools
	Self     bool          `json:"self,omitempty"`            // it is the engine that answers
	Problem  string        `json:"problem,omitempty"`         // why its jobs cannot be taken over although its lease has ended
}

// Engines are the operations on the engines of an installation.
type Engines interface {
	// Engines returns every engine that shares the database, oldest first.
	Engines(ctx context.Context) ([]EngineInfo, error)
}

// Leads reports whether this engine, of those that share a database, does what one engine does for
// all. If of is nil, the database is not shared and this engine leads.
func Leads(ctx context.Context, of Engines, log *slog.Logger) bool {
	if of == nil {
		return true
	}
	engines, err := of.Engines(ctx)
	if err != nil && ctx.Err() == nil {
		log.Warn("which engine leads is not known", "err", err)
	}
	return slices.ContainsFunc(engines, func(i EngineInfo) bool { return i.Self && i.Leads })
}

// Demand is what an engine's jobs may soon ask of the hosts.
type Demand struct {
	Seq      int64    // the greater one is the later
	Waits    bool     // a job waits for a slot
	Starting []string // jobs that have a slot and may soon need a VM
}

// ErrNoSlot says that all engines together run as many jobs as they may.
var ErrNoSlot = errors.New("all engines together already run as many jobs as MAX_JOBS_ALL allows")

// Notice tells the engines that share a database what one of them changed. Notices may be lost.
type Notice struct {
	Kind     NoticeKind `json:"kind"`
	Job      string     `json:"job,omitempty"`
	Progress string     `json:"progress,omitempty"` // heard: as its runner reported it, bounded
	End      string     `json:"end,omitempty"`      // heard: the end of its task, as reported; empty: not reported
}

// NoticeKind is what a notice is about.
type NoticeKind string

// The kinds.
const (
	NoticeWaiting NoticeKind = "waiting" // a job waits for a slot
	NoticeTaken   NoticeKind = "taken"   // an engine has taken a job
	NoticeChanged NoticeKind = "changed" // a job has changed
	NoticeSlot    NoticeKind = "slot"    // a slot of the installation is free
	NoticeFree    NoticeKind = "free"    // jobs that had begun have no engine, or VMs are no longer wanted
	NoticeTokens  NoticeKind = "tokens"  // tokens were revoked
	NoticePools   NoticeKind = "pools"   // pools or their members have changed
	NoticeHeard   NoticeKind = "heard"   // a job's runner has reported to an engine other than the job's
	NoticeMissed  NoticeKind = "missed"  // notices may have been missed
)
