package api

import (
	"net/http"
	"net/http/pprof"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// profilePath is the path at which `go tool pprof` expects the profiles of a Go program.
const profilePath = "/debug/pprof/"

// profiles answers profilePath, only for root and the user that the appliance runs as: a profile
// takes time, and a dump of all goroutines shows what the process works on.
//
//	curl --unix-socket /run/svcctl/svcctl.sock http://svcctl/debug/pprof/profile?seconds=10 >cpu.prof
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(profilePath, pprof.Index) // also every profile by its name
	mux.HandleFunc(profilePath+"profile", pprof.Profile)
	mux.HandleFunc(profilePath+"trace", pprof.Trace)
	mux.HandleFunc(profilePath+"symbol", pprof.Symbol)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOperator(r) {
			fail(w, http.StatusForbidden, wire.ReasonForbidden, "only root and the user that svcctl runs as may profile it: ask as one of these, on the unix socket")
			return
		}
		// The server's read deadline, made for answers at once, would end a profile that
		// takes longer. Package pprof moves the write deadline itself.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r)
	})
}
