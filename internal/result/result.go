// Package result parses the output of linus's bash scripts: LINUS_ lines on stdout, among whatever else
// a login shell may print there. It knows the format of the lines, not the meaning of a script's keys.
package result

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"linus/internal/lazyregexp"
	"linus/internal/term"
)

// Keys that every script uses. All keys are named with their LINUS_ prefix.
const (
	KeyResult = "LINUS_RESULT" // SUCCESS or FAILURE
	KeyError  = "LINUS_ERROR"  // what went wrong
	KeyRemedy = "LINUS_REMEDY" // what to do about it
	KeyStep   = "LINUS_STEP"   // <n>/<total>:<function>:<text>, when the step begins
)

// Limits of a script's answer. Scripts stay far below them.
const (
	MaxLine  = 64 << 10 // bytes of one line
	MaxLines = 10_000   // LINUS_ lines of one answer
)

// ErrTooLarge means that an answer exceeded MaxLine or MaxLines. The Result has what was read
// before, and is not whole.
var ErrTooLarge = errors.New("script's answer is too large")

var keyForm = lazyregexp.New(`^LINUS_[A-Z][A-Z0-9_]*$`)

// Line is one LINUS_ line: the value is everything after the first colon.
type Line struct {
	Key   string // with the prefix, e.g. "LINUS_VM_ID"
	Value string // valid UTF-8, without line end
}

// Result is a script's answer.
type Result struct {
	Lines []Line // in order of arrival, without BEGIN and END
	Whole bool   // the block was closed; without a nonce: the stream ended without error
}

// Get returns the last value of a key, or "". A script may correct a value by repeating the key.
func (r Result) Get(key string) string {
	value, _ := r.Lookup(key)
	return value
}

// Lookup is Get, but distinguishes an empty value from a missing one.
func (r Result) Lookup(key string) (string, bool) {
	for i := len(r.Lines) - 1; i >= 0; i-- {
		if r.Lines[i].Key == key {
			return r.Lines[i].Value, true
		}
	}
	return "", false
}

// All returns every value of a key, in order: LINUS_VM and LINUS_PLAN are repeated for each item.
func (r Result) All(key string) []string {
	var values []string
	for _, l := range r.Lines {
		if l.Key == key {
			values = append(values, l.Value)
		}
	}
	return values
}

// Success reports whether the script reported success in a whole answer. The caller must also check
// that its exit code is 0.
func (r Result) Success() bool { return r.Whole && r.Get(KeyResult) == "SUCCESS" }

// Failure returns the script's error; "" if it has none.
func (r Result) Failure() string { return r.Get(KeyError) }

// Remedy returns the script's remedy for its failure; "" if there is no failure. A remedy for a
// single finding of a check is not included.
func (r Result) Remedy() string {
	if r.Failure() == "" {
		return ""
	}
	return r.Get(KeyRemedy)
}

// Parse reads a script's stdout to its end. With a nonce, only lines between LINUS_BEGIN:<nonce> and
// LINUS_END:<nonce> count, so that nothing else on stdout can pass for an answer; with "" all lines
// count. onLine, if not nil, is called for each line as it arrives: LINUS_STEP is progress, and
// LINUS_VM_ID must not wait for the end.
//
// Reading continues past a limit, so that the script does not block; the error is then ErrTooLarge.
// Any other error is the reader's. In both cases the Result has what was read. A last line without a
// newline does not count.
func Parse(r io.Reader, nonce string, onLine func(key, value string)) (Result, error) {
	var (
		res     Result
		in      = bufio.NewReader(r)
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
			// Noise of any length is allowed outside the block.
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

// readLine returns one line without its newline. For a line longer than MaxLine it returns the
// beginning, and true. The error comes with the last line.
func readLine(in *bufio.Reader) (text string, long bool, err error) {
	chunk, err := in.ReadSlice('\n')
	line := string(chunk)
	for errors.Is(err, bufio.ErrBufferFull) { // rare
		chunk, err = in.ReadSlice('\n')
		if long = long || len(line)+len(chunk) > MaxLine; !long {
			line += string(chunk)
		}
	}
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), long, err
}
