package secret_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/secret"
)

func write(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func reveal(values []secret.Value) string {
	var b strings.Builder
	for _, v := range values {
		fmt.Fprintf(&b, "%s=%q ", v.Name, v.Reveal())
	}
	return strings.TrimSpace(b.String())
}

func TestResolve_FirstSourceThatKnowsTheNameCounts(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "secrets"), "BOTH=from the file\nFILE=file's own\nALL=from the file\n", 0o600)
	creds := t.TempDir()
	write(t, filepath.Join(creds, "FILE"), "hidden by the file", 0o400)
	write(t, filepath.Join(creds, "CREDENTIAL"), "sealed by systemd\n", 0o400)
	write(t, filepath.Join(creds, "TWO_LINES"), "one\ntwo\n\n", 0o400)
	s := secret.New(secret.Options{
		Environment: []secret.Value{secret.NewValue("BOTH", "from the environment"), secret.NewValue("ENV", "environment")},
		File:        file, Credentials: creds,
	})
	got, err := s.Resolve([]string{"CREDENTIAL", "BOTH", "FILE", "ENV", "TWO_LINES"})
	if err != nil {
		t.Fatal(err)
	}
	want := `CREDENTIAL="sealed by systemd" BOTH="from the environment" FILE="file's own" ENV="environment" TWO_LINES="one\ntwo\n"`
	if reveal(got) != want {
		t.Errorf("got  %s\nwant %s", reveal(got), want)
	}
	if err := s.Check(); err != nil {
		t.Errorf("Check() = %v", err)
	}
}

func TestResolve_ReadsAgainEachTime(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "secrets"), "KEY=before\n", 0o600)
	s := secret.New(secret.Options{File: file})
	for _, want := range []string{"before", "after"} {
		write(t, file, "KEY="+want+"\n", 0o600)
		got, err := s.Resolve([]string{"KEY"})
		if err != nil || string(got[0].Reveal()) != want {
			t.Errorf("Resolve() = %s, %v; want %s", reveal(got), err, want)
		}
	}
}

func TestResolve_RefusesWithNameAndRemedyAndWithoutTheValue(t *testing.T) {
	const hidden = "hunter2hunter2"
	dir := t.TempDir()
	creds := t.TempDir()
	write(t, filepath.Join(creds, "NUL"), hidden+"\x00", 0o400)
	if err := os.Mkdir(filepath.Join(creds, "DIR"), 0o700); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	env := []secret.Value{secret.NewValue("SHORT", "abc"), secret.NewValue("BLANK", "     "), secret.NewValue("LONG", strings.Repeat(hidden, 10000))}
	tests := []struct {
		name  string
		o     secret.Options
		ask   string
		wants []string
	}{
		{"unknown everywhere", secret.Options{File: write(t, filepath.Join(dir, "a"), "X="+hidden, 0o600), Credentials: creds}, "KEY", []string{`secret "KEY"`, "LINUS_SECRET_KEY", filepath.Join(dir, "a"), filepath.Join(creds, "KEY"), "leave it out"}},
		{"no source", secret.Options{}, "KEY", []string{`secret "KEY" is not known`, "LINUS_SECRETS_FILE is not set"}},
		{"a path for a name", secret.Options{Credentials: creds}, "../KEY", []string{"is not a name"}},
		{"too short to mask", secret.Options{Environment: env}, "SHORT", []string{`"SHORT" is shorter than 4 bytes`, "longer value"}},
		{"blank", secret.Options{Environment: env}, "BLANK", []string{`"BLANK" is blank`}},
		{"too long for a variable", secret.Options{Environment: env}, "LONG", []string{`"LONG" is longer than`}},
		{"NUL byte", secret.Options{Credentials: creds}, "NUL", []string{`"NUL" has a NUL byte`, "base64"}},
		{"credential is a directory", secret.Options{Credentials: creds}, "DIR", []string{`"DIR" cannot be read`, "not a regular file"}},
		{"file others can read", secret.Options{File: write(t, filepath.Join(dir, "b"), "KEY="+hidden, 0o640)}, "KEY", []string{"mode 0640", "chmod 600 " + filepath.Join(dir, "b")}},
		{"file others can write", secret.Options{File: write(t, filepath.Join(dir, "c"), "KEY="+hidden, 0o602)}, "KEY", []string{"mode 0602", "chmod 600"}},
		{"no such file", secret.Options{File: filepath.Join(dir, "none")}, "KEY", []string{"no such file", "LINUS_SECRETS_FILE"}},
		{"file is a pipe", secret.Options{File: fifo}, "KEY", []string{"not a regular file"}},
		{"file is too large", secret.Options{File: write(t, filepath.Join(dir, "d"), "KEY="+strings.Repeat(hidden, 100000), 0o600)}, "KEY", []string{"larger than"}},
		{"file without sense", secret.Options{File: write(t, filepath.Join(dir, "e"), "OK=fine\n"+hidden, 0o600)}, "OK", []string{"line 2 is not NAME=value"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values, err := secret.New(tt.o).Resolve([]string{tt.ask})
			var refused *secret.Error
			if !errors.As(err, &refused) || values != nil {
				t.Fatalf("Resolve() = %s, %v, want *secret.Error", reveal(values), err)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("error %q shows a value", err)
			}
		})
	}
}

