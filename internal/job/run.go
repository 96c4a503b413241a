package job

import (
	"slices"
	"strings"
)

// Paths of the files that linus run adds to a job.
const (
	RunFiles = "/tmp/linus-run-" // in its VM, before a token: the files sent, and the program that runs the command
	RunKept  = "linus-run/."     // in its user's home, before the tree's name: the tree's changes, as artifacts
)

// typed returns a task without what linus run puts before the command.
func typed(task string) string {
	sent, is := strings.CutPrefix(task, "exec -- "+RunFiles)
	token, command, found := strings.Cut(sent, "/run ")
	if !is || !found || strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return task
	}
	return "exec -- " + command
}

// Offered returns a verb's result with only those artifacts that were requested: artifacts that
// linus run adds can only be fetched by name. It also fills in a job's fields for list items.
func Offered(out any) any {
	switch out := out.(type) {
	case Job:
		return out.offered()
	case WatchedJob:
		out.Job = out.Job.offered()
		return out
	case Result:
		out.SkippedArtifacts = out.SkippedArtifacts.offered()
		return out
	}
	return out
}

func (j Job) offered() Job {
	j.Task, j.Labels = TaskHead(j.Manifest.Task), j.Manifest.Labels
	j.Artifacts = slices.DeleteFunc(slices.Clone(j.Artifacts), func(a Artifact) bool { return strings.HasPrefix(a.Path, RunKept) })
	j.SkippedArtifacts = j.SkippedArtifacts.offered()
	return j
}

func (s SkippedArtifacts) offered() SkippedArtifacts {
	all := len(s.ArtifactsSkipped)
	s.ArtifactsSkipped = slices.DeleteFunc(slices.Clone(s.ArtifactsSkipped), func(a SkippedArtifact) bool { return strings.HasPrefix(a.Path, RunKept) })
	s.ArtifactsSkippedCount -= all - len(s.ArtifactsSkipped)
	return s
}
