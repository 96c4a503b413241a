package job

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"linus/internal/vm"
)

// Notify asks for a message at the end of a job.
type Notify struct {
	URL string `json:"url"`
}

// maxNotifyURL bounds the URL of a Notify, in bytes.
const maxNotifyURL = 2000

func (n *Notify) validate() []*FieldError {
	if n == nil {
		return nil
	}
	if problem := WebhookURLProblem(n.URL); problem != "" {
		return []*FieldError{field("manifest.notify.url", "give a URL such as https://ci.example/hooks/linus", "%s", problem)}
	}
	return nil
}

// WebhookURLProblem returns why messages cannot be sent to a URL; empty if they can.
func WebhookURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxNotifyURL:
		return "is longer than 2000 bytes"
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return "is not a URL of https or http"
	case u.User != nil || u.Fragment != "" || strings.ContainsAny(text, " \t\r\n"):
		return "has a user, a fragment or a blank in it"
	}
	return ""
}

// Webhook is a message to deliver about the end of a job, or about a VM. It is recorded together
// with the change it reports, and stays until it is delivered or given up.
type Webhook struct {
	ID        string          `json:"id"` // unique: receivers recognize repeated messages by it
	JobID     string          `json:"job_id,omitempty"`
	VM        string          `json:"vm,omitempty"`      // the VM that it is about, instead of a job
	URL       string          `json:"url,omitempty"`     // empty: the installation's
	Private   bool            `json:"private,omitempty"` // the receiver may have a private address
	Body      json.RawMessage `json:"body"`
	CreatedAt time.Time       `json:"created_at"`

	Attempts int       `json:"-"` // begun so far
	NextAt   time.Time `json:"-"` // of the next one
}

