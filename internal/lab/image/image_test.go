package image

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"linus/internal/loops"
)

// testImages builds with a recipe that takes no time and notes that it ran.
func testImages(t *testing.T, script string) Builder {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("an image is built as root")
	}
	return Builder{Cache: t.TempDir(), Log: io.Discard, Recipe: fstest.MapFS{
		"build-image.sh": {Data: []byte(script)},
	}}
}

const quickRecipe = `echo "image: working" >&2
echo built >>"$(dirname "$3")/builds"
sleep 0.2
echo kernel >"$3.vmlinuz"
echo "$1" >"$3"
`

func TestImages_OfTwoBuildersOneBuildsAndTheOtherWaits(t *testing.T) {
	i := testImages(t, quickRecipe)
	var group sync.WaitGroup
	paths := make([]string, 4)
	for n := range paths {
		group.Go(func() {
			var err error
			if paths[n], err = i.Ensure(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, path := range paths {
		if path != paths[0] {
			t.Errorf("images %q and %q", paths[0], path)
		}
	}
	builds, err := os.ReadFile(filepath.Join(i.Cache, "builds"))
	if err != nil || string(builds) != "built\n" {
		t.Errorf("builds: %q, %v; want one", builds, err)
	}
	if _, err := os.Stat(filepath.Join(i.Cache, "build")); err == nil {
		t.Error("the work directory is left")
	}
}

func TestImages_AnotherRecipeOrVariantIsAnotherImage(t *testing.T) {
	loops.NotInCheck(t)
	i := testImages(t, quickRecipe)
	seen := map[string]bool{}
	for _, script := range []string{quickRecipe, quickRecipe + "# changed\n"} {
		i.Recipe = fstest.MapFS{"build-image.sh": {Data: []byte(script)}}
		for _, variant := range []string{Tuned, Plain} {
			path, err := i.Ensure(t.Context(), variant)
			if err != nil {
				t.Fatal(err)
			}
			if seen[path] {
				t.Errorf("%s is given twice", path)
			}
			seen[path] = true
			if raw, _ := os.ReadFile(path); strings.TrimSpace(string(raw)) != variant {
				t.Errorf("built for %q, want %q", raw, variant)
			}
		}
	}
}

func TestImages_AFailedBuildSaysWhyAndLeavesNoImage(t *testing.T) {
	i := testImages(t, "echo half >\"$2/disk.raw\"\necho 'E: no such package' >&2\nexit 3\n")
	_, err := i.Ensure(t.Context(), Tuned)
	if err == nil || !strings.Contains(err.Error(), "E: no such package") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v does not say what happened", err)
	}
	if left, _ := filepath.Glob(filepath.Join(i.Cache, "*")); len(left) != 1 || filepath.Base(left[0]) != "build.lock" {
		t.Errorf("left in the cache: %v", left)
	}
}

func TestImages_ACancelledBuildEndsWithAllItStarted(t *testing.T) {
	i := testImages(t, "mount -t tmpfs none \"$2/tmp\"\ntouch \"$2/started\"\nsleep 300 & sleep 300\n")
	ctx, cancel := contextWithCancelWhen(t, filepath.Join(i.Cache, "build", "started"))
	defer cancel()
	began := time.Now()
	if _, err := i.Ensure(ctx, Tuned); err == nil {
		t.Fatal("no error from a cancelled build")
	}
	if took := time.Since(began); took > 2*time.Minute { // what it has started takes five
		t.Errorf("took %s to end", took)
	}
	if _, err := os.Stat(filepath.Join(i.Cache, "build")); err == nil {
		t.Error("the work directory is left")
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), i.Cache) {
		t.Error("a mount is left")
	}
}

func TestImages_UnknownVariantIsRefusedByName(t *testing.T) {
	_, err := Builder{}.Ensure(t.Context(), "shiny")
	if err == nil || !strings.Contains(err.Error(), `"shiny"`) || !strings.Contains(err.Error(), Plain) {
		t.Errorf("error %v", err)
	}
}

// contextWithCancelWhen is cancelled once a file is there.
func contextWithCancelWhen(t *testing.T, path string) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if _, err := os.Stat(path); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return ctx, cancel
}
