package job

import (
	"slices"
	"strings"
)

// Where the files are that linus run adds to a job, which nobody has asked for.
const (
	RunFiles = "/tmp/linus-run-" // in its VM, before a token: what is sent, and the program that runs the command
	RunKept  = "linus-run/."     // in its user's home, before the tree's name: what was changed of it, as artifacts
)

// typed is a task without what linus run puts before the command.
func typed(task string) string {
	sent, is := strings.CutPrefix(task, "exec -- "+RunFiles)
	token, command, found := strings.Cut(sent, "/run ")
	if !is || !found || strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return task
	}
	return "exec -- " + command
}

// Offered is the job with the artifacts that were asked for.
func (j Job) Offered() Job {
	j.Artifacts = slices.DeleteFunc(slices.Clone(j.Artifacts), func(a Artifact) bool { return strings.HasPrefix(a.Path, RunKept) })
	j.SkippedArtifacts = j.SkippedArtifacts.Offered()
	return j
}

// Offered is what was asked for of them.
func (s SkippedArtifacts) Offered() SkippedArtifacts {
	all := len(s.ArtifactsSkipped)
	s.ArtifactsSkipped = slices.DeleteFunc(slices.Clone(s.ArtifactsSkipped), func(a SkippedArtifact) bool { return strings.HasPrefix(a.Path, RunKept) })
	s.ArtifactsSkippedCount -= all - len(s.ArtifactsSkipped)
	return s
}
