package job

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Session says which piece of work of a queue a job serves. It is given with the submission, never
// by the manifest, so that a dispatcher finds its sessions by it.
type Session struct {
	Kind       string `json:"kind"`       // of queue: claude, github
	Queue      string `json:"queue"`      // the queue, as its service names it
	Dispatcher string `json:"dispatcher"` // name of the dispatcher that submitted the job
	Name       string `json:"name"`       // of the session in the queue: unique
	Work       Work   `json:"work"`

	// Keep is how many VMs may be kept (manifest.keep) for the queue's sessions; beyond that, the
	// least recently used one is removed. 0: 5.
	Keep int `json:"keep,omitempty"`
}

// Work is a piece of work in a queue.
type Work struct {
	ID     string    `json:"id"`               // unique in its queue, and safe in a label's value
	Labels []string  `json:"labels,omitempty"` // requirements for its runner, which choose the VM's shape
	Of     string    `json:"of,omitempty"`     // what it belongs to, as owner/repository; usage is reported by it
	Title  string    `json:"title,omitempty"`  // for people; untrusted text, one line
	URL    string    `json:"url,omitempty"`    // where people find it in the service; empty: nowhere
	Since  time.Time `json:"since,omitzero"`   // since when it waits; zero: the queue does not say
}

// Bounds of a session's texts, in bytes.
const (
	maxSessionText = 200
	maxSessionURL  = 2000
	maxWorkLabels  = 50
)

// DefaultKeep is how many VMs are kept for a queue's sessions by default; MaxKeep bounds Session.Keep.
const (
	DefaultKeep = 5
	MaxKeep     = 1000
)

// Check returns a *FieldError if the session is invalid.
func (s Session) Check() error {
	for _, text := range []struct{ name, is string }{{"kind", s.Kind}, {"queue", s.Queue}, {"dispatcher", s.Dispatcher}, {"name", s.Name}} {
		if err := sessionText("session."+text.name, text.is, true); err != nil {
			return err
		}
	}
	if err := Within("session.keep", int64(s.Keep), 0, MaxKeep); err != nil {
		return err
	}
	return s.Work.Check()
}

// Check returns a *FieldError if the work is invalid.
func (w Work) Check() error {
	if len(w.Labels) > maxWorkLabels {
		return field("session.work.labels", fmt.Sprintf("give at most %d", maxWorkLabels), "are %d", len(w.Labels))
	}
	if w.ID == "" || labelProblem(w.ID) != "" {
		return field("session.work.id", fmt.Sprintf("give 1 to %d printable characters", maxLabel), "is empty, too long or not printable")
	}
	for _, label := range w.Labels {
		if err := sessionText("session.work.labels", label, true); err != nil {
			return err
		}
	}
	if u, err := url.Parse(w.URL); w.URL != "" && (err != nil || len(w.URL) > maxSessionURL || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
		return field("session.work.url", fmt.Sprintf("give one of http or https, at most %d bytes, or leave it out", maxSessionURL), "%.80q is not a URL", w.URL)
	}
	if err := sessionText("session.work.of", w.Of, false); err != nil {
		return err
	}
	return sessionText("session.work.title", w.Title, false)
}

func sessionText(name, text string, needed bool) error {
	if len(text) > maxSessionText || needed && text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return field(name, fmt.Sprintf("give at most %d printable bytes", maxSessionText), "is empty, too long or not printable")
	}
	return nil
}

// Presentable returns the work with its untrusted texts made valid for a session.
func (w Work) Presentable() Work {
	w.Title, w.Of = oneLine(w.Title), oneLine(w.Of)
	if (Work{ID: "it", URL: w.URL}).Check() != nil {
		w.URL = ""
	}
	return w
}

func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxSessionText {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:maxSessionText]), "") // cloned, so that the rest of the text can be freed
}
