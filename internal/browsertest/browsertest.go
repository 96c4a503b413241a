// Package browsertest drives Chromium in tests of pages: it starts a browser, reads what a page
// shows and presses keys. It knows nothing about the pages.
package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"linus/internal/loops"
)

// patience is how long Shows waits.
const patience = time.Minute

// Start starts Chromium for at most five minutes. Without Chromium it skips the test and says why.
func Start(t *testing.T) context.Context {
	t.Helper()
	loops.NotInCheck(t)
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium here: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox) // root has no sandbox, and the pages are trusted
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, _ := chromedp.NewContext(allocator)
	Do(t, ctx) // starts it
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	ctx, end = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(end)
	return ctx
}

// Do performs actions. If the page has replaced an element since it was found, Do looks for it
// again: a busy browser is slower than the updates of the page.
func Do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) { //nolint:revive // t first, as everywhere in tests
	t.Helper()
	for _, action := range actions {
		err := chromedp.Do(ctx, action)
		for tries := 1; tries < 10 && err != nil && strings.Contains(err.Error(), "Could not find node"); tries++ {
			err = chromedp.Do(ctx, action)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Read returns what an action reads. It tries again if another page was loaded meanwhile.
func Read[T any](t *testing.T, ctx context.Context, action chromedp.Action[T]) T { //nolint:revive // t first
	t.Helper()
	v, err := chromedp.Run(ctx, action)
	for tries := 1; tries < 10 && err != nil && strings.Contains(err.Error(), "Inspected target navigated"); tries++ {
		v, err = chromedp.Run(ctx, action)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Shows waits until the first element that matches a selector has want in its text.
func Shows(t *testing.T, ctx context.Context, selector, want string) { //nolint:revive // t first
	t.Helper()
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		text, err := chromedp.Run(timed, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector)))
		if err == nil && strings.Contains(text, want) {
			return
		}
		if timed.Err() != nil {
			t.Fatalf("%s shows %q, never %q", selector, text, want)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Press presses keys as a person would, one after the other; \x03 is Ctrl+C.
func Press(t *testing.T, ctx context.Context, text string) { //nolint:revive // t first
	t.Helper()
	for _, r := range text {
		down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Text: string(r), Key: string(r)}
		switch {
		case r == '\r':
			down.Key, down.Code, down.WindowsVirtualKeyCode = "Enter", "Enter", 13
		case r == '\x03':
			down = input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeRawKeyDown, Key: "c", Code: "KeyC", WindowsVirtualKeyCode: 'C', Modifiers: 2}
		case r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == ' '): // the codes of other characters mean Home, arrows and the like
			down.WindowsVirtualKeyCode = int64(unicode.ToUpper(r))
		}
		up := down
		up.Type, up.Text = input.DispatchKeyEventTypeKeyUp, ""
		Do(t, ctx, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
			_, err := cdp.Call(ctx, target, input.DispatchKeyEvent, down)
			if err == nil {
				_, err = cdp.Call(ctx, target, input.DispatchKeyEvent, up)
			}
			return chromedp.Void{}, err
		})
	}
}
