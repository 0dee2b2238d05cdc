package reconcile

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkIdleStep measures the loop at 10,000 Services for a change without effect on it, as
// the renewal of a Lease.
func BenchmarkIdleStep(b *testing.B) {
	r := newRig(b)
	r.host()
	for i := range 100 {
		var text strings.Builder
		for j := range 100 {
			text.WriteString(web(fmt.Sprintf("s%d", i*100+j), fmt.Sprintf("10.96.%d.%d", i+1, j+1), "10.1.0.1") + "---\n")
		}
		r.write(fmt.Sprintf("%d.yaml", i), text.String())
	}
	r.step()
	for b.Loop() {
		r.step()
	}
}
