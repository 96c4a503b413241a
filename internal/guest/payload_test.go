package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/result"
)

func TestArchives(t *testing.T) {
	long := strings.Repeat("l/", 400) + "x"
	p := job.Payload{
		CallbackURL: "http://192.0.2.1:8765", Token: "t0ken", HeartbeatInterval: 30, MaxOutput: 1000,
		Manifest: job.Manifest{
			Task: "do 'it'\n$(now)", AgentType: job.AgentScript, Agent: job.Agent{Command: "python3 -"}, Timeout: 60, StatusMode: job.StatusSimple,
			Env: map[string]string{"B": "two\nlines", "A": "one"},
			Files: []job.File{
				{Path: "/srv/a b", Content: "aGk=", Mode: "755"},
				{Path: "/srv//é", Content: ""},
				{Path: "/srv/" + long, Content: "bG9uZw==", Mode: "4600"},
			},
		},
	}
	secret, rest, err := archives("j-1", p)
	if err != nil {
		t.Fatal(err)
	}
	secrets, secretModes := unpacked(t, secret)
	got, modes := unpacked(t, rest)
	files, fileModes := unpacked(t, archive{strings.NewReader(got["files.tar"]), int64(len(got["files.tar"]))})
	if diff := cmp.Diff(map[string]string{"token": "t0ken\n"}, secrets); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"srv/a b": "hi", "srv/é": "", "srv/" + long: "long"}, files); diff != "" {
		t.Error(diff)
	}
	want := map[string]string{
		"task":        "do 'it'\n$(now)",
		"command":     "python3 -",
		"env":         "A=one\x00B=two\nlines\x00",
		"files.index": "0755\x00/srv/a b\x000644\x00/srv/é\x004600\x00/srv/" + long + "\x00",
		"settings": "JOB_ID=j-1\nAGENT=command\nTIMEOUT=60\nSTATUS_MODE=simple\n" +
			"CALLBACK_URL=http://192.0.2.1:8765\nHEARTBEAT_INTERVAL=30\nMAX_OUTPUT_SIZE=1000\nCWD=\n",
	}
	if text := got["manifest.json"]; strings.Contains(text, "aGk=") || !strings.Contains(text, "/srv/a b") {
		t.Errorf("manifest.json = %s", text)
	}
	for name, text := range got {
		if strings.Contains(text, "t0ken") {
			t.Errorf("the token is in %s", name)
		}
	}
	for _, large := range []string{"manifest.json", "files.tar"} {
		delete(got, large)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if secretModes["token"] != 0o600 || modes["env"] != 0o600 || fileModes["srv/a b"] != 0o755 || fileModes["srv/"+long] != 0o4600 {
		t.Errorf("modes = %v %v %v", secretModes, modes, fileModes)
	}
}

// unpacked reads an archive, which must be as long as it says.
func unpacked(t *testing.T, a archive) (files map[string]string, modes map[string]int64) {
	t.Helper()
	raw, err := io.ReadAll(a)
	if err != nil || int64(len(raw)) != a.size {
		t.Fatalf("%d bytes, %v; it says %d", len(raw), err, a.size)
	}
	files, modes = map[string]string{}, map[string]int64{}
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		data, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[head.Name], modes[head.Name] = string(data), head.Mode
	}
}

func TestSettings_NameTheAgent(t *testing.T) {
	tests := []struct {
		name  string
		kind  job.AgentType
		agent job.Agent
		want  string
	}{
		{"script", job.AgentScript, job.Agent{}, "AGENT=script"},
		{"script with a command", job.AgentScript, job.Agent{Command: "x"}, "AGENT=command"},
		{"custom", job.AgentCustom, job.Agent{Command: "x"}, "AGENT=command"},
		{"claude", job.AgentClaude, job.Agent{}, "AGENT=exec"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := string(settings("j-1", job.Payload{Manifest: job.Manifest{AgentType: tt.kind, Agent: tt.agent}}))
			if !strings.Contains(got, tt.want+"\n") {
				t.Errorf("settings = %q", got)
			}
		})
	}
}

