package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/loops"
)

func packagingScript(name string) string { return filepath.Join("..", "..", ".packaging", name) }

// needs skips a test without programs that a release is made with.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

func put(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as in a package
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil { //nolint:gosec // as in a package
		t.Fatal(err)
	}
	return path
}

// says runs a command line and returns all that it prints, and whether it ended well.
func says(env []string, argv ...string) (string, bool) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestRelease_VersionsFollowEachOther(t *testing.T) {
	for _, test := range []struct{ said, want string }{
		{"v1.2.3", "1.2.3"},
		{"1.2.3", "1.2.3"},
		{"v1.2.3-rc.1", "1.2.3-rc.1"},
		{"v1.2.3-4-gabc1234", "1.2.3+4.gabc1234"},
		{"v1.2.3-rc.1-4-gabc1234-dirty", "1.2.3-rc.1+4.gabc1234.dirty"},
		{"v1.2.3-dirty", "1.2.3+dirty"},
		{"0123456", "0.0.0-snapshot.g0123456"},
		{"dev", "0.0.0-snapshot.gdev"},
	} {
		t.Run(test.said, func(t *testing.T) {
			if out, ok := says(nil, "bash", "-c", `source "$0"; semver "$1"`, packagingScript("dist.sh"), test.said); !ok || out != test.want+"\n" {
				t.Errorf("%q, want %q", out, test.want)
			}
		})
	}
}

func TestRelease_FormulaNamesEachArchiveByItsHash(t *testing.T) {
	dir := t.TempDir()
	want := ""
	for _, system := range []string{"darwin_arm64", "darwin_amd64", "linux_arm64", "linux_amd64"} {
		name := "linus_1.2.3_" + system + ".tar.gz"
		put(t, dir, name, system)
		want += fmt.Sprintf("https://github.com/ada/linus/releases/download/v1.2.3/%s %x\n", name, sha256.Sum256([]byte(system)))
	}
	formula, ok := says(nil, "bash", packagingScript("formula.sh"), "1.2.3", dir, "ada/linus")
	if !ok {
		t.Fatal(formula)
	}
	got := ""
	for _, m := range regexp.MustCompile(`on_(?:arm|intel) do\n +url "(.+)"\n +sha256 "(.+)"\n +end\n`).FindAllStringSubmatch(formula, -1) {
		got += m[1] + " " + m[2] + "\n"
	}
	if got != want {
		t.Errorf("archives of the formula:\n%swant:\n%s", got, want)
	}
	opened := len(regexp.MustCompile(`(?m)^ *(class|def) | do$`).FindAllString(formula, -1))
	if ended := len(regexp.MustCompile(`(?m)^ *end$`).FindAllString(formula, -1)); opened != ended {
		t.Errorf("%d blocks begin and %d end:\n%s", opened, ended, formula)
	}
	if _, err := exec.LookPath("ruby"); err == nil {
		if out, ok := says(nil, "ruby", "-c", put(t, dir, "linus.rb", formula)); !ok {
			t.Error(out)
		}
	}
}