func TestResolve_RefusesAFileOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	file := write(t, filepath.Join(t.TempDir(), "secrets"), "KEY=value\n", 0o600)
	if err := os.Chown(file, 12345, -1); err != nil {
		t.Fatal(err)
	}
	_, err := secret.New(secret.Options{File: file}).Resolve([]string{"KEY"})
	if err == nil || !strings.Contains(err.Error(), "is owned by user 12345") {
		t.Errorf("Resolve() = %v, want the owner named", err)
	}
}

func TestReadOwn_RefusesWhatOthersCanRead(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "key"), "the key\n", 0o600)
	if data, err := secret.ReadOwn(file); err != nil || string(data) != "the key\n" {
		t.Errorf("its owner's alone: %q, %v", data, err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if data, err := secret.ReadOwn(file); err == nil || data != nil || !strings.Contains(err.Error(), file+" can be read by others") || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%o: %q, %v", mode, data, err)
		}
	}
	if _, err := secret.ReadOwn(file + "s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Opening a FIFO waits for who writes to it. Where a file is ours it is none of ours; where
// somebody gave it, it is read until there is something or the end.
func TestReadOwn_WaitsForNoPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	written := fifo + "2"
	for _, name := range []string{fifo, written} {
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // what still reads ends, too
		if w, err := os.OpenFile(fifo, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
			_ = w.Close()
		}
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want, read := range map[string]func() ([]byte, error){
		"is not a regular file":       func() ([]byte, error) { return secret.ReadOwn(fifo) },
		"ended while reading " + fifo: func() ([]byte, error) { return secret.ReadGiven(ended, fifo) },
	} {
		done := make(chan error, 1)
		go func() {
			_, err := read()
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("waits for a pipe that nobody writes to, want %s", want)
		}
	}
	go func() { _ = os.WriteFile(written, []byte("the key"), 0o600) }()
	if data, err := secret.ReadGiven(t.Context(), written); err != nil || string(data) != "the key" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestCheck_NamesEveryFault(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "secrets"), "ONE=1\nGOOD=long enough\n", 0o600)
	s := secret.New(secret.Options{Environment: []secret.Value{secret.NewValue("TWO", "2"), secret.NewValue("a-b", "long enough")}, File: file})
	err := s.Check()
	for _, want := range []string{`"ONE"`, `"TWO"`, `"a-b" is not a name`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %s named", err, want)
		}
	}
	if got, err := s.Resolve([]string{"GOOD"}); err != nil {
		t.Errorf("a good one beside bad ones: %s, %v", reveal(got), err)
	}
}

func TestParseFile_Quoting(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"plain", "A=one\nB=two", `A="one" B="two"`},
		{"comments and blank lines", "# head\n\n  # indented\nA=one\n", `A="one"`},
		{"blanks around", "  A =  one two \t\r\n", `A="one two"`},
		{"equals, hash and quotes inside", `A=x=y#no "comment" isn't`, `A="x=y#no \"comment\" isn't"`},
		{"comment behind", "A=vvvv # c", `A="vvvv"`},
		{"export", "export A=one", `A="one"`},
		{"unknown escape", `A="one\x"`, `A="one\\x"`},
		{"backslashes stand", `A=a\nb`, `A="a\\nb"`},
		{"single quotes", `A='  a\n"b" $c '`, `A="  a\\n\"b\" $c "`},
		{"single quotes over lines", "A='one\n\n# two'\nB=x", `A="one\n\n# two" B="x"`},
		{"double quotes", `A=" a\n\t\"\\ 'b' "` + "  \r\nB=x", `A=" a\n\t\"\\ 'b' " B="x"`},
		{"double quotes over lines", "A=\"one\ntwo\"\nB=x", `A="one\ntwo" B="x"`},
		{"empty", "A=\nB=''\nC=\"\"", `A="" B="" C=""`},
		{"no line end", `A='x'`, `A="x"`},
		{"bytes", "A=\xff\xfe", `A="\xff\xfe"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values, err := secret.ParseFile([]byte(tt.text))
			if err != nil || reveal(values) != tt.want {
				t.Errorf("got %s, %v\nwant %s", reveal(values), err, tt.want)
			}
		})
	}
}

func TestParseFile_RefusesByLineAndName(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"no equals", "A=x\nhunter2", "line 2 is not NAME=value"},
		{"a name with a dash", "hunter-2=x", "line 1 is not NAME=value"},
		{"twice", "A=x\n\nA=hunter2", "line 3 gives A again"},
		{"open quote", "A=x\nB='hunter2\nC=y\n", "the value of B in line 2 has a quote that does not end"},
		{"after the quote", "A='1\n2\n3'\nB=\"hunter2\" x", "the value of B in line 4 has text after its closing quote"},
		{"backslash at the end", `A="hunter2\`, "the value of A in line 1 has a quote that does not end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := secret.ParseFile([]byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("ParseFile() = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestValue_ShowsItselfToNobody(t *testing.T) {
	v := secret.NewValue("KEY", "hunter2")
	asJSON, err := json.Marshal(map[string]any{"v": v, "p": &v})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("secret", "value", v)
	options := secret.Options{Environment: []secret.Value{v}}
	all := fmt.Sprintf("%v %+v %#v %s %q %x %v %+v %#v %s %s", v, v, v, v, v, v, options, options, options, asJSON, log.String())
	for _, shown := range []string{"hunter2", "68756e74657232", "104 117"} {
		if strings.Contains(all, shown) {
			t.Errorf("the value shows in %s", all)
		}
	}
}
