package guest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
)

// contents returns the job runner's input, without the runner: secret is for the tmpfs, rest for the
// job's home. The task, command, env and files are bytes in separate files, so that no shell reads
// them on the way. The last file of each list is in every payload: once it has arrived, all have.
func contents(id string, p job.Payload) (secret, rest []entry, err error) {
	manifest, err := readableManifest(p.Manifest)
	if err != nil {
		return secret, rest, err
	}
	if len(p.Secrets) > 0 {
		secret = append(secret, file("secrets", 0o600, envEntries(p.Secrets)))
	}
	rest = []entry{
		file("manifest.json", 0o600, manifest),
		file("task", 0o600, []byte(p.Manifest.Task)),
		file("env", 0o600, envEntries(p.Manifest.Env)),
	}
	if len(p.Manifest.Artifacts) > 0 {
		rest = append(rest, file("artifacts", 0o600, []byte(strings.Join(p.Manifest.Artifacts, "\x00")+"\x00")))
	}
	if _, command := command(p.Manifest); command != nil {
		rest = append(rest, file("command", 0o600, command))
	}
	if len(p.Manifest.Files) > 0 {
		files, index, err := packFiles(p.Manifest.Files)
		if err != nil {
			return secret, rest, err
		}
		rest = append(rest, entry{"files.tar", 0o600, files.size, files}, file("files.index", 0o600, index))
	}
	if p.Repository != nil {
		rest = append(rest, entry{"repository.tar", 0o600, p.RepositorySize, io.NewSectionReader(p.Repository, 0, p.RepositorySize)})
	}
	return append(secret, file("token", 0o600, []byte(p.Token+"\n"))), append(rest, file("settings", 0o600, settings(id, p))), nil
}

// archives returns a job's contents as two archives.
func archives(id string, p job.Payload) (secret, rest archive, err error) {
	first, second, err := contents(id, p)
	if err == nil {
		secret, err = newArchive(first...)
	}
	if err == nil {
		rest, err = newArchive(second...)
	}
	return secret, rest, err
}

// packed returns a job's input for a launcher: the sizes of two archives, and the archives.
func packed(id string, p job.Payload) (io.Reader, error) {
	secret, rest, err := archives(id, p)
	return io.MultiReader(strings.NewReader(fmt.Sprintf("%d\n%d\n", secret.size, rest.size)), secret, rest), err
}

// maxLine bounds the files, in bytes, that are sent as a line to a runner that waits, which reads
// lines byte by byte. For larger files a process is faster.
const maxLine = 16 << 10

// listed returns a job's input for a runner that waits, which writes most files without a process
// (files_take).
func listed(id string, p job.Payload) (io.Reader, error) {
	secret, rest, err := contents(id, p)
	var parts []io.Reader
	add := func(where string, entries []entry) {
		for _, e := range entries {
			if e.size > maxLine {
				parts = append(parts, strings.NewReader(fmt.Sprintf("%s %s %d\n", where, e.name, e.size)), e.data)
				continue
			}
			data, readErr := io.ReadAll(e.data)
			err = errors.Join(err, readErr)
			parts = append(parts, strings.NewReader(fmt.Sprintf("%s %s text\n%s\n", where, e.name, escaped(data))))
		}
	}
	add("secret", secret)
	add("job", rest)
	return io.MultiReader(append(parts, strings.NewReader("end\n"))...), err
}

// packFiles creates an archive of the manifest's files, to be unpacked at the root of the VM, and
// its index: mode and path of each file, NUL-terminated.
func packFiles(files []job.File) (packed archive, index []byte, err error) {
	entries := make([]entry, len(files))
	for i, f := range files {
		data, err := f.Data()
		if err != nil {
			return packed, nil, fmt.Errorf("decode %s: %w", f.Path, err)
		}
		mode, err := strconv.ParseUint(cmp.Or(f.Mode, "0644"), 8, 12)
		if err != nil {
			return packed, nil, fmt.Errorf("mode of %s: %w", f.Path, err)
		}
		at := path.Clean(f.Path)
		entries[i] = file(strings.TrimPrefix(at, "/"), mode, data)
		index = fmt.Appendf(index, "%04o\x00%s\x00", mode, at)
	}
	packed, err = newArchive(entries...)
	return packed, index, err
}

// command returns how the runner runs a manifest's task, and the command for it; nil: bash runs the
// task as a script.
func command(m job.Manifest) (how string, command []byte) {
	if agent, ok := m.AgentType.Agent(); ok {
		words := agent.Command(cmp.Or(m.Agent.Model, m.Agent.ClaudeModel), m.StatusMode != job.StatusSimple)
		if m.Agent.Command != "" {
			words = append([]string{"sh", "-c", m.Agent.Command, agent.Name}, words...)
		}
		return "exec", []byte(strings.Join(words, "\x00") + "\x00")
	}
	if m.Agent.Command != "" {
		return "command", []byte(m.Agent.Command)
	}
	return "script", nil
}

// settings returns the runner's KEY=VALUE lines. Every value is generated here or validated: none
// can contain a newline.
func settings(id string, p job.Payload) []byte {
	agent, _ := command(p.Manifest)
	var b bytes.Buffer
	line := func(key, value string) { fmt.Fprintf(&b, "%s=%s\n", key, value) }
	line("JOB_ID", id)
	line("AGENT", agent)
	line("TIMEOUT", strconv.Itoa(p.Manifest.Timeout))
	line("STATUS_MODE", string(p.Manifest.StatusMode))
	line("CALLBACK_URL", p.CallbackURL)
	line("HEARTBEAT_INTERVAL", strconv.Itoa(p.HeartbeatInterval))
	line("MAX_OUTPUT_SIZE", strconv.FormatInt(p.MaxOutput, 10))
	line("CWD", p.Manifest.Cwd)
	if p.Repository != nil {
		line("REPOSITORY", cmp.Or(p.Manifest.Repository.Path, p.Manifest.Repository.Name()))
		line("COMMIT", p.Commit)
		if p.Manifest.Repository.LFS {
			line("LFS", "yes")
		}
	}
	if p.Manifest.Sudo {
		line("SUDO", "yes")
	}
	if p.Manifest.Stdin == job.StdinOpen {
		line("STDIN", "open")
	}
	if p.Manifest.TTY {
		line("TTY", cmp.Or(p.Manifest.TTYSize, "24x80"))
	}
	return b.Bytes()
}

// readableManifest returns the manifest for people who look into the VM.
func readableManifest(m job.Manifest) ([]byte, error) {
	m.Files = slices.Clone(m.Files)
	for i := range m.Files {
		m.Files[i].Content = "" // it is in files/, byte for byte
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest.json: %w", err)
	}
	return append(data, '\n'), nil
}

// envEntries returns NUL-terminated NAME=VALUE entries.
func envEntries(env map[string]string) []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b.WriteString(name + "=" + env[name] + "\x00")
	}
	return []byte(b.String())
}

// escaped returns a small file's data on one line, in bash's escapes for printf's %b. It escapes
// everything but printable ASCII, so that the locale does not matter.
func escaped(data []byte) []byte {
	var line []byte
	for _, c := range data {
		if c < ' ' || c > '~' || c == '\\' {
			line = fmt.Appendf(line, `\0%03o`, c)
		} else {
			line = append(line, c)
		}
	}
	return line
}
