package appliance

import (
	"os"
	"runtime/debug"
)

// steadyGC is how much garbage there may be before it is collected, in per cent of what
// is in use. Go's own 100 would keep twice the memory. A change makes some 0.1 MiB of
// garbage and a collection takes some 0.7 ms for each MiB in use, so with this a change
// pays for some 0.3 ms of collecting, whatever the number of Services.
const steadyGC = 20

// settleMemory gives back what the start took: reading, storing and planning everything
// at once leaves more garbage than there is in use. It is called once everything is
// programmed; until then collecting more often would only make the start longer. Whoever
// sets GOGC is left alone.
func settleMemory() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(steadyGC)
	debug.FreeOSMemory()
}
