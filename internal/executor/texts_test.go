package executor_test

import (
	"strings"
	"testing"
	"unicode"

	"linus/internal/job"
	"linus/internal/providertest"
)

// nasty is what a guest may say: colours, a title, the clipboard, C1 controls,
// text turned around, bytes that are no UTF-8.
const nasty = "a\x1b[31mb\x1b]0;t\ac\x1b]52;c;eA==\x1b\\d\u009b1me\u0085f\u202eg\x7f\rh\x9bi"

// obeyed reports whether text has something in it that a terminal would obey.
func obeyed(text string) bool {
	return strings.ContainsFunc(strings.ToValidUTF8(text, "\x00"), func(r rune) bool {
		return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
	})
}

func TestTexts_OfGuestsAreFitToBeShown(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{ExitCode: 1, Artifacts: map[string][]byte{"out/" + nasty: []byte("kept")}})
	token := make(chan string, 1)
	r.fake.Set(providertest.Behaviour{Warning: "warns " + nasty, Task: do, OnStart: func(_ job.Job, p job.Payload) { token <- p.Token }})
	ended := []string{r.submit(wanting("**"))}
	r.until(ended[0], func(j job.Job) bool { return j.Status == job.Running })
	if err := r.Report(t.Context(), ended[0], <-token, job.Report{Kind: job.ReportStatus, Progress: "reports " + nasty}); err != nil {
		t.Fatal(err)
	}
	if j := r.eventually(ended[0], func(j job.Job) bool { return strings.Contains(j.Progress, "reports") }); j.Progress != "reports abcdefgh\uFFFDi" {
		t.Errorf("progress %q", j.Progress)
	}
	release()
	if j := r.wait(ended[0]); len(j.Artifacts) != 1 || obeyed(j.Artifacts[0].Path) || !strings.HasPrefix(j.Artifacts[0].Path, "out/a_[31mb_]0;") {
		t.Errorf("artifacts %+v", j.Artifacts)
	}
	if files, _ := r.artifacts(ended[0]); len(files) != 1 {
		t.Errorf("artifacts %v", files)
	}
	r.fake.Set(providertest.Behaviour{Starts: []error{&job.HostError{Op: "start", Class: job.HostVM, Text: "bad: " + nasty}}})
	ended = append(ended, r.submit())
	warned := false
	for _, id := range ended {
		j := r.wait(id)
		if obeyed(j.Outcome.Error) || (id == ended[1] && !strings.Contains(j.Outcome.Error, "bad: abcdefgh")) {
			t.Errorf("error %q", j.Outcome.Error)
		}
		events, err := r.store.Events(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			warned = warned || event.Text == "warns abcdefgh\uFFFDi"
			if obeyed(event.Text) {
				t.Errorf("%s %q", event.Kind, event.Text)
			}
		}
	}
	if !warned {
		t.Error("the warning is nowhere")
	}
}
