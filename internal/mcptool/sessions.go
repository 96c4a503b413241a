package mcptool

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// sessions are the HTTP sessions. Each belongs to the token that began it, and does not exist for
// other tokens, so that nobody reads another's notifications.
type sessions struct {
	mu   sync.Mutex
	of   map[string]held // by session ID
	uses int64           // uses of all sessions so far
}

// held records the holder of a session, and when it was last used.
type held struct {
	holder string
	use    int64 // its number among uses
}

// maxSessions is the number of sessions per holder. Each costs memory until it is ended, or
// forgotten after idleTime.
const maxSessions = 256

// holderOf identifies the token of a request. OAuth tokens are replaced every few minutes, so all
// OAuth tokens of a principal count as one.
func holderOf(r *http.Request) string {
	if r == nil {
		return ""
	}
	p, _ := job.PrincipalFrom(r.Context())
	if p.OAuth {
		return p.Name
	}
	return p.Name + "/" + p.Token
}

func (s *sessions) has(id, holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.of[id]
	if !ok || of.holder != holder {
		return false
	}
	s.uses++
	s.of[id] = held{holder, s.uses}
	return true
}

// surplus returns the least recently used session of a holder that has more than maxSessions;
// empty: it has no more.
func (s *sessions) surplus(holder string) (oldest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id, of := range s.of {
		if of.holder != holder {
			continue
		}
		if n++; oldest == "" || of.use < s.of[oldest].use {
			oldest = id
		}
	}
	if n <= maxSessions {
		return ""
	}
	return oldest
}

// ResolveSessionIdManager returns the sessions of the request's holder.
func (s *sessions) ResolveSessionIdManager(r *http.Request) server.SessionIdManager { //nolint:revive // mcp-go's name
	return sessionsOf{s, holderOf(r), r == nil}
}

// sessionsOf are the sessions of one holder, or of all holders for mcp-go's own work.
type sessionsOf struct {
	*sessions
	holder string
	all    bool
}

// Generate begins a session.
func (s sessionsOf) Generate() string {
	id := "mcp-session-" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses++
	s.of[id] = held{s.holder, s.uses}
	return id
}

// Validate returns an error unless the session is the holder's.
func (s sessionsOf) Validate(id string) (isTerminated bool, err error) {
	if !s.has(id, s.holder) {
		return false, fmt.Errorf("session not found: %.80s", id)
	}
	return false, nil
}

// Terminate ends a session.
func (s sessionsOf) Terminate(id string) (isNotAllowed bool, err error) {
	if !s.all && !s.has(id, s.holder) {
		return true, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
	return false, nil
}