func TestReadState(t *testing.T) {
	tests := []struct {
		name  string
		lines []string
		want  job.RunState
		bad   bool
	}{
		{name: "absent", lines: []string{"JOB_STATE:absent"}},
		{
			name: "running", lines: []string{"JOB_STATE:running", "STDOUT_BYTES:12", "STDERR_BYTES:0"},
			want: job.RunState{Started: true, StdoutBytes: 12},
		},
		{
			name: "running without its runner", lines: []string{"JOB_STATE:running", "RUNNER_ALIVE:no"},
			want: job.RunState{Started: true, Unattended: true},
		},
		{
			name: "lost", lines: []string{"JOB_STATE:exited", "EXIT_CODE:-1", "EXIT_REASON:lost", "EXIT_TEXT:the guest was rebooted", "RUNNER_ALIVE:no"},
			want: job.RunState{Started: true, Exited: true, ExitCode: -1, Reason: "lost", Text: "the guest was rebooted"},
		},
		{
			name: "exited", lines: []string{"JOB_STATE:exited", "EXIT_CODE:3", "EXIT_REASON:exit", "STDOUT_BYTES:1", "STDERR_BYTES:2", "DISK_FULL:yes"},
			want: job.RunState{Started: true, Exited: true, ExitCode: 3, Reason: "exit", StdoutBytes: 1, StderrBytes: 2, DiskFull: true},
		},
		{
			name: "timeout", lines: []string{"JOB_STATE:exited", "EXIT_CODE:143", "EXIT_REASON:timeout", "DURATION:86400.25"},
			want: job.RunState{Started: true, Exited: true, ExitCode: 143, Reason: "timeout", Duration: 86400250 * time.Millisecond},
		},
		{
			name: "a text without end", lines: []string{"JOB_STATE:exited", "EXIT_CODE:1", "EXIT_REASON:exit", "EXIT_TEXT:" + strings.Repeat("ö", 10000)},
			want: job.RunState{Started: true, Exited: true, ExitCode: 1, Reason: "exit", Text: job.Bounded(strings.Repeat("ö", 10000))},
		},
		{name: "an exit code of two bytes", lines: []string{"JOB_STATE:exited", "EXIT_CODE:256", "EXIT_REASON:exit"}, bad: true},
		{name: "an exit code below 0", lines: []string{"JOB_STATE:exited", "EXIT_CODE:-1", "EXIT_REASON:exit"}, bad: true},
		{name: "an exit code of a trillion", lines: []string{"JOB_STATE:exited", "EXIT_CODE:1000000000000", "EXIT_REASON:exit"}, bad: true},
		{name: "an end without exit code", lines: []string{"JOB_STATE:exited", "EXIT_REASON:exit"}, bad: true},
		{name: "a reason that is none", lines: []string{"JOB_STATE:exited", "EXIT_CODE:0", "EXIT_REASON:glory"}, bad: true},
		{name: "a duration below 0", lines: []string{"JOB_STATE:running", "DURATION:-1"}, bad: true},
		{name: "a duration of years", lines: []string{"JOB_STATE:running", "DURATION:1000000000"}, bad: true},
		{name: "a duration that is a number to Go alone", lines: []string{"JOB_STATE:running", "DURATION:1h1"}, bad: true},
		{name: "bytes below 0", lines: []string{"JOB_STATE:running", "STDOUT_BYTES:-1"}, bad: true},
		{name: "more bytes than disks hold", lines: []string{"JOB_STATE:running", "STDERR_BYTES:9223372036854775807"}, bad: true},
		{name: "nonsense", lines: []string{"JOB_STATE:gone"}, bad: true},
		{name: "no state", bad: true},
		{name: "a number that is none", lines: []string{"JOB_STATE:exited", "EXIT_CODE:x"}, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := ""
			for _, l := range tt.lines {
				text += "LINUS_" + l + "\n"
			}
			res, err := result.Parse(strings.NewReader(text), "", nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := readState(res)
			if (err != nil) != tt.bad || !tt.bad && !cmp.Equal(got, tt.want) {
				t.Errorf("state = %+v, %v", got, err)
			}
		})
	}
}

// An agent is run by its row of the table, whose words the runner keeps apart.
func TestCommand_OfAnAgent(t *testing.T) {
	for _, a := range []job.Agent{{ClaudeModel: "sonnet"}, {Model: "sonnet"}} {
		m := job.Manifest{AgentType: job.AgentClaude, Agent: a, StatusMode: job.StatusSimple}
		if how, words := command(m); how != "exec" || string(words) != "claude\x00--print\x00--model\x00sonnet\x00" {
			t.Errorf("%s %q", how, words)
		}
	}
	started := job.Manifest{AgentType: job.AgentClaude, Agent: job.Agent{Command: `cd /srv && exec "$@"`}, StatusMode: job.StatusSimple}
	if how, words := command(started); how != "exec" || string(words) != "sh\x00-c\x00cd /srv && exec \"$@\"\x00claude\x00claude\x00--print\x00" {
		t.Errorf("%s %q", how, words)
	}
	m := job.Manifest{AgentType: "gemini", StatusMode: job.StatusStreaming}
	if how, words := command(m); how != "exec" || !strings.HasPrefix(string(words), "gemini\x00") || !strings.HasSuffix(string(words), "\x00stream-json\x00") {
		t.Errorf("%s %q", how, words)
	}
}
