package mcptool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/sleep"
)

// noticeTime is the interval at which subscribed jobs are checked, and so the shortest time between
// two notices to a subscriber. graceTime is how long subscriptions outlive a client's stream.
const (
	noticeTime = time.Second
	graceTime  = time.Minute
)

// notices notifies subscribers of new output. A single goroutine serves all subscribers, and runs
// only while there are any. A subscription ends when the client ends it, disconnects or stops
// reading, or when the job has ended.
type notices struct {
	engine job.Engine
	every  time.Duration
	log    *slog.Logger
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	cancel  context.CancelFunc // stops the goroutine; nil: it does not run
	all     map[subscriber]*subscription
	away    map[string]time.Time // by session, when its stream ended
	streams map[string]int       // open streams by session
}

// subscriber identifies a subscription: the client, the resource and the request.
type subscriber struct {
	session server.ClientSession
	uri     string
	listen  string // the request of the newer protocol; empty for resources/subscribe
}

type subscription struct {
	job   string
	who   job.Principal
	meta  map[string]any // sent with every notification
	since time.Time
	at    position // the output already announced
	told  bool     // whether at is set
}

func newNotices(e job.Engine, every time.Duration, log *slog.Logger) *notices {
	return &notices{engine: e, every: every, log: log, all: map[subscriber]*subscription{}, away: map[string]time.Time{}, streams: map[string]int{}}
}

func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	if n.cancel != nil {
		n.cancel()
	}
	n.mu.Unlock()
	n.work.Wait()
}

// hooks track subscriptions: mcp-go accepts them and leaves the rest to the server.
func (n *notices) hooks() *server.Hooks {
	h := &server.Hooks{}
	h.AddAfterSubscribe(func(ctx context.Context, _ any, r *mcp.SubscribeRequest, _ *mcp.EmptyResult) {
		n.add(ctx, subscriber{session: server.ClientSessionFromContext(ctx), uri: r.Params.URI}, nil)
	})
	h.AddAfterUnsubscribe(func(ctx context.Context, _ any, r *mcp.UnsubscribeRequest, _ *mcp.EmptyResult) {
		n.remove(subscriber{session: server.ClientSessionFromContext(ctx), uri: r.Params.URI})
	})
	h.AddOnUnregisterSession(func(_ context.Context, s server.ClientSession) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.forget(s.SessionID())
	})
	h.AddBeforeSubscriptionsListen(func(ctx context.Context, id any, r *mcp.SubscriptionsListenRequest) {
		n.subscribe(ctx, server.ClientSessionFromContext(ctx), id, r.Params.Notifications.ResourceSubscriptions)
	})
	h.AddAfterSubscriptionsListen(func(ctx context.Context, _ any, _ *mcp.SubscriptionsListenRequest, _ *mcp.SubscriptionsListenResult) {
		// If nothing can be subscribed to, the result follows at once, and the acknowledgement
		// should arrive before it.
		_ = sleep.For(ctx, settleTime)
	})
	return h
}

// mostURIs bounds the subscriptions of a stream: the goroutine checks those of all clients in turn.
const mostURIs = 100

// subscribe adds the subscriptions of a stream; they end with ctx.
func (n *notices) subscribe(ctx context.Context, session server.ClientSession, stream any, uris []string) {
	for _, uri := range uris[:min(len(uris), mostURIs)] {
		s := subscriber{session: session, uri: uri, listen: fmt.Sprint(stream)}
		n.add(ctx, s, map[string]any{mcp.MetaKeySubscriptionID: stream})
		context.AfterFunc(ctx, func() { n.remove(s) })
	}
}

func (n *notices) add(ctx context.Context, s subscriber, meta map[string]any) {
	r, err := parseResource(s.uri)
	if err != nil || r.what != "output" || s.session == nil {
		return // nothing else changes
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	who, _ := job.PrincipalFrom(ctx)
	n.all[s] = &subscription{job: r.job, who: who, meta: meta, since: time.Now()}
	if n.cancel == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		n.cancel = cancel
		n.work.Go(func() { n.run(ctx) })
	}
}

func (n *notices) remove(s subscriber) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, s)
}

// forget ends a session's subscriptions; the caller holds n.mu.
func (n *notices) forget(session string) {
	maps.DeleteFunc(n.all, func(s subscriber, _ *subscription) bool { return s.session.SessionID() == session })
	delete(n.away, session)
}

// stream records that a session's stream is open; the caller calls closed when it closes.
func (n *notices) stream(session string) (closed func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams[session]++
	delete(n.away, session)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.streams[session]--; n.streams[session] == 0 {
			delete(n.streams, session)
			for s := range n.all {
				if s.session.SessionID() == session {
					n.away[session] = time.Now()
				}
			}
		}
	}
}

func (n *notices) run(ctx context.Context) {
	for sleep.For(ctx, n.every) == nil {
		for at, who := range n.jobs() {
			n.look(job.WithPrincipal(ctx, who), at)
		}
		n.mu.Lock()
		if len(n.all) == 0 {
			n.cancel()
			n.cancel = nil
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
	}
}

// subject is a job with the principal and token of a subscription to it: each subscriber sees only
// what that token may see.
type subject struct{ job, principal, token string }

func (s *subscription) subject() subject { return subject{s.job, s.who.Name, s.who.Token} }

// jobs returns the subjects of the subscriptions, without those of clients that are gone and of
// tokens that are no longer valid.
func (n *notices) jobs() map[subject]job.Principal {
	n.mu.Lock()
	defer n.mu.Unlock()
	for session, since := range n.away {
		if time.Since(since) >= graceTime {
			n.forget(session)
		}
	}
	maps.DeleteFunc(n.all, func(_ subscriber, s *subscription) bool { return s.who.Ended() })
	all := map[subject]job.Principal{}
	for _, s := range n.all {
		all[s.subject()] = s.who
	}
	return all
}

// look notifies the subscribers of a job of news. A new subscriber is always notified once: it may
// have read the output before it was registered.
func (n *notices) look(ctx context.Context, about subject) {
	id := about.job
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	now, err := end(ctx, n.engine, id)
	var j job.Job
	if err == nil {
		j, err = n.engine.Job(ctx, id)
	}
	if err != nil && !errors.Is(err, job.ErrNotFound) {
		if ctx.Err() == nil {
			n.log.Warn("a subscribed job cannot be read", "job_id", id, "err", err)
		}
		return
	}
	over := err != nil || j.Status.Terminal()
	n.mu.Lock()
	defer n.mu.Unlock()
	for s, sub := range n.all {
		if sub.subject() != about || time.Since(sub.since) < n.every {
			continue // a subscription must be acknowledged before its first notice
		}
		news := over || !sub.told || now != sub.at
		sub.at, sub.told = now, true
		if news && !notify(s.session, mcp.MethodNotificationResourceUpdated, sub.meta, map[string]any{"uri": s.uri}) || over {
			delete(n.all, s)
		}
	}
}
