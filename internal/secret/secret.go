// Package secret finds the secrets that a manifest names, and keeps them out of a task's output. It
// knows where values may be (the environment at the start, linus's own file, systemd's credentials)
// and nothing of jobs, VMs or how a value gets to them. For other packages it reads files that are
// a secret as a whole. Besides the standard library it imports only envfile.
package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"linus/internal/envfile"
)

// Bounds of a value in bytes. A shorter value could not be masked: its letters would be starred out
// all over the output. A longer value does not fit into an environment variable.
const (
	MinValue = 4
	MaxValue = 120 << 10

	maxFile = 1 << 20
)

// Value is a secret. Only Reveal shows its value.
type Value struct {
	Name  string
	value []byte
}

// NewValue returns a secret with a value that the caller has read.
func NewValue(name, text string) Value { return Value{Name: name, value: []byte(text)} }

// Reveal returns the value itself, which must not be changed.
func (v Value) Reveal() []byte { return v.value }

// String hides the value.
func (v Value) String() string { return v.Name + "=[redacted]" }

// GoString hides the value from %#v.
func (v Value) GoString() string { return v.String() }

// LogValue hides the value.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalJSON hides the value.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// Error is a problem with a secret or, without Name, with the secrets file. It contains no value.
type Error struct {
	Name    string
	Problem string
	Remedy  string
	Unknown bool // no source has it
}

func fault(name, problem, remedy string) error {
	return &Error{Name: name, Problem: problem, Remedy: remedy}
}

func (e *Error) Error() string {
	s := e.Problem + "; " + e.Remedy
	if e.Name != "" {
		s = fmt.Sprintf("secret %q ", e.Name) + s
	}
	return s
}

// Options say where secrets may be. The zero value has no places.
type Options struct {
	Environment []Value // of the variables LINUS_SECRET_<NAME>; Name is without the prefix
	File        string  // path of a file for ParseFile, with mode 0600 and linus's own user; may be empty
	Credentials string  // systemd's $CREDENTIALS_DIRECTORY; may be empty
}

// Source resolves names to values.
type Source struct{ o Options }

// New returns a source. It reads nothing yet.
func New(o Options) *Source { return &Source{o: o} }

