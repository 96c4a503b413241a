package executor

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestQueue_InOrderOfCreation(t *testing.T) {
	var q queue
	for _, id := range []string{"b", "d", "a", "c", "b"} { // submits at the same time come in any order, and one may come twice
		q.add(id)
	}
	if at, ok := q.ahead("c"); !ok || at != 2 {
		t.Errorf("%d are ahead of c, %v", at, ok)
	}
	if _, ok := q.ahead("e"); ok {
		t.Error("a job that was never added is in line")
	}
	if id, ok := q.next(false); ok {
		t.Errorf("%s is next without a slot", id)
	}
	q.addReady("c") // cancelled: it needs no slot
	q.addReady("s") // shares a VM: it was never in line
	q.add("c")      // the engine reads its row once more
	var order []string
	for {
		id, ok := q.next(true)
		if !ok {
			break
		}
		if _, slotless := q.next(false); slotless != (id == "c" || id == "s") {
			t.Errorf("%s is next without a slot: %v", id, slotless)
		}
		order = append(order, id)
		q.remove(id)
	}
	if want := []string{"c", "s", "a", "b", "d"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if !q.empty() {
		t.Error("not empty")
	}
}

// Whatever is added and removed, the line is what a plain list would be.
func TestQueue_IsAList(t *testing.T) {
	var q queue
	var list []string
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		id := string([]byte{byte('a' + r.IntN(26)), byte('a' + r.IntN(26))})
		if r.IntN(2) == 0 {
			q.add(id)
			if !slices.Contains(list, id) {
				list = append(list, id)
				slices.Sort(list)
			}
		} else {
			if first, ok := q.next(true); ok && r.IntN(2) == 0 {
				id = first
			}
			q.remove(id)
			list = slices.DeleteFunc(list, func(s string) bool { return s == id })
		}
		if !slices.Equal(q.waiting, list) || q.empty() != (len(list) == 0) {
			t.Fatalf("line %v, want %v", q.waiting, list)
		}
	}
}

// Principals take turns, whoever has submitted how many before; each one's own jobs stay
// in order. Whose a job is may be known later.
func TestQueue_PrincipalsTakeTurns(t *testing.T) {
	var q queue
	of := map[string]string{}
	for i, p := range []string{"ada", "ada", "ada", "ada", "bob", "bob", "", "cleo"} {
		id := string(rune('a' + i))
		of[id] = p
		if i%2 == 0 {
			q.addOf(id, p)
		} else {
			q.add(id)
		}
	}
	if !q.unknown {
		t.Error("it asks for nobody's principal")
	}
	q.know(of)
	q.know(map[string]string{"z": "ada"}) // it has begun meanwhile
	var order []string
	for {
		id, ok := q.next(true)
		if !ok {
			break
		}
		if n, there := q.ahead(id); n != 0 || !there {
			t.Errorf("%d are ahead of %s, which is next", n, id)
		}
		for _, later := range q.waiting {
			if n, _ := q.ahead(later); n >= len(q.waiting) {
				t.Errorf("%d of %d are ahead of %s", n, len(q.waiting), later)
			}
		}
		order = append(order, id)
		q.begun(id, of[id])
	}
	if want := []string{"a", "e", "g", "h", "b", "f", "c", "d"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if len(q.of) != 0 {
		t.Errorf("left: %v", q.of)
	}
}