// What the binaries say is in them, with what stands in the place of a module, and the page's packages.
func TestRelease_BillOfMaterials(t *testing.T) {
	needs(t, "jq")
	dir := t.TempDir()
	said := "a: go1.26.8\n\tpath\tlinus/cmd/linus\n\tmod\tlinus\t(devel)\t\n\tdep\tGithub.com/A/b\tv1.0.0+incompatible\th1:x=\n\tbuild\tGOOS=linux\n" +
		"b.exe: go1.26.8\n\tdep\tGithub.com/A/b\tv1.0.0+incompatible\th1:x=\n\tdep\told.org/c\tv1.0.0\n\t=>\tnew.org/c\tv2.0.0\th1:y=\n"
	put(t, dir, "said", said)
	if err := os.Chmod(put(t, dir, "go", "#!/bin/sh\ncat \""+dir+"/said\"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out, ok := says([]string{"PATH=" + dir + ":" + os.Getenv("PATH")}, "bash", packagingScript("sbom.sh"), "1.2.3", "a", "b.exe")
	var bill struct {
		BomFormat, SpecVersion string
		Metadata               struct{ Component struct{ Version string } }
		Components             []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal([]byte(out), &bill); err != nil || !ok {
		t.Fatalf("%v\n%s", err, out)
	}
	var purls []string
	page := 0
	for _, c := range bill.Components {
		if strings.HasPrefix(c.Purl, "pkg:npm/") {
			page++
		} else {
			purls = append(purls, c.Purl)
		}
	}
	want := []string{"pkg:golang/github.com/a/b@v1.0.0%2Bincompatible", "pkg:golang/new.org/c@v2.0.0", "pkg:golang/stdlib@1.26.8"}
	if !slices.Equal(purls, want) || page < 3 || bill.BomFormat != "CycloneDX" || bill.SpecVersion != "1.5" || bill.Metadata.Component.Version != "1.2.3" {
		t.Errorf("%d packages of the page, modules %q of\n%s", page, purls, out)
	}
}

// newSigningKey makes an OpenPGP key and returns a file with it.
func newSigningKey(t *testing.T, name, passphrase string) string {
	t.Helper()
	home, err := os.MkdirTemp("", "gpg") // the agent's socket wants a short path
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	t.Cleanup(func() {
		says([]string{"GNUPGHOME=" + home}, "gpgconf", "--kill", "all")
		_ = os.RemoveAll(home)
	})
	if out, ok := says([]string{"GNUPGHOME=" + home}, "sh", "-c", `set -e
		gpg="gpg --batch --quiet --pinentry-mode loopback"
		$gpg --passphrase "$1" --quick-generate-key "$0" ed25519 sign never
		$gpg --passphrase "$1" --armor --export-secret-keys >"$2"`, name, passphrase, file); !ok {
		t.Fatal(out)
	}
	return file
}

func TestRelease_RefusesHalfASigningKey(t *testing.T) {
	loops.NotInCheck(t)
	needs(t, "gpg", "gpgconf")
	dir := t.TempDir()
	locked := newSigningKey(t, "locked", "secret")
	right, wrong, noKey := put(t, dir, "right", "secret"), put(t, dir, "wrong", "other"), put(t, dir, "no-key", "text")
	for _, test := range []struct{ name, key, passphrase, refusal string }{
		{"nothing", "", "", ""},
		{"whole", locked, right, ""},
		{"passphrase only", "", right, "SIGNING_PASSPHRASE_FILE is set and SIGNING_KEY is not"},
		{"no such file", filepath.Join(dir, "missing"), "", "is not a file that can be read"},
		{"no such passphrase", locked, filepath.Join(dir, "missing"), "is not a file that can be read"},
		{"no key in it", noKey, "", "has no OpenPGP key"},
		{"key without its passphrase", locked, "", "does not sign"},
		{"key with another's passphrase", locked, wrong, "does not sign"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, ok := says([]string{"SIGNING_KEY=" + test.key, "SIGNING_PASSPHRASE_FILE=" + test.passphrase}, "bash", packagingScript("sign.sh"))
			if ok != (test.refusal == "") || !strings.Contains(out, test.refusal) {
				t.Errorf("ended well: %v\n%s", ok, out)
			}
		})
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%s is no device any more: %v, %v", os.DevNull, info, err)
	}
}

// apt takes the package from the files of a release by the key that is there, and not when
// a file is another.
func TestRelease_AptInstallsFromIt(t *testing.T) {
	loops.NotInCheck(t)
	needs(t, "gpg", "gpgconf", "apt-get", "dpkg-deb", "dpkg")
	dir := t.TempDir()
	release := filepath.Join(dir, "release")
	architecture, _ := says(nil, "dpkg", "--print-architecture")
	put(t, dir, "tree/DEBIAN/control", "Package: linus\nVersion: 1.2.3\nArchitecture: "+architecture+"Maintainer: a <a@example.org>\nDescription: of a test\n")
	deb := put(t, release, "linus_1.2.3_linux.deb", "")
	put(t, release, "checksums.txt", "all files\n")
	signing := []string{"SIGNING_KEY=" + newSigningKey(t, "linus", ""), "SIGNING_PASSPHRASE_FILE="}
	for _, argv := range [][]string{
		{"dpkg-deb", "--build", "--root-owner-group", filepath.Join(dir, "tree"), deb},
		{"env", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", 1_700_000_000), "bash", packagingScript("apt.sh"), release},
		{"bash", packagingScript("sign.sh"), release},
	} {
		if out, ok := says(signing, argv...); !ok {
			t.Fatalf("%s\n%s", argv, out)
		}
	}
	key := filepath.Join(release, "linus.asc")
	if out, ok := says(nil, "sh", "-c", `gpg --batch --dearmor <"$0" >"$0.gpg" && gpgv --keyring "$0.gpg" "$1.asc" "$1"`, key, filepath.Join(release, "checksums.txt")); !ok {
		t.Errorf("the signature of the checksums:\n%s", out)
	}
	state := filepath.Join(dir, "apt")
	put(t, state, "state/lists/partial/.keep", "")
	put(t, state, "cache/archives/partial/.keep", "")
	put(t, state, "status", "")
	put(t, state, "parts/.keep", "")
	list := put(t, state, "linus.list", fmt.Sprintf("deb [signed-by=%s] file:%s /\n", key, release))
	config := put(t, state, "apt.conf", fmt.Sprintf(`Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache"; Dir::Log "%[1]s"; Dir::Etc::parts "%[1]s/parts";
		Dir::Etc::sourcelist "%[2]s"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";`, state, list))
	apt := func(verb ...string) (string, bool) {
		return says([]string{"APT_CONFIG=" + config, "LC_ALL=C"}, append([]string{"apt-get"}, verb...)...)
	}
	if out, ok := apt("update", "--error-on=any"); !ok {
		t.Fatalf("apt-get update:\n%s", out)
	}
	if out, ok := apt("install", "--simulate", "linus"); !ok || !strings.Contains(out, "Inst linus (1.2.3 linus") {
		t.Errorf("apt-get install:\n%s", out)
	}
	signed, err := os.ReadFile(filepath.Join(release, "InRelease"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, release, "InRelease", strings.Replace(string(signed), "Origin: linus", "Origin: other", 1))
	if out, ok := apt("update", "--error-on=any"); ok {
		t.Errorf("a changed InRelease is taken:\n%s", out)
	}
}

func TestImage_ContextHasWhatItsFileCopies(t *testing.T) {
	if _, err := os.Stat("/etc/ssl/certs/ca-certificates.crt"); err != nil {
		t.Skip("no certificates here (package ca-certificates)")
	}
	dir, programs := filepath.Join(t.TempDir(), "context"), t.TempDir()
	put(t, programs, "linus-worker", "its worker")
	put(t, programs, "linus-sandbox", "its sandbox")
	if out, ok := says(nil, "bash", packagingScript("image.sh"), put(t, programs, "linus", "program"), "--context", dir); !ok {
		t.Fatal(out)
	}
	for _, name := range []string{"worker", "sandbox"} {
		if text, err := os.ReadFile(filepath.Join(dir, "root/usr/lib/linus/linus-"+name)); err != nil || string(text) != "its "+name {
			t.Errorf("what is brought into VMs: %q, %v", text, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	file := string(text)
	if from := regexp.MustCompile(`(?m)^FROM .*`).FindAllString(file, -1); !slices.Equal(from, []string{"FROM scratch"}) || strings.Contains(file, "\nRUN ") {
		t.Errorf("it needs a registry, or a shell: %q", from)
	}
	copied := regexp.MustCompile(`(?m)^COPY --chown=\S+ (\S+) `).FindAllStringSubmatch(file, -1)
	for _, c := range copied {
		if _, err := os.Stat(filepath.Join(dir, c[1])); err != nil {
			t.Error(err)
		}
	}
	user := regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`).FindStringSubmatch(file)
	home := regexp.MustCompile(`(?m)^VOLUME (\S+)$`).FindStringSubmatch(file)
	accounts, err := os.ReadFile(filepath.Join(dir, "root/etc/passwd"))
	if err != nil || len(copied) != 2 || user == nil || home == nil || user[1] == "0" || !strings.Contains(string(accounts), ":"+user[1]+":"+user[2]+":linus:"+home[1]+":") {
		t.Errorf("%d trees, user %q, home %q, accounts: %v\n%s", len(copied), user, home, err, accounts)
	}
	for path, mode := range map[string]os.FileMode{"root/usr/bin/linus": 0o755, "root/tmp": 0o777 | os.ModeSticky | os.ModeDir, "home/linus": 0o700 | os.ModeDir} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}
