package guest_test

import (
	"linus/internal/executor"
	"linus/internal/guest"
)

var (
	_ executor.Guest = (*guest.Guest)(nil)
	_ executor.Keys  = guest.Keys{}
)
