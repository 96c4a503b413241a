package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/config"
)

// The bundle for desktop clients gives settings by name, and its defaults are
// written down there once more.
func TestPackaging_BundleGivesSettingsThereAreWithTheirDefaults(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", ".packaging", "mcpb", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Server struct {
			Config struct {
				Args []string
				Env  map[string]string
			} `json:"mcp_config"`
		}
		UserConfig map[string]struct {
			Type, Description string
			Required          bool
			Default           any
		} `json:"user_config"`
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	table := map[string]config.Setting{}
	for _, s := range config.Table() {
		table[s.Name] = s
	}
	if len(manifest.Server.Config.Env) != len(manifest.UserConfig) {
		t.Errorf("%d variables of %d options", len(manifest.Server.Config.Env), len(manifest.UserConfig))
	}
	for name, value := range manifest.Server.Config.Env {
		option, ok := manifest.UserConfig[strings.ToLower(name)]
		if setting, known := table[name]; !known || !ok || value != "${user_config."+strings.ToLower(name)+"}" {
			t.Errorf("%s=%s: setting %v, option %v", name, value, known, ok)
		} else if text, _ := json.Marshal(option.Default); !option.Required && strings.Trim(string(text), `"`) != setting.Default {
			t.Errorf("%s has the default %s in the bundle, %q in linus", name, text, setting.Default)
		}
	}
}

func TestPackaging_BundleHoldsProgramAndManifestOfItsSystem(t *testing.T) {
	if _, err := exec.LookPath("zip"); err != nil {
		t.Skip("zip is not installed")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "built")
	if err := os.WriteFile(binary, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join("..", "..", ".packaging", "mcpb.sh")
	var bundles [2][]byte
	for i := range bundles {
		if out, err := exec.Command("bash", script, "1.2.3", "windows", "amd64", binary, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var err error
		if bundles[i], err = os.ReadFile(filepath.Join(dir, "linus_1.2.3_windows_amd64.mcpb")); err != nil {
			t.Fatal(err)
		}
	}
	if string(bundles[0]) != string(bundles[1]) {
		t.Error("two bundles of one build differ")
	}
	files := readZip(t, bundles[0])
	if files["server/linus.exe"] != "program" {
		t.Errorf("the bundle holds %v", files)
	}
	manifest := files["manifest.json"]
	for _, want := range []string{`"version": "1.2.3"`, `"platforms": ["win32"]`, `"entry_point": "server/linus.exe"`} {
		if !strings.Contains(manifest, want) {
			t.Errorf("manifest lacks %s:\n%s", want, manifest)
		}
	}
	if regexp.MustCompile(`@[A-Z]+@`).MatchString(manifest) {
		t.Errorf("manifest has a place left:\n%s", manifest)
	}
}

func readZip(t *testing.T, data []byte) map[string]string {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range r.File {
		content, err := fs.ReadFile(r, strings.TrimSuffix(f.Name, "/"))
		if err == nil {
			files[f.Name] = string(content)
		}
	}
	return files
}

func TestPackaging_ServerJSONNamesEachBundleByItsHash(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"linus_1.2.3_linux_amd64.mcpb", "linus_1.2.3_darwin_arm64.mcpb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("abc"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("bash", filepath.Join("..", "..", ".packaging", "server-json.sh"), "1.2.3", dir, "ada/linus").Output()
	if err != nil {
		t.Fatal(err)
	}
	// The fields that there are of those that the registry's schema of 2025-12-11 has.
	var server struct {
		Schema                            string `json:"$schema"`
		Name, Title, Version, Description string
		Repository                        struct{ URL, Source string }
		Packages                          []struct {
			RegistryType, Identifier, Version, FileSHA256 string
			Transport                                     struct{ Type string }
			EnvironmentVariables                          []struct {
				Name, Description, Format string
				IsRequired                bool
			}
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&server); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.HasSuffix(server.Schema, "/2025-12-11/server.schema.json") || !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(server.Name) ||
		server.Title == "" || server.Description == "" || server.Repository.Source != "github" || server.Repository.URL != "https://github.com/ada/linus" {
		t.Errorf("not as the registry's schema wants it: %+v", server)
	}
	settings := map[string]bool{}
	for _, s := range config.Table() {
		settings[s.Name] = true
	}
	for _, p := range server.Packages {
		if p.RegistryType != "mcpb" || p.Version != "1.2.3" || p.Transport.Type != "stdio" || !regexp.MustCompile(`^[a-f0-9]{64}$`).MatchString(p.FileSHA256) {
			t.Errorf("not as the registry's schema wants it: %+v", p)
		}
		for _, v := range p.EnvironmentVariables {
			if !settings[v.Name] || v.Description == "" || !slices.Contains([]string{"", "string", "number", "boolean", "filepath"}, v.Format) {
				t.Errorf("variable %+v", v)
			}
		}
	}
	if server.Name != "io.github.ada/linus" || server.Version != "1.2.3" || len(server.Packages) != 2 || len(server.Description) > 100 {
		t.Errorf("server.json: %+v", server)
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-4's example
	for _, p := range server.Packages {
		if p.FileSHA256 != abc || !strings.HasPrefix(p.Identifier, "https://github.com/ada/linus/releases/download/v1.2.3/linus_1.2.3_") {
			t.Errorf("package %+v", p)
		}
	}
}

// A guest's network, or a fault of ours, may bring the engine down, not the machine.
func TestPackaging_UnitsBoundMemoryAndFiles(t *testing.T) {
	for _, unit := range []string{"linus.service", filepath.Join("..", "..", ".packaging", "linus.service")} {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for _, setting := range []string{"MemoryMax", "LimitNOFILE"} {
			if !regexp.MustCompile(`(?m)^` + setting + `=[1-9][0-9]*[GM]?$`).Match(text) {
				t.Errorf("%s has no %s", unit, setting)
			}
		}
		if !strings.Contains(string(text), "\nOOMPolicy=continue\n") { // else systemd stops the engine when a git is killed
			t.Errorf("with %s a git that takes too much memory ends the engine", unit)
		}
	}
}

// What the package says after its installation is enough: the key that its user makes
// then is one that the service tries, in the home that its unit names.
func TestPackaging_PrintedStepsMakeAKeyThatTheServiceTries(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("..", "..", ".packaging", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	made := regexp.MustCompile(`ssh-keygen .* -f (\S+)\n`).FindStringSubmatch(read("postinstall.sh"))
	home := regexp.MustCompile(`(?m)^Environment=HOME=(\S+)$`).FindStringSubmatch(read("linus.service"))
	if made == nil || home == nil {
		t.Fatalf("no key or no home: %q, %q", made, home)
	}
	t.Setenv("HOME", home[1])
	t.Setenv("LINUS_ENV_FILE", "")
	t.Setenv("PROXMOX_SSH_KEY_PATH", "")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.Identities, made[1]) {
		t.Errorf("the service tries %q, and the steps make %s", c.Identities, made[1])
	}
	if trusted := filepath.Join(home[1], ".ssh", "known_hosts"); c.ProxmoxKnownHosts != trusted {
		t.Errorf("the service reads %s", c.ProxmoxKnownHosts)
	}
}
