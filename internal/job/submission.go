package job

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

	"linus/internal/vm"
)

// Submission is a request for a job, or for a VM that stays.
type Submission struct {
	Manifest       Manifest `json:"manifest" api:",required"`
	IdempotencyKey string   `json:"idempotency_key,omitempty" api:"Idempotency-Key,header"`
	Client         string   `json:"client,omitempty" api:"-"`

	// Session is the piece of work that the job serves, if a dispatcher submits it.
	Session *Session `json:"session,omitempty"`

	// Schedule is the name of the schedule that submits the job; empty: none.
	Schedule string `json:"-"`

	// Wait is how long the response may wait for the job's end, in seconds; 0: not at all.
	Wait int `json:"-" api:"wait_seconds"`

	// Principal is the caller, which the engine takes from the context. Zero: the operator.
	Principal Principal `json:"-"`
	// Sandbox is what a face of the engine stores with a VM that its client uses as a sandbox; nil:
	// the VM is not a sandbox.
	Sandbox *vm.Sandbox `json:"-"`
	// Node is the node on which the engine itself wants a VM that stays; empty: one is chosen.
	Node string `json:"-"`
}

// CheckJSON returns an *InvalidError for faults in the submission's JSON that its fields do not
// show. tree is from DecodeStrict.
func (Submission) CheckJSON(tree any) error {
	given, _ := tree.(map[string]any)
	if bad := explicitZeros("manifest", given["manifest"], reflect.TypeFor[Manifest]()); len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

// CheckVM returns a *FieldError if the submission cannot be a request for a VM, whatever its manifest.
func (s Submission) CheckVM() error {
	if err := CheckKey(s.IdempotencyKey); err != nil {
		return err
	}
	if s.Session != nil {
		return field("session", "leave it out", "is for jobs that a dispatcher submits, and not for a VM that stays")
	}
	return checkSandbox(s.Sandbox)
}

// CheckSession returns an error if the submission's session is invalid, or its principal may not
// submit sessions.
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

// Digest identifies the manifest, including the contents of its files, of a submission with an
// idempotency key. It is empty without a key.
func (s Submission) Digest() (string, error) {
	if s.IdempotencyKey == "" {
		return "", nil
	}
	hash := sha256.New()
	err := json.NewEncoder(hash).Encode(struct {
		Manifest Manifest `json:"manifest"`
		Kind     Kind     `json:"kind"` // constant, as stored when there were other kinds

		Sandbox *vm.Sandbox `json:"sandbox,omitempty"`
		Session *Session    `json:"session,omitempty"`
	}{s.Manifest, KindTask, s.Sandbox, s.Session})
	return hex.EncodeToString(hash.Sum(nil)), err
}

// Same returns the job first submitted with a key, or a *FieldError if its submission had another digest.
func (j Job) Same(digest string) (Job, error) {
	if j.Submission == digest {
		return j, nil
	}
	return Job{}, &FieldError{
		Field: "idempotency_key", Problem: "was used for another submission, job " + j.ID,
		Remedy: "use a new key for a new job; a key returns its job again only for the same manifest", Fault: FaultState,
	}
}
