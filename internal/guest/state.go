package guest

import (
	"fmt"
	"strconv"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/result"
)

// Bounds of what a job runner can truthfully report. Anybody may control its VM: values beyond
// these bounds are an error, like no answer.
const (
	maxExitCode = 255
	maxDuration = 30 * 24 * time.Hour // a task may run for a day
	maxBytes    = 1 << 50             // of one stream
)

// exitReasons are the reasons for which a task can have ended.
var exitReasons = map[string]bool{"exit": true, "timeout": true, "stopped": true, "lost": true}

// seconds is the format of durations.
var seconds = lazyregexp.New(`^[0-9]{1,10}(\.[0-9]{1,9})?$`)

// bootForm is the kernel's format of a boot ID.
var bootForm = lazyregexp.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// readState decodes the runner's answer to probe.
func readState(res result.Result) (job.RunState, error) {
	var s job.RunState
	state := res.Get("LINUS_JOB_STATE")
	switch state {
	case "absent":
		return s, nil
	case "running":
		s.Started, s.Unattended = true, res.Get("LINUS_RUNNER_ALIVE") == "no"
	case "exited":
		s.Started, s.Exited = true, true
	default:
		return s, fmt.Errorf("the job runner returned state %.100q", state)
	}
	var err error
	number := func(key string, least, most int64) int64 {
		text, ok := res.Lookup(key)
		if !ok {
			return 0
		}
		n, parseErr := strconv.ParseInt(text, 10, 64)
		if parseErr != nil || n < least || n > most {
			err = fmt.Errorf("the job runner returned %s:%.100q, which is impossible", key, text)
			return 0
		}
		return n
	}
	s.StdoutBytes, s.StderrBytes = number("LINUS_STDOUT_BYTES", 0, maxBytes), number("LINUS_STDERR_BYTES", 0, maxBytes)
	if text, ok := res.Lookup("LINUS_DURATION"); ok {
		var parseErr error
		if s.Duration, parseErr = readDuration(text); parseErr != nil {
			err = parseErr
		}
	}
	s.DiskFull = res.Get("LINUS_DISK_FULL") == "yes"
	if !s.Exited {
		return s, err
	}
	s.Reason, s.Text = res.Get("LINUS_EXIT_REASON"), job.Bounded(res.Get("LINUS_EXIT_TEXT"))
	if _, ok := res.Lookup("LINUS_EXIT_CODE"); !ok || !exitReasons[s.Reason] {
		return s, fmt.Errorf("the job runner returned an end without exit code or with reason %.100q", s.Reason)
	}
	least := int64(0)
	if s.Reason == "lost" { // it then has no exit code
		least = -1
	}
	s.ExitCode = int(number("LINUS_EXIT_CODE", least, maxExitCode))
	if _, ok := res.Lookup(sumKeys[0]); ok && err == nil {
		s.Sums, err = readSums(res)
	}
	return s, err
}

// sumKeys are the runner's keys for the sha256 of stdout and of stderr.
var sumKeys = [2]string{"LINUS_STDOUT_SHA256", "LINUS_STDERR_SHA256"}

// sha256Hex is the runner's format of a sha256.
var sha256Hex = lazyregexp.New(`^[0-9a-f]{64}$`)

func readSums(res result.Result) (sums [2]string, err error) {
	for i, key := range sumKeys {
		if sums[i] = res.Get(key); !sha256Hex.MatchString(sums[i]) {
			return [2]string{}, fmt.Errorf("the job runner returned %s:%.100q", key, sums[i])
		}
	}
	return sums, nil
}

func readDuration(text string) (time.Duration, error) {
	if seconds.MatchString(text) {
		if d, err := time.ParseDuration(text + "s"); err == nil && d <= maxDuration {
			return d, nil
		}
	}
	return 0, fmt.Errorf("the job runner returned LINUS_DURATION:%.100q, which is impossible", text)
}
