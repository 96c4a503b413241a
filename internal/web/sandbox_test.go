package web_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
	"linus/internal/web"
)

// sandboxEngine has one VM, a sandbox of which change makes another.
func sandboxEngine(change func(*job.VMInfo)) *engine {
	e := sample()
	e.vms = e.vms[:1]
	change(&e.vms[0])
	return e
}

// cardOf returns the card of a VM's page that has this heading; empty: there is none.
func cardOf(text, heading string) string {
	_, card, _ := strings.Cut(text, heading+"</h2>")
	card, _, _ = strings.Cut(card, "</section>")
	return card
}

func TestSandbox_PageSaysThatAVMIsOne(t *testing.T) {
	t.Parallel()
	const connect = `Sandbox.connect("0197a1b20000700080000000000000d1")`
	for name, test := range map[string]struct {
		is   func(*job.VMInfo)
		want []string
		not  []string
	}{
		"running":      {func(*job.VMInfo) {}, []string{connect, "connect to it", "in 4 h</time>, and is destroyed then", "<code>API_KEY</code>"}, []string{"resume it"}},
		"pauses":       {func(v *job.VMInfo) { v.AtEnd = vm.EndSuspend }, []string{"in 4 h</time>, and is suspended then"}, []string{"destroyed then"}},
		"paused":       {func(v *job.VMInfo) { v.Status, v.ExpiresAt = vm.Suspended, time.Time{} }, []string{connect, "resume it", "when somebody destroys it"}, []string{"<time"}},
		"stopped":      {func(v *job.VMInfo) { v.Status = vm.Stopped }, []string{connect, "resume it"}, nil},
		"destroying":   {func(v *job.VMInfo) { v.Status = vm.Destroying }, []string{"0197a1b20000700080000000000000d1"}, []string{connect}},
		"gone":         {func(v *job.VMInfo) { v.Status = vm.Gone }, nil, []string{connect}},
		"being made":   {func(v *job.VMInfo) { v.Status, v.State = vm.Provisioning, vm.Intended }, nil, []string{connect}},
		"left alone":   {func(v *job.VMInfo) { v.Status, v.State = vm.Unproven, vm.LeftAlone }, nil, []string{connect}},
		"says nothing": {func(v *job.VMInfo) { v.Sandbox = &vm.Sandbox{} }, []string{connect}, []string{"<table", "Variables"}},
	} {
		v := loggedIn(t, sandboxEngine(test.is))
		code, text := v.get("/vms/105")
		card := cardOf(text, "Sandbox")
		if code != 200 || card == "" {
			t.Fatalf("%s: %d %s", name, code, text)
		}
		for _, want := range test.want {
			if !strings.Contains(card, want) {
				t.Errorf("%s: the card lacks %s: %s", name, want, card)
			}
		}
		for _, not := range test.not {
			if strings.Contains(card, not) {
				t.Errorf("%s: the card has %s: %s", name, not, card)
			}
		}
		if _, list := v.get("/vms"); !strings.Contains(list, `dev</a> <span class="note">sandbox</span>`) {
			t.Errorf("%s: the list does not say so: %s", name, list)
		}
	}
	v := loggedIn(t, sandboxEngine(func(v *job.VMInfo) { v.Sandbox = nil }))
	_, page := v.get("/vms/105")
	if _, list := v.get("/vms"); cardOf(page, "Sandbox") != "" || strings.Contains(list, ">sandbox<") {
		t.Errorf("a VM that is none: %s %s", page, list)
	}
}

// Its processes are told to whoever may run commands there, and are the VM's word.
func TestSandbox_PageHasItsProcesses(t *testing.T) {
	t.Parallel()
	v := visitWith(t, web.Options{Engine: sandboxEngine(func(*job.VMInfo) {}), MCP: echo, Token: token, Log: log, Processes: func(_ context.Context, of vm.VM) []string {
		return []string{"7 /bin/bash -l -c <b>of " + of.Name, strings.Repeat("x", 500)}
	}})
	if code, text := v.get(web.LoginPath(token)); code != 200 {
		t.Fatalf("log in: %d %s", code, text)
	}
	_, text := v.get("/vms/105")
	card := cardOf(text, "Sandbox")
	if !strings.Contains(card, "<bdi>7 /bin/bash -l -c &lt;b&gt;of dev</bdi>") || !strings.Contains(card, "<bdi>"+strings.Repeat("x", 120)+"…</bdi>") {
		t.Errorf("the card is %s", card)
	}
}

// What a program says of its sandbox may be any text: the page shows all of it, and does nothing that
// it says.
func TestSandbox_PageOutlastsAnyMetadata(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü<b>", 16<<10) + "end"
	said := map[string]string{
		`"><script>alert(1)</script>`: `' onmouseover='alert(1)' x="`,
		"control":                     "a\x1b]0;x\x07\x00b\r\nc\td\u202ee\u200bf",
		"</table></section>":          "{{.Who}} javascript:alert(1)",
		strings.Repeat("k", 5000):     "",
		"long":                        long,
	}
	for i := range 60 {
		said[fmt.Sprintf("key %02d", i)] = "value"
	}
	v := loggedIn(t, sandboxEngine(func(v *job.VMInfo) { v.Sandbox = &vm.Sandbox{Metadata: said} }))
	for _, path := range []string{"/vms/105", "/vms", "/vms/105/destroy"} {
		code, text := v.get(path)
		if code != 200 || strings.Contains(text, "<script>") || strings.ContainsAny(text, "\x00\x07\x1b\u202e\u200b") || regexp.MustCompile(`<[^>"]*("[^"]*"[^>"]*)* onmouseover=`).MatchString(text) {
			t.Errorf("%s: %d %.4000s", path, code, text)
		}
	}
	_, text := v.get("/vms/105")
	card := cardOf(text, "Sandbox")
	for _, want := range []string{
		"<bdi>&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;</bdi>", `<bdi>a\x1b]0;x\x07\x00b\nc\td\u202ee\u200bf</bdi>`, "<bdi>&lt;/table&gt;&lt;/section&gt;</bdi>", "<bdi>{{.Who}} javascript:alert(1)</bdi>",
		`title="` + strings.Repeat("k", 5000) + `"><bdi>` + strings.Repeat("k", 120) + "…</bdi>",
		`end"><bdi>` + strings.Repeat("ü&lt;b&gt;", 30) + "…</bdi>",
	} {
		if !strings.Contains(card, want) {
			t.Errorf("the card lacks %s", want)
		}
	}
	if rows := strings.Count(card, "<tr>"); rows != len(said)+1 {
		t.Errorf("%d rows, want %d", rows, len(said)+1)
	}
	// A text is there once at most: cut, with the whole of it as a title.
	seen := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(card, "")
	if len(seen) > 8<<10 {
		t.Errorf("%d bytes are shown", len(seen))
	}
}
