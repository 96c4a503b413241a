package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/remote"
	"linus/internal/result"
)

// Input appends data to the task's open stdin at offset.
func (g *Guest) Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error) {
	res, err := g.runnerWith(ctx, j, data, "input", strconv.FormatInt(offset, 10))
	if err != nil {
		return 0, g.fault(ctx, "send input to the task in", j, res, err)
	}
	held, err := strconv.ParseInt(res.Get("LINUS_STDIN_BYTES"), 10, 64)
	if err != nil || held < offset || held > maxBytes {
		held, err = offset, fmt.Errorf("the job runner returned LINUS_STDIN_BYTES:%.100q for input from %d on", res.Get("LINUS_STDIN_BYTES"), offset)
	}
	return held, g.fault(ctx, "send input to the task in", j, res, err)
}

// CloseInput lets the task read the end of its stdin.
func (g *Guest) CloseInput(ctx context.Context, j job.Job) error {
	res, err := g.runner(ctx, j, "close-input")
	return g.fault(ctx, "close the stdin of the task in", j, res, err)
}

// Resize changes the size of the task's terminal.
func (g *Guest) Resize(ctx context.Context, j job.Job, rows, columns int) error {
	res, err := g.runner(ctx, j, "resize", strconv.Itoa(rows)+"x"+strconv.Itoa(columns))
	return g.fault(ctx, "resize the terminal of the task in", j, res, err)
}

// maxIndex bounds the list of artifacts, in bytes, and maxSkipped the count of files reported as left out.
const (
	maxIndex   = 8 << 20
	maxSkipped = 1_000_000_000
)

// Artifacts finds the files that match the job's patterns.
func (g *Guest) Artifacts(ctx context.Context, j job.Job, limits job.ArtifactLimits) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	const what = "find artifacts in"
	res, err := g.runner(ctx, j, "artifacts", strconv.Itoa(limits.Files), strconv.FormatInt(limits.Each, 10), strconv.FormatInt(limits.All, 10))
	if missing(err) {
		return nil, job.SkippedArtifacts{}, nil
	}
	if err != nil {
		return nil, job.SkippedArtifacts{}, g.fault(ctx, what, j, res, err)
	}
	skipped := readSkipped(res)
	index, err := g.readFile(ctx, j, path.Join(g.place(j).state, "artifacts.index"), 0, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, skipped, nil
	}
	if err != nil {
		return nil, skipped, g.fault(ctx, what, j, res, err)
	}
	found, err := readIndex(index, &skipped)
	return found, skipped, g.fault(ctx, what, j, res, err)
}

// readSkipped reads what the runner left out: lines "<why>: <name>" for the first files, and the
// total count.
func readSkipped(res result.Result) (skipped job.SkippedArtifacts) {
	for _, line := range res.All("LINUS_ARTIFACT_SKIPPED") {
		why, name, _ := strings.Cut(line, ": ")
		skipped.Skip(name, why)
	}
	if n, err := strconv.Atoi(res.Get("LINUS_ARTIFACTS_SKIPPED")); err == nil && n < maxSkipped {
		skipped.ArtifactsSkippedCount = max(n, skipped.ArtifactsSkippedCount)
	}
	return skipped
}

var permissions = lazyregexp.New(`^[0-7]{3,4}$`)

// readIndex reads five NUL-terminated fields per file: name, absolute path, size, mode, sha256. The VM
// is not trusted: names are checked again, and a file whose name is impossible on this side is skipped.
func readIndex(index []byte, skipped *job.SkippedArtifacts) (found []job.FoundArtifact, err error) {
	const fields = 5
	list := strings.Split(string(bytes.TrimSuffix(index, []byte{0})), "\x00")
	if len(index) == 0 {
		return nil, nil
	}
	if len(list)%fields != 0 {
		return nil, fmt.Errorf("the list of artifacts has %d fields, not a multiple of %d", len(list), fields)
	}
	for f := range slices.Chunk(list, fields) {
		size, err := strconv.ParseInt(f[2], 10, 64)
		if !fs.ValidPath(f[0]) {
			skipped.Skip(strconv.Quote(f[0]), "not a name that can be kept: it must be UTF-8, relative and without ..")
			continue
		}
		if err != nil || size < 0 || !path.IsAbs(f[1]) || !permissions.MatchString(f[3]) || !sha256Hex.MatchString(f[4]) {
			return nil, fmt.Errorf("the list of artifacts has an invalid entry: %q", f)
		}
		found = append(found, job.FoundArtifact{
			Artifact: job.Artifact{Path: f[0], Size: size, Mode: f[3], SHA256: f[4]}, Source: f[1],
		})
	}
	return found, nil
}

// ReadArtifact returns a part of a found file.
func (g *Guest) ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error) {
	data, err := g.readFile(ctx, j, source, offset, limit)
	return data, g.fault(ctx, "read "+source+" from", j, result.Result{}, err)
}

// Clean removes the job's own files from a VM that stays.
func (g *Guest) Clean(ctx context.Context, j job.Job) error {
	timed, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := g.place(j)
	const remove = `if [ "$(id -u)" = 0 ]; then s=; else s='sudo -n'; fi; $s rm -rf -- "$@"`
	err := g.retry(timed, j, func(pool *remote.Pool) error {
		return pool.Run(timed, remote.Command{Name: "clean up", Line: remote.Quote("sh", "-c", remove, "clean", at.home, at.state, at.tmpfs)})
	})
	return g.fault(ctx, "clean up in", j, result.Result{}, err)
}
