package callback_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/mux"

	"linus/internal/callback"
)

func TestREADME_ListsEveryRoute(t *testing.T) {
	var routes []string
	h := callback.Handler(nil, nil)
	err := h.Walk(func(r *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := r.GetPathTemplate()
		w := httptest.NewRecorder() // which methods, the answer to a wrong one says
		h.ServeHTTP(w, httptest.NewRequest(http.MethodTrace, path, nil))
		for _, method := range strings.Split(w.Header().Get("Allow"), ", ") {
			routes = append(routes, method+" "+path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "<!-- callback-routes:begin -->")
	part, _, _ = strings.Cut(part, "<!-- callback-routes:end -->")
	var listed []string
	for _, m := range regexp.MustCompile("`([A-Z]+ /[^`]*)`").FindAllStringSubmatch(part, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(routes)
	slices.Sort(listed)
	if diff := cmp.Diff(routes, listed); diff != "" {
		t.Errorf("-the router's routes +README's:\n%s", diff)
	}
}
