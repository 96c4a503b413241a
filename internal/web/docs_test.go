package web

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/gorilla/mux"

	"linus/internal/doctest"
)

func TestDocs_ListsEveryRoute(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	o := Options{MCP: nothing, API: nothing, Metrics: nothing, OAuth: &OAuth{}, Issuer: struct{ Issuer }{}, Token: "token"}
	var routes []string
	err := (&api{Options: o, pages: newPages(o)}).routes().Walk(func(r *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := r.GetPathTemplate()
		methods, noMethods := r.GetMethods()
		if noMethods != nil {
			methods = []string{"ANY"} // the handler's to decide
		}
		for _, method := range methods {
			if method != http.MethodHead { // goes with GET
				routes = append(routes, method+" "+regexp.MustCompile(`\{(\w+):[^}]*\}`).ReplaceAllString(path, "{$1}"))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	doctest.Routes(t, "routes", routes)
}
