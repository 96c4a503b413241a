package e2e

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/loops"
)

// What make dist makes of this system's build: the same files twice, each in the checksums;
// packages that Debian's and rpm's own tools find no fault with; a list of what is in the
// binary, and the licenses of all of it.
func TestRelease_IsWholeAndTheSameTwice(t *testing.T) {
	loops.AtNightOnly(t, "TestRelease_AptInstallsFromIt, TestRelease_BillOfMaterials and TestRelease_FormulaNamesEachArchiveByItsHash make its small files of small ones")
	t.Parallel()
	for _, program := range []string{"zip", "jq", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	platform := "linux_" + runtime.GOARCH
	env := []string{"TARGETS=linux/" + runtime.GOARCH, "REPOSITORY=ada/linus", "MAINTAINER=", "SIGNING_KEY=", "SIGNING_PASSPHRASE_FILE="}
	var releases [2]map[string]string
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		packaging(t, env, "dist.sh", "v1.2.3", dir)
		sums, err := os.ReadFile(filepath.Join(dir, "checksums.txt"))
		if err != nil {
			t.Fatal(err)
		}
		releases[i] = map[string]string{}
		for line := range strings.Lines(string(sums)) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			releases[i][name] = sum
		}
	}
	if diff := cmp.Diff(releases[0], releases[1]); diff != "" {
		t.Errorf("two releases of one commit differ:\n%s", diff)
	}
	prefix := "linus_1.2.3_" + platform
	want := []string{"Packages", "Packages.gz", "Release", "linus_1.2.3.cdx.json", prefix + ".deb", prefix + ".mcpb", prefix + ".rpm", prefix + ".tar.gz", "server.json"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(releases[0]))); diff != "" {
		t.Errorf("files of the release (-want +got):\n%s", diff)
	}
	dir := dirs[0]
	if out, err := exec.Command("sh", "-c", `cd "$0" && sha256sum -c --quiet checksums.txt`, dir).CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}

	tree := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", filepath.Join(dir, prefix+".tar.gz"), "-C", tree).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(tree, "linus"), "version").CombinedOutput(); err != nil || !strings.Contains(string(out), "1.2.3") {
		t.Errorf("linus version: %v\n%s", err, out)
	}
	licenses, err := os.ReadFile(filepath.Join(tree, "third-party-licenses.txt"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := os.ReadFile(filepath.Join(dir, "linus_1.2.3.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(listed, &bill); err != nil {
		t.Fatal(err)
	}
	built, err := buildinfo.ReadFile(filepath.Join(tree, "linus"))
	if err != nil || len(built.Deps) == 0 {
		t.Fatalf("the binary does not say what is in it: %v", err)
	}
	for _, module := range built.Deps {
		if !bytes.Contains(licenses, []byte("\n==== "+module.Path+" "+module.Version+"\n")) {
			t.Errorf("no license of %s %s", module.Path, module.Version)
		}
		if !slices.Contains(bill.Components, struct{ Name, Version string }{module.Path, module.Version}) {
			t.Errorf("%s %s is not in the bill of materials", module.Path, module.Version)
		}
	}

	t.Run("lintian", func(t *testing.T) {
		if _, err := exec.LookPath("lintian"); err != nil {
			t.Skip("lintian is not installed")
		}
		out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", filepath.Join(dir, prefix+".deb")).CombinedOutput()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		if _, err := exec.LookPath("rpm"); err != nil {
			t.Skip("rpm is not installed")
		}
		query := func(what ...string) string {
			out, err := exec.Command("rpm", append(append([]string{"-qp"}, what...), filepath.Join(dir, prefix+".rpm"))...).CombinedOutput()
			if err != nil {
				t.Fatalf("rpm -qp %s: %v\n%s", what, err, out)
			}
			return string(out)
		}
		if out, err := exec.Command("rpm", "-K", filepath.Join(dir, prefix+".rpm")).CombinedOutput(); err != nil {
			t.Errorf("rpm -K: %v\n%s", err, out)
		}
		for _, file := range []string{"/usr/bin/linus", "/usr/lib/linus/linus-worker", "/usr/lib/linus/linus-sandbox", "/usr/lib/systemd/system/linus.service", "/usr/share/man/man1/linus.1.gz", "/usr/share/licenses/linus/LICENSE"} {
			if !strings.Contains(query("-l"), file+"\n") {
				t.Errorf("the rpm has no %s", file)
			}
		}
		if config := query("-c"); config != "/etc/linus/env\n" {
			t.Errorf("its settings: %q", config)
		}
		if needed := query("--requires"); !strings.Contains(needed, "openssh-clients\n") || strings.Contains(needed, "openssh-client\n") {
			t.Errorf("it requires:\n%s", needed)
		}
		for _, script := range []string{"postinstall", "preuninstall", "postuninstall"} {
			if !strings.Contains(query("--scripts"), script+" scriptlet (using /bin/sh)") {
				t.Errorf("it has no %s", script)
			}
		}
	})
}

// No distribution of rpm's can be had from Debian's servers, so the rpm is installed by rpm
// itself on a Debian, which has all that its scripts call, under other packages' names.
func TestRpm_IsInstalledUpgradedAndRemoved(t *testing.T) {
	loops.AtNightOnly(t, "TestPackaging_PrintedStepsMakeAKeyThatTheServiceTries compares the steps that the scripts print with the unit")
	t.Parallel()
	needsDebian(t)
	d := bootDebian(t, "rpm")
	for _, version := range []string{"0.0.1", "0.0.2"} {
		makePackage(t, version, "rpm", filepath.Join(d.Root, "root", version+".rpm"))
	}
	d.sh("apt-get install -qqy --no-install-recommends rpm openssh-client")
	const rpm = "rpm --force-debian --nodeps "
	if printed := d.sh(rpm + "-i /root/0.0.1.rpm"); !strings.Contains(printed, "linus is installed") {
		t.Error("nothing says what comes next")
	}
	d.sh("rpm -V --nodeps linus | grep -v /etc/linus/env || true; linus version")
	d.sh("test $(stat -c %U:%a /etc/linus/env) = linus:600 && test $(stat -c %U:%a /var/lib/linus-engine) = linus:700")
	d.sh("systemctl enable --now --no-block linus && echo '# mine' >>/etc/linus/env && echo 1 >/var/lib/linus-engine/kept")
	if printed := d.sh(rpm + "-U /root/0.0.2.rpm"); strings.Contains(printed, "linus is installed") {
		t.Error("an upgrade prints the first steps again")
	}
	d.sh("systemctl is-enabled linus && getent passwd linus && grep mine /etc/linus/env && test $(stat -c %U /etc/linus/env) = linus && test -e /var/lib/linus-engine/kept")
	d.sh(rpm + "-e linus")
	d.sh("! systemctl is-active linus && ! systemctl is-enabled linus && ! test -e /usr/bin/linus && test -e /var/lib/linus-engine/kept && grep mine /etc/linus/env.rpmsave")
}

// The image is built from nothing but its context, by no registry, and its program starts
// as its user in it.
func TestImage_IsBuiltAndItsProgramStarts(t *testing.T) {
	loops.AtNightOnly(t, "TestImage_ContextHasWhatItsFileCopies checks what the image is built from")
	t.Parallel()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed")
	}
	store := t.TempDir()
	buildah := []string{"buildah", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver", "vfs"}
	run := func(argv ...string) string {
		var stderr strings.Builder
		cmd := exec.Command(buildah[0], append(buildah[1:], argv...)...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %s: %v\n%s", argv, err, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	packaging(t, nil, "image.sh", append([]string{filepath.Join(binDir, "linus"), "linus:test"}, append(buildah, "build", "--isolation", "chroot")...)...)
	var image struct {
		OCIv1 struct {
			Config struct {
				User                  string
				Volumes, ExposedPorts map[string]any
				Entrypoint            []string
			} `json:"config"`
		}
	}
	if err := json.Unmarshal([]byte(run("inspect", "--type", "image", "linus:test")), &image); err != nil {
		t.Fatal(err)
	}
	config := image.OCIv1.Config
	if _, volume := config.Volumes["/var/lib/linus"]; config.User != "10001:10001" || !volume || len(config.ExposedPorts) != 1 {
		t.Errorf("the image: %+v", config)
	}
	root := run("mount", run("from", "--pull-never", "linus:test"))
	cmd := exec.Command(config.Entrypoint[0], "help", "settings")
	cmd.Path, cmd.Dir, cmd.Env = config.Entrypoint[0], "/var/lib/linus", []string{"HOME=/var/lib/linus"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 10001, Gid: 10001}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PROXMOX_HOST") {
		t.Errorf("in the image: %v\n%s", err, out)
	}
	home, err := os.Stat(filepath.Join(root, "var/lib/linus"))
	if err != nil || home.Mode().Perm() != 0o700 || home.Sys().(*syscall.Stat_t).Uid != 10001 {
		t.Errorf("its home: %v, %v", home.Mode(), err)
	}
	run("rm", "--all")
}
