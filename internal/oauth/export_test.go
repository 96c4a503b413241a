package oauth

import "time"

// Later makes the keys' clock go ahead by d.
func (v *Verifier) Later(d time.Duration) { v.keys.later(d) }

// Later is the same of a Login.
func (l *Login) Later(d time.Duration) { l.keys.later(d) }

func (k *keys) later(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.now
	k.now = func() time.Time { return before().Add(d) }
}

// Rest waits until no attempt to fetch the keys is in progress.
func (v *Verifier) Rest() {
	v.keys.mu.Lock()
	attempt := v.keys.attempt
	v.keys.mu.Unlock()
	if attempt != nil {
		<-attempt
	}
}
