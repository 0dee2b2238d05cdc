package reconcile

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// How long a change took is counted from when its file was noticed first, once it is in the
// kernel.
func TestChangeLatency(t *testing.T) {
	r := newRig(t)
	r.host()
	// counted is how many changes took up to 4 s, and how many there were.
	counted := func(quick, all string) {
		t.Helper()
		w := httptest.NewRecorder()
		r.metrics.Handler(r.board, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for bucket, want := range map[string]string{"4.096": quick, "+Inf": all} {
			if line := `svcctl_change_duration_seconds_bucket{le="` + bucket + `"} ` + want + "\n"; !strings.Contains(w.Body.String(), line) {
				t.Errorf("no %s in\n%s", line, w.Body)
			}
		}
	}
	change := func(endpoint string, ago time.Duration) {
		r.write("web.yaml", web("web", "10.96.0.10", endpoint))
		r.observed.snapshot.Noticed = time.Now().Add(-ago)
		r.take(r.observed.snapshot)
	}
	change("10.1.2.3", 0)
	r.step()
	counted("1", "1")
	r.step() // nothing is new
	counted("1", "1")
	change("10.1.2.4", time.Minute)
	r.kernel.Inject(func(*nft.Batch) error { return errors.New("no") })
	r.step()
	counted("1", "1")
	change("10.1.2.5", 0)
	r.kernel.Inject(nil)
	r.step()
	counted("1", "2")
}
