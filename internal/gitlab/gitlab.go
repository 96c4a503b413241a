// Package gitlab speaks the protocol of GitLab Runner's custom executor: what the runner says about a
// job, the answers it gets, and the scripts that run in the job's VM. It knows neither engines nor
// commands. Names, exit codes and files are those of GitLab Runner 19.4.0 (docs/executors/custom.md,
// executors/custom/api, common/spec/spec.go).
package gitlab

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"linus/internal/lazyregexp"
)

// Job is a job of GitLab. What decides about its VM comes from the runner's own file, not from the job's
// variables, which the author of a pipeline can set.
type Job struct {
	ID      int64
	VM      string        // name of its VM, unique to the job
	Project string        // group/project
	Name    string        // as the pipeline has it
	Image   string        // the image it asks for; empty: none
	Timeout time.Duration // of the job as a whole

	env    map[string]string
	shared []string // names of variables that are not secret
}

// Failure has the exit codes of failed stages, and the file for the exit code of the job's script.
type Failure struct {
	Build, System int
	CodeFile      string // empty: nowhere
}

// Failures returns the exit codes that the runner expects of failed stages, from the documented
// variables. Stages without these variables fail correctly with the usual values.
func Failures(env map[string]string) Failure {
	code := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(env[name]); err == nil && n > 0 && n < 256 {
			return n
		}
		return otherwise
	}
	return Failure{code("BUILD_FAILURE_EXIT_CODE", 1), code("SYSTEM_FAILURE_EXIT_CODE", 2), env["BUILD_EXIT_CODE_FILE"]}
}

// Tell writes the exit code of a job's script to the file that the runner reads.
func (f Failure) Tell(code int) error {
	if f.CodeFile == "" {
		return nil
	}
	return os.WriteFile(f.CodeFile, []byte(strconv.Itoa(code)), 0o600)
}

// response is the part we read of a job's response, a file that the runner writes for each job.
type response struct {
	ID      int64  `json:"id"`
	Token   string `json:"token"`
	JobInfo struct {
		Name            string `json:"name"`
		ProjectFullPath string `json:"project_full_path"`
		ProjectName     string `json:"project_name"`
	} `json:"job_info"`
	RunnerInfo struct {
		Timeout int64 `json:"timeout"`
	} `json:"runner_info"`
	Image struct {
		Name string `json:"name"`
	} `json:"image"`
	Variables []struct {
		Key    string `json:"key"`
		Public bool   `json:"public"`
		Masked bool   `json:"masked"`
		File   bool   `json:"file"`
	} `json:"variables"`
}

// maxResponse bounds the file, in bytes. It includes the job's variables.
const maxResponse = 64 << 20

// usualTimeout is the timeout of a job if the runner gives none.
const usualTimeout = time.Hour

// Read returns the job that the runner's environment describes.
func Read(env map[string]string) (*Job, error) {
	path := env["JOB_RESPONSE_FILE"]
	if path == "" {
		return nil, errors.New("JOB_RESPONSE_FILE is not set: this is run by GitLab Runner 14.1 or later, as the custom executor's command")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("JOB_RESPONSE_FILE: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	var r response
	if err := json.NewDecoder(io.LimitReader(f, maxResponse)).Decode(&r); err != nil {
		return nil, fmt.Errorf("JOB_RESPONSE_FILE %s: %w", path, err)
	}
	if r.ID < 1 || r.Token == "" {
		return nil, fmt.Errorf("JOB_RESPONSE_FILE %s has no job's id and token", path)
	}
	// The token is unique to the job: its digest distinguishes jobs with the same ID on two servers, and
	// nobody can make a VM of that name in advance.
	j := &Job{ID: r.ID, VM: fmt.Sprintf("gitlab-%d-%x", r.ID, sha256.Sum256([]byte(r.Token)))[:len("gitlab--")+len(strconv.FormatInt(r.ID, 10))+8], env: env}
	j.Project, j.Name, j.Image = r.JobInfo.ProjectFullPath, r.JobInfo.Name, r.Image.Name
	if j.Project == "" {
		j.Project = r.JobInfo.ProjectName
	}
	if j.Timeout = usualTimeout; r.RunnerInfo.Timeout > 0 {
		j.Timeout = time.Duration(min(r.RunnerInfo.Timeout, 366*86400)) * time.Second
	}
	for _, v := range r.Variables {
		if v.Public && !v.Masked && !v.File {
			j.shared = append(j.shared, v.Key)
		}
	}
	return j, nil
}

// JobError is a fault of the job, not of its runner: a retry does not help.
type JobError struct{ Err error }

func (e *JobError) Error() string { return e.Err.Error() }
func (e *JobError) Unwrap() error { return e.Err }

// Variable returns one of the job's variables, or "" if it is not set.
func (j *Job) Variable(name string) string { return j.env["CUSTOM_ENV_"+name] }

// Labels returns the labels of the job's VM and of what runs in it.
func (j *Job) Labels() map[string]string {
	labels := map[string]string{"gitlab/job": strconv.FormatInt(j.ID, 10)}
	for key, text := range map[string]string{"gitlab/project": j.Project, "gitlab/name": j.Name} {
		if text = Line(text, 63); text != "" {
			labels[key] = text
		}
	}
	return labels
}

// Line returns a foreign text as one printable line of at most most characters.
func Line(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if r := []rune(text); len(r) > most {
		text = string(r[:most])
	}
	return strings.TrimSpace(text)
}

// Config returns the answer to the config stage: where the job's files are in its VM.
func (j *Job) Config(version, builds, caches string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"driver": map[string]string{"name": "linus", "version": version}, "hostname": j.VM,
		"builds_dir": builds, "cache_dir": caches, "builds_dir_is_shared": false, "shell": "bash",
	})
}

// Section returns the markers that begin and end a collapsed section of the job's log.
func Section(name, header string, at time.Time) (begin string, end func(time.Time) string) {
	return fmt.Sprintf("\x1b[0Ksection_start:%d:%s[collapsed=true]\r\x1b[0K%s\n", at.Unix(), name, header),
		func(at time.Time) string { return fmt.Sprintf("\x1b[0Ksection_end:%d:%s\r\x1b[0K", at.Unix(), name) }
}

// Stage is the task that runs a script of a job in its VM. The script contains the job's secrets, so it
// comes by stdin, and is in no file any more when it starts.
const Stage = `# Runs a stage of a GitLab job.
set -eu
script=$(mktemp /dev/shm/linus-stage.XXXXXXXX)
cat >"$script"
exec 3<"$script"
rm -- "$script"
set +eu
exec bash /dev/fd/3 </dev/null
`

// NoDocker is the exit code of Ready's script if a VM has no Docker for the job's services.
const NoDocker = 69

var directory = lazyregexp.New(`^/[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)

// CheckDirectory returns an error if a directory is not suitable for a job's files.
func CheckDirectory(path string) error {
	if !directory.MatchString(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("%q is not an absolute path of letters, digits and ._-", path)
	}
	return nil
}
