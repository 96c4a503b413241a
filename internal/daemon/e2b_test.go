package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
)

// The access token of a sandbox is good for as long as its owner has a token that could make one.
func TestOwners_HoldWhileATokenMayUseSandboxes(t *testing.T) {
	t.Parallel()
	spec := func(role job.Role, toolsets ...string) job.Token {
		return job.Token{TokenSpec: job.TokenSpec{Name: "ann", Role: role, Toolsets: toolsets}}
	}
	expired := spec(job.RoleRun)
	expired.ExpiresAt = time.Now().Add(-time.Second)
	for name, c := range map[string]struct {
		tokens []job.Token
		err    error
		want   bool
	}{
		"one that may":         {[]job.Token{spec(job.RoleRead), spec(job.RoleRun)}, nil, true},
		"none":                 {nil, nil, false},
		"one that is over":     {[]job.Token{expired}, nil, false},
		"one that reads":       {[]job.Token{spec(job.RoleRead)}, nil, false},
		"one that is narrowed": {[]job.Token{spec(job.RoleRun, "vm")}, nil, false},
		"nobody knows":         {[]job.Token{spec(job.RoleRun)}, errors.New("the store is away"), false},
	} {
		o := &owners{tokens: func(context.Context) ([]job.Token, error) { return c.tokens, c.err }}
		if got := o.hold(t.Context(), "ann"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		if !o.hold(t.Context(), "") {
			t.Errorf("%s: the operator's are not held", name)
		}
	}
}

// A store that does not answer for a moment ends nobody's streams, and is waited for by one.
func TestOwners_HoldWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away error
		wait := make(chan struct{})
		close(wait)
		o := &owners{tokens: func(context.Context) ([]job.Token, error) {
			<-wait
			return []job.Token{{TokenSpec: job.TokenSpec{Name: "ann", Role: job.RoleRun}}}, away
		}}
		if !o.hold(t.Context(), "ann") || o.hold(t.Context(), "bob") {
			t.Fatal("they are not known")
		}
		away = errors.New("the store is away")
		time.Sleep(storeTime / 2)
		if !o.hold(t.Context(), "ann") || o.hold(t.Context(), "bob") {
			t.Error("they are forgotten as soon as the store is away")
		}
		wait = make(chan struct{})
		asked := make(chan bool)
		go func() { asked <- o.hold(t.Context(), "ann") }()
		synctest.Wait()
		if !o.hold(t.Context(), "ann") {
			t.Error("others wait for the store, too")
		}
		close(wait)
		if !<-asked {
			t.Error("who waited is refused")
		}
		time.Sleep(storeTime)
		if o.hold(t.Context(), "ann") {
			t.Error("they are trusted for ever")
		}
		away = nil
		if !o.hold(t.Context(), "ann") {
			t.Error("they are not held once it is back")
		}
	})
}
