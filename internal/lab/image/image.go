// Package image builds the qemu driver's guest image, a small Debian, from the recipe beside it,
// and keeps it in a cache that all labs share.
package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"linus/internal/lab/sys"
)

// The guest image's variants.
const (
	Tuned = "tuned" // boots fast under emulation
	Plain = "plain" // as Debian's packages leave it, like users' images
)

// Recipes are the scripts that build the image.
//
//go:embed *.sh *.py
var Recipes embed.FS

// Builder builds and caches the qemu driver's guest image.
type Builder struct {
	Cache  string    // directory outside of any lab, shared by all
	Recipe fs.FS     // build-image.sh and what it sources
	Log    io.Writer // progress, one line each
}

// CacheDir is $PVELAB_CACHE, else linus-lab in the user's cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("PVELAB_CACHE"); dir != "" { //nolint:forbidigo // the lab is no part of the product's configuration
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (or set PVELAB_CACHE): %w", err)
	}
	return filepath.Join(dir, "linus-lab"), nil
}

// Ensure returns the path of the variant's image, a qcow2 disk with its kernel beside it
// (`.vmlinuz`). It builds the image if this combination of recipe and kernel has not been built
// yet. If two callers ask at once, one builds and the other waits.
func (i Builder) Ensure(ctx context.Context, variant string) (string, error) {
	if variant == "" {
		variant = Tuned
	}
	if variant != Tuned && variant != Plain {
		return "", fmt.Errorf("unknown image variant %q: use %s or %s", variant, Tuned, Plain)
	}
	key, err := i.key(ctx, variant)
	if err != nil {
		return "", err
	}
	image := filepath.Join(i.Cache, fmt.Sprintf("debian-12-%s-%s.qcow2", variant, key))
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}
	if err := os.MkdirAll(i.Cache, 0o755); err != nil {
		return "", err
	}
	lock, err := i.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}
	if err := i.build(ctx, variant, image, lock); err != nil {
		return "", fmt.Errorf("build the guest image: %w", err)
	}
	return image, nil
}

// key identifies what the image is made of: recipe, variant, and the kernel that apt would install.
func (i Builder) key(ctx context.Context, variant string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, variant)
	entries, err := fs.ReadDir(i.Recipe, ".")
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		raw, err := fs.ReadFile(i.Recipe, entry.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", entry.Name(), len(raw), raw)
	}
	// Without apt's lists, the kernel version is unknown: the recipe and the variant alone decide.
	if out, err := sys.Run(ctx, "apt-cache", "policy", "linux-image-cloud-amd64"); err == nil {
		for line := range strings.Lines(string(out)) {
			if version, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate:"); ok {
				fmt.Fprintln(sum, strings.TrimSpace(version))
			}
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:6]), nil
}

// lock waits for other builders.
func (i Builder) lock(ctx context.Context) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(i.Cache, "build.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = sys.Flock(ctx, lock, func() { fmt.Fprintln(i.Log, "image: waiting for another build") })
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return lock, nil
}

// build runs the recipe in its own namespaces; when they end, the kernel unmounts what the recipe
// mounted. The recipe dies with this process, however that ends, and holds the lock until then.
func (i Builder) build(ctx context.Context, variant, image string, lock *os.File) error {
	work := filepath.Join(i.Cache, "build")
	if err := os.RemoveAll(work); err != nil { // left by a killed build
		return err
	}
	recipe := filepath.Join(work, "recipe")
	if err := os.MkdirAll(filepath.Join(work, "tmp"), 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(recipe, i.Recipe); err != nil {
		return err
	}
	cmd, err := sys.Command(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", filepath.Join(recipe, "build-image.sh"), variant, work, image)
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(work, "tmp"), "LC_ALL=C", //nolint:forbidigo // apt's proxy settings may be there
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.ExtraFiles = []*os.File{lock}
	// The parent-death signal is tied to the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return i.follow(cmd)
}

// follow runs the recipe, forwards its progress, and keeps its last other lines for errors.
func (i Builder) follow(cmd *exec.Cmd) error {
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	finished := make(chan []string)
	go func() {
		var tail []string
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "image: ") {
				fmt.Fprintln(i.Log, lines.Text())
				continue
			}
			tail = append(tail, lines.Text())
			if len(tail) > 20 {
				tail = tail[1:]
			}
		}
		_, _ = io.Copy(io.Discard, reader) // a line too long for the scanner
		finished <- tail
	}()
	err := cmd.Run()
	writer.Close()
	tail := <-finished
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, strings.Join(tail, "\n"))
	}
	return nil
}
