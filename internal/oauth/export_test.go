package oauth

import "time"

// Later makes the keys' clock go ahead by d.
func (v *Verifier) Later(d time.Duration) {
	v.keys.mu.Lock()
	defer v.keys.mu.Unlock()
	before := v.keys.now
	v.keys.now = func() time.Time { return before().Add(d) }
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
