package main

import (
	"fmt"
	"strings"
)

// Exit codes. For verbs that wait for a job, the last ones follow timeout(1) and docker(1).
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitTimeout  = 124
	exitNoCode   = 125
	exitDetached = 130
)

// exitCodes returns the exit codes with their meanings, for help and the documents.
func exitCodes() []exitMeaning {
	return []exitMeaning{
		{exitOK, "done"},
		{exitFailure, "failure, `host check` found something missing, a step of `host test` failed or it was cancelled, or a job's commits were not kept or pushed"},
		{exitUsage, "invalid arguments, manifest or settings; nothing was done"},
		{exitTimeout, "the job's task timed out"},
		{exitNoCode, "the job ended without an exit code: it could not be started, or was lost, cancelled or killed"},
		{exitDetached, "Ctrl-C while waiting for a job; the job keeps running"},
	}
}

type exitMeaning struct {
	code int
	text string
}

// exitHelp returns the text of linus --help, with the exit codes.
func exitHelp() string {
	var b strings.Builder
	b.WriteString("Run jobs in ephemeral Proxmox VE virtual machines.\n\n" +
		"Documents: linus help --list lists them, linus help TOPIC shows one.\n\n" +
		"Exit codes (commands that wait for a job exit with its task's exit code, if it has one):\n")
	for _, e := range exitCodes() {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, strings.ReplaceAll(e.text, "`", ""))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
