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

// Offered is what a verb returns, of artifacts what was asked for alone: those that linus run adds
// are got by their names. A job has the names that items of a list have.
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