// Resolve returns the values of names, in order. It looks a name up in the environment, then in the
// file, then among systemd's credentials; the first match counts. It reads the file and the
// credentials again each time, so that the next job uses changed values. Errors are *Error.
func (s *Source) Resolve(names []string) ([]Value, error) {
	if len(names) == 0 {
		return nil, nil
	}
	file, err := s.readFile()
	if err != nil {
		return nil, err
	}
	values := make([]Value, 0, len(names))
	for _, name := range names {
		v, err := s.find(name, file)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// Check finds problems with the sources before a job needs them: a file that others can read or
// that cannot be parsed, and values that cannot be masked. The error joins one *Error per problem.
func (s *Source) Check() error {
	file, err := s.readFile()
	faults := []error{err}
	for _, v := range append(file, s.o.Environment...) {
		faults = append(faults, check(v))
	}
	return errors.Join(faults...)
}

func (s *Source) find(name string, file []Value) (Value, error) {
	if !envfile.IsName(name) {
		return Value{}, fault(name, "is not a name", "use letters, digits and _, not starting with a digit")
	}
	for _, v := range append(append([]Value{}, s.o.Environment...), file...) {
		if v.Name == name {
			return v, check(v)
		}
	}
	if s.o.Credentials != "" {
		// systemd ensures that only linus can read these files. A trailing newline, as editors add,
		// is not part of the value.
		data, err := readBounded(filepath.Join(s.o.Credentials, name), nil)
		if err == nil {
			v := Value{name, bytes.TrimSuffix(data, []byte("\n"))}
			return v, check(v)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return Value{}, fault(name, "cannot be read: "+err.Error(), "make the credential readable for linus")
		}
	}
	return Value{}, &Error{Name: name, Unknown: true, Problem: "is not known: looked " + s.places(name), Remedy: "configure it on the server, or leave it out of the manifest"}
}

// places lists where a name was looked up.
func (s *Source) places(name string) string {
	places := "for LINUS_SECRET_" + name + " in the server's environment"
	if s.o.File != "" {
		places += ", in " + s.o.File
	} else {
		places += " (LINUS_SECRETS_FILE is not set)"
	}
	if s.o.Credentials != "" {
		places += ", for the systemd credential " + filepath.Join(s.o.Credentials, name)
	}
	return places
}

// check applies the rules for values of every source.
func check(v Value) error {
	switch {
	case !envfile.IsName(v.Name):
		return fault(v.Name, "is not a name", "use letters, digits and _, not starting with a digit")
	case len(v.value) < MinValue:
		return fault(v.Name, fmt.Sprintf("is shorter than %d bytes and could not be masked in output", MinValue), "give a longer value, or use the manifest's env")
	case len(v.value) > MaxValue:
		return fault(v.Name, fmt.Sprintf("is longer than %d bytes and does not fit into an environment variable", MaxValue), "keep large secrets elsewhere, and the key to them here")
	case bytes.IndexByte(v.value, 0) >= 0:
		return fault(v.Name, "has a NUL byte, which no environment variable can hold", "encode it, for example as base64")
	case len(bytes.TrimSpace(v.value)) == 0:
		return fault(v.Name, "is blank", "give a value")
	}
	return nil
}

func (s *Source) readFile() ([]Value, error) {
	if s.o.File == "" {
		return nil, nil
	}
	data, err := readBounded(s.o.File, func(info fs.FileInfo) error { return closed(s.o.File, info) })
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, err
	case err != nil:
		return nil, fault("", "secrets file: "+err.Error(), "give its path in LINUS_SECRETS_FILE, or unset that")
	}
	values, err := ParseFile(data)
	if err != nil {
		return nil, fault("", "secrets file "+s.o.File+": "+err.Error(), `write NAME=value, NAME='value' or NAME="value"`)
	}
	return values, nil
}

// readBounded reads a regular file. It first passes the opened file's info to allow, if not nil.
func readBounded(path string, allow func(fs.FileInfo) error) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|withoutWaiting, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	if allow != nil {
		if err := allow(info); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// ReadOwn reads a regular file that only its owner can access.
func ReadOwn(path string) ([]byte, error) {
	return readBounded(path, func(info fs.FileInfo) error {
		if info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
			return fmt.Errorf("%s can be read by others (mode %04o); chmod 600 it", path, info.Mode().Perm())
		}
		return nil
	})
}

// ReadGiven is ReadOwn for a path from a user, which may also be a pipe, as of a shell's
// <(command). Reading a pipe waits for its writer, so that ends with ctx.
func ReadGiven(ctx context.Context, path string) ([]byte, error) {
	return readGiven(ctx, path, ReadOwn)
}

// ReadPublic is ReadGiven for a file that others may read, too.
func ReadPublic(ctx context.Context, path string) ([]byte, error) {
	return readGiven(ctx, path, func(path string) ([]byte, error) { return readBounded(path, nil) })
}

func readGiven(ctx context.Context, path string, regular func(string) ([]byte, error)) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() {
		return regular(path)
	}
	return UnlessEnded(ctx, path, func() ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // read only
		return io.ReadAll(io.LimitReader(f, maxFile))
	})
}

// UnlessEnded returns the result of read, or an error if ctx ends first. Opening a FIFO and reading
// from a pipe wait for the writer, and no signal ends that: such a read is abandoned.
func UnlessEnded[T any](ctx context.Context, what string, read func() (T, error)) (value T, err error) {
	done := make(chan func() (T, error), 1)
	go func() {
		value, err := read()
		done <- func() (T, error) { return value, err }
	}()
	select {
	case answer := <-done:
		return answer()
	case <-ctx.Done():
		return value, fmt.Errorf("ended while reading %s: %w", what, context.Cause(ctx))
	}
}

// ParseFile parses lines NAME=value, in the grammar of package envfile. Duplicate names are an
// error. Errors contain lines and names, but never a value.
func ParseFile(data []byte) ([]Value, error) {
	var values []Value
	first := map[string]int{} // the line of each name
	for _, l := range envfile.Parse(data) {
		switch {
		case l.Problem != "" && l.Name == "":
			return nil, fmt.Errorf("line %d %s", l.Number, l.Problem)
		case l.Problem != "":
			return nil, fmt.Errorf("the value of %s in line %d %s", l.Name, l.Number, l.Problem)
		case first[l.Name] > 0:
			return nil, fmt.Errorf("line %d gives %s again, first given in line %d", l.Number, l.Name, first[l.Name])
		}
		first[l.Name] = l.Number
		values = append(values, NewValue(l.Name, l.Value))
	}
	return values, nil
}
