package main

import (
	"net/http"
	"testing"
)

// One dispatcher's hook takes no other's place: its events would be refused by the other's secret.
func TestHooks_OneOfEachName(t *testing.T) {
	t.Parallel()
	var h hooks
	remove, err := h.add("here", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.add("here", http.NotFoundHandler()); err == nil {
		t.Error("a second one of the name is heard")
	}
	remove()
	if _, err := h.add("here", http.NotFoundHandler()); err != nil || h.of("here") == nil {
		t.Error("after the first has ended: ", err)
	}
}
