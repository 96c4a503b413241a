package sandbox_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/envd"
	"linus/internal/sandbox"
)

// step does a step of a build, and returns what it says and how it ends.
func (b *box) step(t *testing.T, step envd.Step, archive string) (text []string, end envd.Said) {
	t.Helper()
	status, answer := b.call(t, "POST", "/build", nil, marshal(t, step)+"\n"+archive)
	if status != http.StatusOK {
		t.Fatal(status, answer)
	}
	for line := range strings.Lines(answer) {
		if err := json.Unmarshal([]byte(line), &end); err != nil {
			t.Fatal(err)
		}
		if end.Text != "" {
			text = append(text, end.Text)
		}
		if end.Template == nil && end.Error == "" {
			end = envd.Said{}
		}
	}
	end.Text = ""
	return text, end
}

// pack returns an archive of files; what begins with -> is a link.
func pack(t *testing.T, zipped bool, files ...[2]string) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f[0], Mode: 0o640, Size: int64(len(f[1])), Typeflag: tar.TypeReg}
		body := f[1]
		if target, ok := strings.CutPrefix(f[1], "->"); ok {
			h.Typeflag, h.Linkname, h.Size, body = tar.TypeSymlink, target, 0, ""
		}
		if strings.HasSuffix(f[0], "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !zipped {
		return buf.String()
	}
	var z bytes.Buffer
	to := gzip.NewWriter(&z)
	if _, err := to.Write(buf.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return z.String()
}

func TestBuild_StepsMakeATemplate(t *testing.T) {
	b := serve(t)
	_, end := b.step(t, envd.Step{}, "")
	if end.Template == nil || end.Template.Workdir != b.dir {
		t.Fatalf("it begins as %+v", end)
	}
	at := end.Template
	do := func(kind string, args ...string) []string {
		t.Helper()
		text, end := b.step(t, envd.Step{Type: kind, Args: args, Template: at}, "")
		if end.Error != "" {
			t.Fatalf("%s %q: %s", kind, args, end.Error)
		}
		at = end.Template
		return text
	}
	do("ENV", "HOME", b.dir) // a login shell reads no profile of this machine
	do("ENV", "A", "it's", "B", "$A and ${HOME}$(x)")
	do("WORKDIR", "new/dir")
	said := do("RUN", `echo "$B"; pwd; echo wrong >&2; sleep 60 &`)
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if len(said) != 3 || said[0] != "it's and "+b.dir+"$(x)" && said[1] != "it's and "+b.dir+"$(x)" {
		t.Errorf("it says %q", said)
	}
	do("USER", self.Username)
	want := &envd.Template{User: self.Username, Workdir: b.dir + "/new/dir", Env: map[string]string{"HOME": b.dir, "A": "it's", "B": "it's and " + b.dir + "$(x)"}}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		step envd.Step
		says string
	}{
		{envd.Step{Type: "RUN", Args: []string{"exit 3"}}, "RUN exit 3: exit status 3"},
		{envd.Step{Type: "RUN"}, "needs an argument"},
		{envd.Step{Type: "RUN", Args: []string{"true", "nobody-knows"}}, "nobody-knows"},
		{envd.Step{Type: "ENV", Args: []string{"A=B", "c"}}, "is not a variable's name"},
		{envd.Step{Type: "ENV", Args: []string{"A"}}, "has no value"},
		{envd.Step{Type: "USER", Args: []string{"a; id"}}, "is not a user's name"},
		{envd.Step{Type: "HEALTHCHECK", Args: []string{"x"}}, "no such step"},
		{envd.Step{Type: "COPY", Args: []string{"a", "b"}}, "read the archive"},
	} {
		if _, end := b.step(t, c.step, ""); !strings.Contains(end.Error, c.says) {
			t.Errorf("%+v: %+v, want %q", c.step, end, c.says)
		}
	}
}

