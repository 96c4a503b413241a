package guest_test

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// bareVM is a rig in which nothing runs yet.
func bareVM(t *testing.T, o sshtest.Options) *rig {
	t.Helper()
	t.Parallel()
	return newVM(t, o)
}

func newVM(t testing.TB, o sshtest.Options) *rig {
	t.Helper()
	r := &rig{t: t, inside: sshtest.Start(t, o), root: t.TempDir()}
	r.vm = vm.VM{ID: 100, Job: uuid.NewString(), IP: r.inside.Host, User: "debian", HostKey: r.inside.HostKey}
	r.connect()
	return r
}

func payload(files ...job.File) job.Payload {
	return job.Payload{
		CallbackURL: nowhere, Token: "t0ken", HeartbeatInterval: 1, MaxOutput: 1 << 20, Secrets: map[string]string{"KEY": "s3cret"},
		Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Timeout: 60, StatusMode: job.StatusSimple, Files: files, Env: map[string]string{"A": "1"}},
	}
}

func encoded(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// read returns a file of the VM.
func (r *rig) read(name string) string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, name))
	if err != nil {
		r.t.Error(err)
	}
	return string(data)
}

// tree are the files in the VM, with their modes.
func (r *rig) tree() map[string]fs.FileMode {
	r.t.Helper()
	found := map[string]fs.FileMode{}
	err := filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		found[strings.TrimPrefix(path, r.root+"/")] = info.Mode()
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

// All files of a job are one command and one stream, however many they are; and
// a VM whose server has no SFTP takes them, too.
func TestPush_IsOneStream(t *testing.T) {
	r := bareVM(t, sshtest.Options{Faults: sshtest.Faults{NoSFTP: true}})
	blob := make([]byte, 10<<20)
	_, _ = rand.Read(blob)
	odd := "/srv/a b/'$(id)\";*\x01é" + strings.Repeat("/deep", 300)
	files := []job.File{{Path: "/srv/blob", Content: encoded(blob), Mode: "0640"}, {Path: odd, Content: encoded([]byte("odd"))}, {Path: "/srv/-x", Mode: "755"}}
	for i := range 2000 {
		files = append(files, job.File{Path: fmt.Sprintf("/srv/many/%d", i), Content: encoded([]byte(fmt.Sprint(i)))})
	}
	if err := r.Push(t.Context(), r.job(), payload(files...)); err != nil {
		t.Fatal(err)
	}
	if n := r.inside.Stats().Execs; n != 1 {
		t.Errorf("%d commands in the VM, want 1", n)
	}
	// What came is what runs: the runner puts the files where they belong.
	t.Cleanup(func() { endRunner(t, r.root) })
	start := exec.Command("bash", filepath.Join(r.root, "opt/job-runner/job-runner.sh"), "start")
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if sha256.Sum256([]byte(r.read("srv/blob"))) != sha256.Sum256(blob) || r.read(odd) != "odd" || r.read("srv/-x") != "" || r.read("srv/many/1999") != "1999" {
		t.Error("a file is not what it was")
	}
	tree := r.tree()
	if tree["srv/blob"] != 0o640 || tree[odd[1:]] != 0o644 || tree["srv/-x"] != 0o755 {
		t.Errorf("modes %v %v %v", tree["srv/blob"], tree[odd[1:]], tree["srv/-x"])
	}
}

// Only the tmpfs has token and secrets, and only for the job's user.
func TestPush_SecretsGoToTheTmpfsAlone(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	if err := r.Push(t.Context(), r.job(), payload()); err != nil {
		t.Fatal(err)
	}
	if r.read("run/linus/token") != "t0ken\n" || r.read("run/linus/secrets") != "KEY=s3cret\x00" {
		t.Error("token and secrets are not what they were")
	}
	for name, mode := range r.tree() {
		secret := strings.HasPrefix(name, "run/linus/")
		if mode&0o077 != 0 {
			t.Errorf("%s is %v", name, mode)
		}
		if text := r.read(name); !secret && (strings.Contains(text, "t0ken") || strings.Contains(text, "s3cret")) {
			t.Errorf("%s has a secret", name)
		}
	}
	for _, dir := range []string{"opt/job-runner", "run/linus"} {
		if info, err := os.Stat(filepath.Join(r.root, dir)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
}

// A push cut off at any byte is repeated on a new connection, and is complete;
// until then, nothing of it is where the runner looks.
func TestPush_CutOff(t *testing.T) {
	blob := make([]byte, 1<<20)
	_, _ = rand.Read(blob)
	for _, at := range []int64{6000, 8000, 100_000, 1_000_000} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			r := bareVM(t, sshtest.Options{})
			if err := r.Push(t.Context(), r.job(), payload(job.File{Path: "/srv/blob", Content: encoded([]byte("old"))})); err != nil {
				t.Fatal(err)
			}
			// As one leaves it that was killed.
			for _, dir := range []string{"opt/job-runner", "run/linus"} {
				if err := os.MkdirAll(filepath.Join(r.root, dir, ".push-1", "x"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			r.inside.Drop()
			r.inside.Set(sshtest.Faults{DropAfterGot: at})
			if err := r.Push(t.Context(), r.job(), payload(job.File{Path: "/srv/blob", Content: encoded(blob)})); err != nil {
				t.Fatal(err)
			}
			if n := r.inside.Stats().Connections; n != 3 {
				t.Errorf("%d connections: nothing was cut", n)
			}
			if !strings.Contains(r.read("opt/job-runner/files.tar"), string(blob)) {
				t.Error("the file is not what it was")
			}
			for _, dir := range []string{"opt/job-runner", "run/linus"} {
				if left, _ := filepath.Glob(filepath.Join(r.root, dir, ".push-1")); len(left) > 0 {
					t.Errorf("%q is left", left)
				}
			}
		})
	}
}

// Where the connection ends between two files, what has arrived looks like an
// archive; it is not put in place.
func TestPush_RefusesHalfAnArchive(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	if err := r.Push(t.Context(), r.job(), payload()); err != nil {
		t.Fatal(err)
	}
	before := r.tree()
	line := r.inside.LastExec()
	pack := func(name string) []byte {
		var half bytes.Buffer
		w := tar.NewWriter(&half)
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: 3})
		_, _ = w.Write([]byte("new"))
		_ = w.Flush()
		return half.Bytes()
	}
	run := exec.Command("bash", "-c", line)
	secret, rest := pack("token"), pack("task")
	head := fmt.Sprintf("%s\n%s\n%s\n%d\n%d\n", filepath.Join(r.root, "opt/job-runner"), filepath.Join(r.root, "var/lib/linus/job"), filepath.Join(r.root, "run/linus"), len(secret), 2*len(rest))
	run.Stdin = io.MultiReader(strings.NewReader(head), bytes.NewReader(secret), bytes.NewReader(rest))
	if out, err := run.CombinedOutput(); err == nil || !strings.Contains(string(out), "the transfer was incomplete") {
		t.Errorf("%v, %s", err, out)
	}
	if r.read("opt/job-runner/task") != "true" || r.read("run/linus/token") != "t0ken\n" || len(r.tree()) != len(before) {
		t.Errorf("half of it is in place: %v", r.tree())
	}
}

// Several at once, as when a connection is lost and its command lives on, leave one
// whole payload.
func TestPush_AtTheSameTime(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	var wg sync.WaitGroup
	for _, task := range []string{"one", "two", "six"} {
		wg.Go(func() {
			p := payload(job.File{Path: "/srv/x", Content: encoded(bytes.Repeat([]byte(task), 1<<20))})
			p.Manifest.Task = task
			if err := r.Push(t.Context(), r.job(), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if text := r.read("opt/job-runner/files.tar"); !strings.Contains(text, strings.Repeat(r.read("opt/job-runner/task"), 1<<20)) {
		t.Error("the task of one push is beside the files of another")
	}
}

// What the VM lacks is said.
func TestPush_SaysWhatIsMissing(t *testing.T) {
	t.Run("tar", func(t *testing.T) {
		bin := t.TempDir()
		for _, tool := range []string{"sh", "bash", "id", "install", "rm", "mkdir", "mv", "dd", "flock"} {
			path, err := exec.LookPath(tool)
			if err == nil {
				err = os.Symlink(path, filepath.Join(bin, tool))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r := bareVM(t, sshtest.Options{Env: []string{"PATH=" + bin}})
		refused(t, r.Push(t.Context(), r.job(), payload()), job.HostDependency, "tar is missing in the VM; install it in the template", "")
	})
	t.Run("room", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("a small disk needs root")
		}
		r := bareVM(t, sshtest.Options{})
		home := filepath.Join(r.root, "opt/job-runner")
		if err := os.MkdirAll(home, 0o700); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1M", "small", home).CombinedOutput(); err != nil {
			t.Skipf("no mounting here: %s", out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", home).CombinedOutput(); err != nil {
				t.Errorf("%v, %s", err, out)
			}
		})
		err := r.Push(t.Context(), r.job(), payload(job.File{Path: "/srv/x", Content: encoded(make([]byte, 2<<20))}))
		refused(t, err, job.HostVM, "No space left on device", "larger disk")
		if err := r.Push(t.Context(), r.job(), payload()); err != nil {
			t.Errorf("what did not fit is in the way: %v", err)
		}
	})
}

func refused(t *testing.T, err error, class job.HostClass, text, remedy string) {
	t.Helper()
	var host *job.HostError
	if !errors.As(err, &host) || host.Class != class || !strings.Contains(host.Text, text) || !strings.Contains(host.Remedy, remedy) {
		t.Errorf("error %+v, want %s, %q, %q", err, class, text, remedy)
	}
}

// Connections to a VM are kept only as long as its record is the same: not after
// a change of its host key, address or user.
func TestGuest_ConnectionsEndWhenTheVMChanges(t *testing.T) {
	for name, change := range map[string]func(*vm.VM){
		"host key": func(v *vm.VM) { v.HostKey = sshtest.NewKey(t, filepath.Join(t.TempDir(), "key")) },
		"address":  func(v *vm.VM) { v.IP = "127.0.0.99" },
		"user":     func(v *vm.VM) { v.User = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			r := bareVM(t, sshtest.Options{})
			if err := r.Push(t.Context(), r.job(), payload()); err != nil {
				t.Fatal(err)
			}
			before := r.inside.Stats()
			again := r.job()
			v := r.vm
			change(&v)
			again.VM = &v
			err := r.Push(t.Context(), again, payload())
			after := r.inside.Stats()
			if after.Execs != before.Execs && name != "user" {
				t.Errorf("the job with its token went over the old connection: %v", err)
			}
			if name == "host key" {
				refused(t, err, job.HostKeyChanged, "", "in use twice")
			}
			if name == "user" && after.Connections == before.Connections {
				t.Errorf("no new login: %v", err)
			}
		})
	}
}

// A runner is the guest's: what it says to have taken of an input is no number
// that a stream can have.
func TestInput_AcceptsOnlyValidCounts(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	home := filepath.Join(r.root, "opt/job-runner")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	for said, held := range map[string]int64{"10": 10, "17": 17, "9": -1, "-1": -1, "": -1, "x": -1, "1125899906842625": -1, "99999999999999999999": -1} {
		script := fmt.Sprintf("cat >/dev/null; printf '%%s\\n' LINUS_BEGIN:$LINUS_NONCE LINUS_STDIN_BYTES:%s LINUS_RESULT:SUCCESS LINUS_END:$LINUS_NONCE\n", said)
		if err := os.WriteFile(filepath.Join(home, "job-runner.sh"), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := r.Input(t.Context(), r.job(), 10, []byte("0123456"))
		if held < 0 && (err == nil || got != 10) || held >= 0 && (err != nil || got != held) {
			t.Errorf("%q: %d, %v", said, got, err)
		}
	}
}
