package web_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"linus/internal/manual"
)

func TestHelp_ShowsTheDocuments(t *testing.T) {
	v := visit(t, sample())
	if code, text := v.get("/help/settings"); code != http.StatusUnauthorized || strings.Contains(text, "PROXMOX_BRIDGE") {
		t.Errorf("without login: %d", code)
	}
	v = loggedIn(t, sample())
	code, index := v.get("/help")
	if code != http.StatusOK {
		t.Fatalf("the list: %d", code)
	}
	for _, topic := range manual.Topics() {
		if !strings.Contains(index, `<a href="/help/`+topic.Topic+`">`) {
			t.Errorf("%s is not in the list", topic.Topic)
		}
		code, page := v.get("/help/" + topic.Topic)
		if code != http.StatusOK || !strings.Contains(page, "<title>"+topic.Title+" – linus</title>") {
			t.Errorf("%s: %d", topic.Topic, code)
		}
		// The policy of the pages allows neither.
		if _, document, _ := strings.Cut(page, "<article"); strings.Contains(document, "style=") || strings.Contains(document, "<script") {
			t.Errorf("%s has a style or a script of its own", topic.Topic)
		}
	}
	if _, page := v.get("/help/http"); !strings.Contains(page, "<td><code>ANY /mcp</code></td>") || !strings.Contains(page, `<a href="/help" aria-current="page">Help</a>`) {
		t.Errorf("the document on HTTP: %s", page)
	}
	if _, page := v.get("/help/tools"); !strings.Contains(page, `href="/help/manifest"`) {
		t.Error("a link to another document leads elsewhere")
	}
	for _, plot := range regexp.MustCompile(`<img src="(benchmark-[^"]+)"`).FindAllStringSubmatch(second(v.get("/help/benchmark")), -1) {
		if code, svg := v.get("/help/" + plot[1]); code != http.StatusOK || !strings.Contains(svg, "</svg>") {
			t.Errorf("plot %s: %d", plot[1], code)
		}
	}
	for _, path := range []string{"/help/none.svg", "/help/none", "/help/settings.md"} {
		if code, _ := v.get(path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func second(_ int, text string) string { return text }