func TestBuild_Copies(t *testing.T) {
	b := serve(t)
	if err := os.MkdirAll(b.dir+"/there", 0o755); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	for _, c := range []struct {
		name, from, to, mode string
		files                [][2]string
		want                 map[string]string // in b.dir; of what fails, the error
	}{
		{"a file as another", "dir/a.txt", "one/b.txt", "", [][2]string{{"dir/a.txt", "A"}}, map[string]string{"one/b.txt": "A"}},
		{"a file into a directory", "a.txt", "two/", "0600", [][2]string{{"a.txt", "A"}}, map[string]string{"two/a.txt": "A"}},
		{"a file into one that is there", "a.txt", "there", "", [][2]string{{"a.txt", "A"}}, map[string]string{"there/a.txt": "A"}},
		{"a directory's content", "src", "three", "", [][2]string{{"src/", ""}, {"src/x/y", "Y"}, {"src/z", "->x/y"}}, map[string]string{"three/x/y": "Y", "three/z": "Y"}},
		{"over what is there", "src", "three", "", [][2]string{{"src/x/y", "new"}}, map[string]string{"three/x/y": "new", "three/z": "new"}},
		{"all", ".", b.dir + "/four", "", [][2]string{{"x", "X"}, {"d/y", "Y"}}, map[string]string{"four/x": "X", "four/d/y": "Y"}},
		{"a pattern", "d/*.txt", "five", "", [][2]string{{"d/a.txt", "A"}, {"d/b.txt", "B"}}, map[string]string{"five/a.txt": "A", "five/b.txt": "B"}},
		{"out of the archive", ".", "six", "", [][2]string{{"../x", "X"}}, map[string]string{"": "is not in ."}},
		{"an absolute one", ".", "six", "", [][2]string{{"/etc/x", "X"}}, map[string]string{"": "is not in ."}},
		{"beside what is meant", "src", "six", "", [][2]string{{"srcs/x", "X"}}, map[string]string{"": "is not in src"}},
		{"through a link", ".", "seven", "", [][2]string{{"out", "->" + outside}, {"out/x", "X"}}, map[string]string{"": "escapes"}},
	} {
		_, end := b.step(t, envd.Step{Type: "COPY", Args: []string{c.from, c.to, "", c.mode}}, pack(t, len(c.name)%2 == 0, c.files...))
		for name, want := range c.want {
			if name == "" {
				if !strings.Contains(end.Error, want) {
					t.Errorf("%s: %+v, want %q", c.name, end, want)
				}
				continue
			}
			got, err := os.ReadFile(filepath.Join(b.dir, name))
			if end.Error != "" || err != nil || string(got) != want {
				t.Errorf("%s: %s is %q, %v, %q", c.name, name, got, err, end.Error)
			}
		}
	}
	if info, err := os.Stat(b.dir + "/two/a.txt"); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Error("it has written outside", left, err)
	}
}

// What a sandbox was told, and what its template starts, are there again after a boot.
func TestSandbox_BeginsAgainAfterABoot(t *testing.T) {
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	o := sandbox.Options{User: self.Username, Root: t.TempDir()}
	if err := os.MkdirAll(o.Root+"/run/linus-sandbox", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(o.Root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	b := &box{socket: filepath.Join(t.TempDir(), "s"), dir: t.TempDir()}
	end := b.serveFrom(t, o)
	// Its shells are login shells, which read no profile of this machine.
	template := envd.Template{Workdir: b.dir, Env: map[string]string{"A": "template", "B": "template", "HOME": b.dir}, Start: "echo $A $B >>started; sleep 600", Ready: "test -s started"}
	if status, text := b.call(t, "POST", "/init", nil, marshal(t, envd.Init{Template: &template, EnvVars: map[string]string{"B": "sandbox"}})); status != http.StatusNoContent {
		t.Fatal(status, text)
	}
	begins := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			got, _ := os.ReadFile(b.dir + "/started")
			if string(got) == want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it has started as %q", got)
			}
		}
		if stdout, _, _ := b.start(t, t.Context(), bash("echo $A $B")).rest(t); stdout != "template sandbox\n" {
			t.Errorf("its commands have %q", stdout)
		}
	}
	begins("template sandbox\n")
	end()
	end = b.serveFrom(t, o) // it was killed: what it has started goes on
	begins("template sandbox\n")
	end()
	if err := os.Remove(o.Root + "/run/linus-sandbox/started"); err != nil {
		t.Fatal(err)
	}
	b.serveFrom(t, o)
	begins("template sandbox\ntemplate sandbox\n")
}

func TestSandbox_IsNotThereWhoseStartCommandFails(t *testing.T) {
	b := serve(t)
	if status, text := b.call(t, "POST", "/init", nil, marshal(t, envd.Init{Template: &envd.Template{Env: map[string]string{"HOME": b.dir}, Start: "exit 7", Ready: "false"}})); status != http.StatusBadRequest || !strings.Contains(text, "exit status 7") {
		t.Error(status, text)
	}
}