// Host returns the host of its URL; empty: that of the installation's URL.
func (w Webhook) Host() string {
	u, err := url.Parse(w.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// WebhookResult is how an attempt to deliver a Webhook ended.
type WebhookResult struct {
	Host   string // the receiver's host, for people
	Status int    // the HTTP status; 0: no answer
	Err    error  // nil: delivered
	Final  bool   // it must not be retried
}

// Delivery is the progress of delivering a Webhook.
type Delivery struct {
	ID       string        `json:"id"`           // of the message, as its receiver sees it
	To       string        `json:"to,omitempty"` // the receiver's host; empty: WEBHOOK_URL's, before the first attempt
	State    DeliveryState `json:"state"`
	Attempts int           `json:"attempts"`         // attempts that have ended
	Error    string        `json:"error,omitempty"`  // of the last attempt
	At       time.Time     `json:"at"`               // of the last attempt or, before the first, of the job's end
	NextAt   time.Time     `json:"next_at,omitzero"` // of the next attempt; zero: the first is due, or there is no other
}

// DeliveryState is the state of a Delivery.
type DeliveryState string

// The states.
const (
	DeliveryPending DeliveryState = "pending" // it is being tried, or will be retried
	DeliveryDone    DeliveryState = "delivered"
	DeliveryGivenUp DeliveryState = "given_up"
)

// SetDelivery records the progress of delivering a message about the job.
func (j *Job) SetDelivery(d Delivery) {
	at := slices.IndexFunc(j.Webhooks, func(known Delivery) bool { return known.ID == d.ID })
	if at < 0 {
		j.Webhooks = append(j.Webhooks, d)
		return
	}
	j.Webhooks[at] = d
}

// webhookBody is what a receiver gets: what the job was, and how it ended. It has no output, error
// text or task, which may be confidential.
type webhookBody struct {
	Type      string      `json:"type"`
	Timestamp time.Time   `json:"timestamp"`
	Data      webhookData `json:"data"`
}

type webhookData struct {
	JobID       string            `json:"job_id"`
	Kind        Kind              `json:"kind"`
	Name        string            `json:"name,omitempty"` // the VM's
	Status      Status            `json:"status"`
	Reason      Reason            `json:"reason"`
	ExitCode    *int              `json:"exit_code"`
	CreatedAt   time.Time         `json:"created_at"`
	StartedAt   time.Time         `json:"started_at,omitzero"`
	CompletedAt time.Time         `json:"completed_at"`
	Duration    float64           `json:"duration_seconds"`
	Owner       string            `json:"owner"`
	Client      string            `json:"client,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	RetriedAs   string            `json:"retried_as,omitempty"`
	Link        string            `json:"link,omitempty"`
}

// WebhookBody returns the message about a job that has ended. page is the URL of the page of jobs;
// empty: none.
func WebhookBody(j Job, page string) (json.RawMessage, error) {
	d := webhookData{
		JobID: j.ID, Kind: j.Kind, Status: j.Status, Reason: j.Outcome.Reason, ExitCode: j.Outcome.ExitCode,
		CreatedAt: j.CreatedAt, StartedAt: j.StartedAt, CompletedAt: j.CompletedAt, Duration: j.Ran().Seconds(),
		Owner: cmp.Or(j.Principal, OperatorName), Client: j.Client, Labels: j.Manifest.Labels, RetriedAs: j.RetriedAs,
	}
	if j.VM != nil {
		d.Name = j.VM.Name
	}
	if page != "" {
		d.Link = strings.TrimRight(page, "/") + "/jobs/" + url.PathEscape(j.ID)
	}
	return json.Marshal(webhookBody{Type: "job.ended", Timestamp: j.CompletedAt, Data: d})
}

// vmWebhookData is what a receiver gets about a VM that somebody requested.
type vmWebhookData struct {
	VM        string            `json:"vm"`
	VMID      int               `json:"vm_id,omitempty"`
	Name      string            `json:"name"`
	Node      string            `json:"node,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	ReadyAt   time.Time         `json:"ready_at,omitzero"`
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
	Owner     string            `json:"owner"`
	Client    string            `json:"client,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Link      string            `json:"link,omitempty"`
}

// VMWebhookBody returns the message about the change of a requested VM at that time, or nil if there
// is nothing to report. For a VM that could not be created, the failure is the last message.
func VMWebhookBody(was, is vm.VM, at time.Time, page string) (json.RawMessage, error) {
	var what string
	switch {
	case !is.AskedFor():
		return nil, nil
	case is.State != was.State && is.State == vm.LeftAlone:
		what = "vm.left_alone"
	case is.State != was.State && is.State == vm.Destroyed && !is.Own.ReadyAt.IsZero():
		what = "vm.destroyed"
	case is.Own.Failed != "" && was.Own.Failed == "":
		what = "vm.failed"
	case !is.Own.ReadyAt.IsZero() && was.Own.ReadyAt.IsZero():
		what = "vm.ready"
	default:
		return nil, nil
	}
	d := vmWebhookData{
		VM: is.Job, VMID: is.ID, Name: is.Name, Node: is.Node, CreatedAt: is.CreatedAt, ReadyAt: is.Own.ReadyAt, ExpiresAt: is.ExpiresAt,
		Owner: cmp.Or(is.Principal, OperatorName), Client: is.Own.Client, Labels: is.Labels,
	}
	if page != "" {
		d.Link = strings.TrimRight(page, "/") + "/vms/" + url.PathEscape(is.Job)
	}
	return json.Marshal(struct {
		Type      string        `json:"type"`
		Timestamp time.Time     `json:"timestamp"`
		Data      vmWebhookData `json:"data"`
	}{what, at, d})
}

// DispatcherWebhookBody returns the message about a dispatcher whose status has changed, or nil if
// there is nothing to report. It leaves out the reason, which may be confidential.
func DispatcherWebhookBody(was string, d Dispatcher, at time.Time, page string) (json.RawMessage, error) {
	if was == "" && d.Status() == "serving" {
		return nil, nil
	}
	data := map[string]any{
		"queue": d.Queue, "dispatcher": d.Name, "was": was, "sessions": d.Sessions, "places": d.Places, "waiting": d.Waiting,
		"failed": append([]Failing{}, d.Failed...), "owner": cmp.Or(d.Principal, OperatorName),
	}
	if page != "" {
		data["link"] = strings.TrimRight(page, "/") + "/queues"
	}
	return json.Marshal(map[string]any{"type": "queue." + d.Status(), "timestamp": at, "data": data})
}

// WebhookKey decodes a secret: whsec_ followed by base64, as other software has it, or any text.
func WebhookKey(secret string) ([]byte, error) {
	text, encoded := strings.CutPrefix(secret, "whsec_")
	key := []byte(text)
	if encoded {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("what follows whsec_ is not base64: %w", err)
		}
	}
	if len(key) < 16 || len(key) > 512 {
		return nil, fmt.Errorf("the key is %d bytes, it must be 16 to 512", len(key))
	}
	return key, nil
}
