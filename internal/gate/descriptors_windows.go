package gate

import "math"

// descriptors returns how many files the process may open: Windows has no such limit.
func descriptors() int { return math.MaxInt }
