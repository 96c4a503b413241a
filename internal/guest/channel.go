package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// maxPiece bounds a piece of output, in bytes. The runner's pieces are at most that long.
const maxPiece = 256 << 10

// Follow passes the pieces on a started task's channel to take, until the task's end. The VM is not
// trusted: pieces are bounded and contiguous, but the VM controls their contents and whether any arrive.
func (g *Guest) Follow(ctx context.Context, j job.Job, take func(job.Piece) error) error {
	l := g.takeLaunch(j, started)
	if l == nil {
		return job.ErrNoChannel
	}
	defer l.process.Close()
	for {
		p, err := remote.Receive(ctx, l.process, l.piece)
		if err != nil {
			return g.fault(ctx, "follow the task in", j, result.Result{}, err)
		}
		if err := take(p); err != nil || p.End != nil {
			return err
		}
	}
}

// piece reads the next piece: a line LINUS_OUTPUT:<nonce>:<stream>:<offset>:<bytes> and that many
// bytes, or the runner's answer about the task's end.
func (l *launch) piece(stdout *bufio.Reader) (job.Piece, error) {
	chunk, err := stdout.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return job.Piece{}, err
	}
	line := string(chunk)
	if line == "LINUS_BEGIN:"+l.nonce+"\n" {
		res, err := readAnswer(stdout, l.nonce, line)
		if err != nil {
			return job.Piece{}, err
		}
		state, err := readState(res)
		if err == nil && (!state.Exited || !res.Success()) {
			err = errors.New("the job runner ended without the task's end")
		}
		return job.Piece{End: &state}, err
	}
	p, length, err := l.pieceHead(line)
	if err != nil {
		return job.Piece{}, err
	}
	p.Data = make([]byte, length)
	_, err = io.ReadFull(stdout, p.Data)
	return p, err
}

// pieceHead reads the line before a piece, which must continue the stream's last piece.
func (l *launch) pieceHead(line string) (p job.Piece, length int64, err error) {
	wrong := fmt.Errorf("the job runner wrote %.100q where output begins", line)
	text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "LINUS_OUTPUT:"+l.nonce+":")
	fields := strings.Split(text, ":")
	if !ok || len(fields) != 3 {
		return p, 0, wrong
	}
	read := &l.read[0]
	switch p.Stream = fields[0]; p.Stream {
	case job.Stdout:
	case job.Stderr:
		read = &l.read[1]
	default:
		return p, 0, wrong
	}
	p.Offset, err = strconv.ParseInt(fields[1], 10, 64)
	if err != nil || p.Offset != *read || p.Offset > maxBytes {
		return p, 0, wrong
	}
	length, err = strconv.ParseInt(fields[2], 10, 64)
	if err != nil || length < 1 || length > maxPiece {
		return p, 0, wrong
	}
	*read += length
	return p, length, nil
}

// readAnswer reads to the end of an answer delimited by nonce. before is the part of it that was
// already read; other text before the answer is skipped. The whole text is bounded.
func readAnswer(stdout *bufio.Reader, nonce, before string) (result.Result, error) {
	text := bytes.NewBufferString(before)
	for begins := true; ; {
		chunk, err := stdout.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return result.Result{}, err
		}
		text.Write(chunk)
		if text.Len() > maxAnswer {
			return result.Result{}, fmt.Errorf("it returned more than %d bytes", maxAnswer)
		}
		if begins && string(chunk) == "LINUS_END:"+nonce+"\n" {
			return result.Parse(text, nonce, nil)
		}
		begins = err == nil
	}
}
