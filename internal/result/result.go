// Package result reads what our bash scripts answer: LINUS_ lines on stdout,
// among whatever else a login shell may print there. It knows the form of the
// lines, not what the keys of a script mean, and imports the standard library
// only.
package result

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"linus/internal/term"
)

// Keys every script uses. All keys are named with their LINUS_ prefix.
const (
	KeyResult = "LINUS_RESULT" // SUCCESS or FAILURE
	KeyError  = "LINUS_ERROR"  // what went wrong
	KeyRemedy = "LINUS_REMEDY" // what to do about it
	KeyStep   = "LINUS_STEP"   // <n>/<total>:<function>:<text>, as it begins
)

// Limits of an answer. Scripts stay far below them.
const (
	MaxLine  = 64 << 10 // bytes of one line
	MaxLines = 10_000   // LINUS_ lines of one answer
)

// ErrTooLarge says that an answer went past MaxLine or MaxLines. What was read
// before is in the Result, which is not whole.
var ErrTooLarge = errors.New("script's answer is too large")

var keyForm = regexp.MustCompile(`^LINUS_[A-Z][A-Z0-9_]*$`)

// Line is one LINUS_ line: the value is all that follows the first colon.
type Line struct {
	Key   string // with the prefix, e.g. "LINUS_VM_ID"
	Value string // valid UTF-8, without line end
}

// Result is a script's answer.
type Result struct {
	Lines []Line // in the order they came, BEGIN and END not among them
	Whole bool   // the block was closed; without a nonce: the stream ended well
}

// Get returns the last value of a key, or "". Scripts that know better later
// say so again.
func (r Result) Get(key string) string {
	value, _ := r.Lookup(key)
	return value
}

// Lookup is Get that tells an empty value from none.
func (r Result) Lookup(key string) (string, bool) {
	for i := len(r.Lines) - 1; i >= 0; i-- {
		if r.Lines[i].Key == key {
			return r.Lines[i].Value, true
		}
	}
	return "", false
}

// All returns every value of a key, in order: LINUS_VM and LINUS_PLAN come once
// for each thing.
func (r Result) All(key string) []string {
	var values []string
	for _, l := range r.Lines {
		if l.Key == key {
			values = append(values, l.Value)
		}
	}
	return values
}

// Success reports whether the script said so, in an answer that is whole. The
// script's exit code must be 0 as well before a caller may believe it.
func (r Result) Success() bool { return r.Whole && r.Get(KeyResult) == "SUCCESS" }

// Failure is what the script says went wrong; "" when it says nothing.
func (r Result) Failure() string { return r.Get(KeyError) }

// Remedy is what the script says to do about its failure. A remedy that belongs
// to one finding of a check is not it: "" unless there is a failure.
func (r Result) Remedy() string {
	if r.Failure() == "" {
		return ""
	}
	return r.Get(KeyRemedy)
}

// Parse reads a script's stdout to its end. With a nonce, only lines between
// LINUS_BEGIN:<nonce> and LINUS_END:<nonce> count, so that nothing else on
// stdout can pass for an answer; with "" all do. onLine, when not nil, is
// called for each line as it arrives: LINUS_STEP is progress, LINUS_VM_ID must
// not wait for the end.
//
// Reading goes on past a limit, so that the script is not blocked; the error is
// then ErrTooLarge. Any other error is the reader's. The Result holds what was
// read in both cases. A last line without its line end does not count.
func Parse(r io.Reader, nonce string, onLine func(key, value string)) (Result, error) {
	var (
		res     Result
		in      = bufio.NewReaderSize(r, MaxLine)
		open    = nonce == ""
		closed  bool
		tooMuch bool
	)
	for {
		text, long, err := readLine(in)
		key, value, isLine := strings.Cut(text, ":")
		switch {
		case err != nil:
			// Cut off before its end: LINUS_VM_ID:12 may have been 123.
		case long:
			// Noise of any length may stand outside the block.
			tooMuch = tooMuch || (open && strings.HasPrefix(text, "LINUS_"))
		case !isLine || !keyForm.MatchString(key):
		case nonce != "" && key == "LINUS_BEGIN":
			open = open || (!closed && value == nonce)
		case nonce != "" && key == "LINUS_END":
			if open && value == nonce {
				open, closed = false, true
			}
		case !open:
		case len(res.Lines) == MaxLines:
			tooMuch = true
		default:
			l := Line{Key: key, Value: term.Line(value)}
			res.Lines = append(res.Lines, l)
			if onLine != nil {
				onLine(l.Key, l.Value)
			}
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return res, fmt.Errorf("read script's answer: %w", err)
		}
		if tooMuch {
			return res, ErrTooLarge
		}
		res.Whole = closed || nonce == ""
		return res, nil
	}
}

// readLine returns one line without its end. Of a line longer than the
// reader's buffer it returns the beginning, and true. The error comes with the
// last line.
func readLine(in *bufio.Reader) (text string, long bool, err error) {
	chunk, err := in.ReadSlice('\n')
	text = strings.TrimSuffix(strings.TrimSuffix(string(chunk), "\n"), "\r")
	for errors.Is(err, bufio.ErrBufferFull) {
		long = true
		_, err = in.ReadSlice('\n')
	}
	return text, long, err
}
