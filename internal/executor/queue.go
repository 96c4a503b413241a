package executor

import "slices"

// queue holds the jobs that have no run yet, by ID; a job's row is read when it is its
// turn. Principals take turns: each one's jobs start in the order of their creation. The
// zero value is empty.
type queue struct {
	ready   []string // need no slot: they share a VM, or were cancelled
	waiting []string // for a slot, oldest first: IDs sort by creation

	of      map[string]string // the principals of those that wait; none: the operator
	unknown bool              // some were added whose principals are to be read
	turn    int               // of the last start
	served  map[string]int    // the turns at which principals' jobs were started last
}

// add puts a job in line for a slot.
func (q *queue) add(id string) {
	if at, there := slices.BinarySearch(q.waiting, id); !there && !slices.Contains(q.ready, id) {
		q.waiting = slices.Insert(q.waiting, at, id)
		q.unknown = true
	}
}

// addOf is add for a job whose principal is known.
func (q *queue) addOf(id, principal string) {
	unknown := q.unknown
	q.add(id)
	q.unknown = unknown
	q.know(map[string]string{id: principal})
}

// know says whose the jobs are; those that are not in line are left out.
func (q *queue) know(principals map[string]string) {
	if q.of == nil {
		q.of = map[string]string{}
	}
	for id, principal := range principals {
		if _, there := slices.BinarySearch(q.waiting, id); there && principal != "" {
			q.of[id] = principal
		}
	}
}

// addReady puts a job before all that wait for a slot, because it needs none.
func (q *queue) addReady(id string) {
	q.remove(id)
	q.ready = append(q.ready, id)
}

// remove takes a job out, if it is there.
func (q *queue) remove(id string) {
	if at := slices.Index(q.ready, id); at >= 0 {
		q.ready = slices.Delete(q.ready, at, at+1)
	}
	switch at, there := slices.BinarySearch(q.waiting, id); {
	case there && at == 0:
		q.waiting = q.waiting[1:] // most are taken from here, and the line may be long
	case there:
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
	delete(q.of, id)
}

// begun takes a job out that starts: it is its principal's turn.
func (q *queue) begun(id, principal string) {
	q.remove(id)
	if q.served == nil {
		q.served = map[string]int{}
	}
	q.turn++
	q.served[principal] = q.turn
}

// next returns the job to start next; slot says whether one is free.
func (q *queue) next(slot bool) (id string, ok bool) {
	switch {
	case len(q.ready) > 0:
		return q.ready[0], true
	case slot && len(q.waiting) > 0:
		return q.first(), true
	}
	return "", false
}

// first returns the oldest job of the principal that has waited longest for a turn.
func (q *queue) first() string {
	best := q.waiting[0]
	if len(q.of) == 0 {
		return best // they are all the operator's
	}
	for _, id := range q.waiting {
		if q.served[q.of[id]] < q.served[q.of[best]] {
			best = id
		}
	}
	return best
}

// ahead returns how many jobs are before this one in the line for a slot, if nothing is
// added; false if it is not in line.
func (q *queue) ahead(id string) (int, bool) {
	at, there := slices.BinarySearch(q.waiting, id)
	if !there || len(q.of) == 0 {
		return at, there
	}
	own, counts, firsts := q.of[id], map[string]int{}, map[string]int{}
	for i, other := range q.waiting {
		p := q.of[other]
		if _, seen := firsts[p]; !seen {
			firsts[p] = i
		}
		if p != own || i < at {
			counts[p]++
		}
	}
	n := counts[own]
	for p, count := range counts {
		if p == own {
			continue
		}
		turns := counts[own] // that the other has before each of its own
		if q.served[p] < q.served[own] || q.served[p] == q.served[own] && firsts[p] < firsts[own] {
			turns++
		}
		n += min(count, turns)
	}
	return n, true
}

func (q *queue) empty() bool { return len(q.ready)+len(q.waiting) == 0 }
