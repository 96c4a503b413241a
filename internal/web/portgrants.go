package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
)

// Lifetimes of what stands for a session at a port, where the session's own cookie is not sent.
const (
	grantTime = 12 * time.Hour // after that the browser has to show its session again
	codeTime  = 30 * time.Second
)

// granted returns the principal of a grant, and a function that reports whether its session is
// still valid.
func (a *api) granted(ctx context.Context, id, grant string) (who job.Principal, still func() bool, err error) {
	session, ok := a.pages.sessions.granted(id, grant)
	if !ok {
		return who, nil, job.ErrUnauthorized
	}
	who, err = a.pages.holder(ctx, session)
	return who, func() bool { return a.pages.sessions.goesOn(session) }, err
}

// grant returns a signed token that stands for a session at one port.
func (s sessions) grant(id, session string) string {
	return s.sign("port "+id, strconv.FormatInt(time.Now().Add(grantTime).Unix(), 10)+"."+session)
}

// granted returns the session that a grant stands for, if both are valid.
func (s sessions) granted(id, grant string) (session string, ok bool) {
	text, ok := s.signed("port "+id, grant)
	expiry, session, _ := strings.Cut(text, ".")
	until, err := strconv.ParseInt(expiry, 10, 64)
	return session, ok && err == nil && time.Now().Unix() < until && s.goesOn(session)
}

// code returns a signed code that carries a session to the host of a port, for the browser that has
// a state.
func (s sessions) code(id, state, session string) string {
	return s.sign("code "+id+" "+state, fmt.Sprintf("%d.%s.%s", time.Now().Add(codeTime).Unix(), rand.Text(), session))
}

// redeem returns the session of a code. Each code can be redeemed once.
func (p *ports) redeem(s sessions, id, state, code string) (session string, ok bool) {
	text, ok := s.signed("code "+id+" "+state, code)
	parts := strings.SplitN(text, ".", 3)
	if !ok || !isState(state) || len(parts) != 3 {
		return "", false
	}
	now := time.Now().Unix()
	until, err := strconv.ParseInt(parts[0], 10, 64)
	p.mu.Lock()
	defer p.mu.Unlock()
	for random, expiry := range p.used {
		if expiry <= now {
			delete(p.used, random)
		}
	}
	if _, again := p.used[parts[1]]; again || err != nil || now >= until || !s.goesOn(parts[2]) {
		return "", false
	}
	p.used[parts[1]] = until
	return parts[2], true
}

func isState(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == 32
}
