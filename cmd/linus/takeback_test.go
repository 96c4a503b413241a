package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/worktree"
)

// emptyFiles is an engine all of whose artifacts are empty.
type emptyFiles struct{ job.Engine }

func (emptyFiles) OpenArtifact(context.Context, string, string) (io.ReadCloser, job.Artifact, error) {
	sum := sha256.Sum256(nil)
	return io.NopCloser(strings.NewReader("")), job.Artifact{Mode: "0644", SHA256: hex.EncodeToString(sum[:])}, nil
}

// Of a job that could not keep more files than are listed, the others are said to be, and of none that is
// missed it is said that the VM has none.
func TestPull_TellsOfWhatIsNotListed(t *testing.T) {
	r := treeRun{name: "app-1234", token: "TOKEN"}
	for _, tt := range []struct {
		pull  string
		more  int
		fails string // with what
		notes string
	}{
		{"dist", 9, "not pulled: dist/49: too large\n9 more files or patterns are not listed that the job could not keep: what --pull asks for may be among them", ""},
		{"dist", 0, "not pulled: dist/49: too large", ""},
		{"report.xml", 1, "not pulled: report.xml: there is no such file in the VM, or it was not kept\n1 more files or patterns are not listed that the job could not keep: what --pull asks for may be among them", ""},
		{"report.xml", 0, "not pulled: report.xml: there is no such file in the VM", ""},
		{"there", 3, "3 more files or patterns are not listed that the job could not keep: what --pull asks for may be among them", "pulled: there\n"},
		{"there", 2, "", "pulled: there\n2 more files or patterns are not listed that the job could not keep: what --pull asks for may be among them\n"},
		{"there", 0, "", "pulled: there\n"},
	} {
		var said bytes.Buffer
		j := job.Job{Artifacts: []job.Artifact{{Path: r.pulled("there")}}, Manifest: job.Manifest{Artifacts: []string{r.pulled(tt.pull)}}}
		for i := range job.MaxSkipped + tt.more {
			j.Skip(r.pulled(fmt.Sprintf("dist/%d", i)), "too large")
		}
		err := (&app{stderr: &said}).pullRun(t.Context(), &session{Engine: emptyFiles{}}, j, worktree.Tree{}, r, takeFlags{pull: []string{tt.pull}, to: t.TempDir()})
		if err == nil && tt.fails != "" || err != nil && (tt.fails == "" || !strings.HasSuffix(err.Error(), tt.fails)) || said.String() != tt.notes {
			t.Errorf("%s, %d more: %q, %v", tt.pull, tt.more, said.String(), err)
		}
	}
}
