package callback_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/mux"

	"linus/internal/callback"
	"linus/internal/doctest"
)

func TestDocs_ListsEveryRoute(t *testing.T) {
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
	doctest.Routes(t, "callback-routes", routes)
}
