package job

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

	"linus/internal/vm"
)

// Submission is what a caller asks for: a job, or a VM that stays.
type Submission struct {
	Manifest       Manifest `json:"manifest" api:",required"`
	IdempotencyKey string   `json:"idempotency_key,omitempty" api:"Idempotency-Key,header"`
	Client         string   `json:"client,omitempty" api:"-"`

	// Session is the piece of work that the job serves, if a dispatcher submits it.
	Session *Session `json:"session,omitempty"`

	// Schedule is the name of the schedule that submits it; empty: none does.
	Schedule string `json:"-"`

	// Wait is how long the response may wait for the job's end, in seconds; 0: not at all.
	Wait int `json:"-" api:"wait_seconds"`

	// Principal is the caller's, which the engine takes from the context. Zero: the
	// operator's.
	Principal Principal `json:"-"`
	// Sandbox is what a face of the engine keeps with a VM that its client uses as a sandbox; nil: it
	// is none.
	Sandbox *vm.Sandbox `json:"-"`
	// Node is where the engine itself wants a VM that stays, of several; empty: one is chosen.
	Node string `json:"-"`
}

// CheckJSON returns an *InvalidError for what the submission's JSON says and its fields do
// not. tree is that of DecodeStrict.
func (Submission) CheckJSON(tree any) error {
	given, _ := tree.(map[string]any)
	if bad := explicitZeros("manifest", given["manifest"], reflect.TypeFor[Manifest]()); len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

// CheckVM returns a *FieldError if a VM cannot be asked for so, whatever its manifest is.
func (s Submission) CheckVM() error {
	if err := CheckKey(s.IdempotencyKey); err != nil {
		return err
	}
	if s.Session != nil {
		return field("session", "leave it out", "is for jobs that a dispatcher submits, and not for a VM that stays")
	}
	return checkSandbox(s.Sandbox)
}

// CheckSession returns an error if the submission cannot be a session, or its principal may submit
// none.
func (s Submission) CheckSession() error {
	if s.Session == nil {
		return nil
	}
	if err := s.Principal.Narrowed("a dispatcher's session", DispatchToolset); err != nil {
		return err
	}
	return s.Session.Check()
}

// maxKey bounds an idempotency key, in bytes.
const maxKey = 200

// CheckKey returns a *FieldError for an idempotency key that is too long.
func CheckKey(key string) error {
	if len(key) <= maxKey {
		return nil
	}
	return &FieldError{
		Field: "idempotency_key", Problem: fmt.Sprintf("is %d bytes, the limit is %d", len(key), maxKey),
		Remedy: "use a shorter one, such as a UUID",
	}
}

// Digest distinguishes submissions with an idempotency key by the manifest, with its files'
// contents; empty without a key.
func (s Submission) Digest() (string, error) {
	if s.IdempotencyKey == "" {
		return "", nil
	}
	hash := sha256.New()
	err := json.NewEncoder(hash).Encode(struct {
		Manifest Manifest `json:"manifest"`
		Kind     Kind     `json:"kind"` // as it was stored when there were others

		Sandbox *vm.Sandbox `json:"sandbox,omitempty"`
		Session *Session    `json:"session,omitempty"`
	}{s.Manifest, KindTask, s.Sandbox, s.Session})
	return hex.EncodeToString(hash.Sum(nil)), err
}

// Same returns the job first submitted with a key; a *FieldError if what it was submitted
// with has another digest.
func (j Job) Same(digest string) (Job, error) {
	if j.Submission == digest {
		return j, nil
	}
	return Job{}, &FieldError{
		Field: "idempotency_key", Problem: "was used for another submission, job " + j.ID,
		Remedy: "use a new key for a new job; a key returns its job again only for the same manifest", Fault: FaultState,
	}
}
