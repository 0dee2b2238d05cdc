package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Trace follows packets, until there were so many, the time is over, or ctx is done. While another trace is under way it returns
// wire.ErrTracing.
type Trace func(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error

// tracePage is the page of Config.Dashboard that follows packets.
const tracePage = "/dashboard/trace"

// trace answers /svcctl/v1/trace: a wire.TracedPacket a line, as they come.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	if !bodiless(w, r) {
		return
	}
	q, err := wire.ParseTraceQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
		return
	}
	rc := http.NewResponseController(w)
	// The server's deadlines are made for answers at once: packets come when they come.
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	defer func() { _ = rc.SetWriteDeadline(time.Now().Add(s.limits.write)) }() // of what net/http holds still
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	begun := false
	begin := func() {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/jsonl")
			w.Header().Set("Cache-Control", "no-store")
		}
	}
	err = s.cfg.Trace(ctx, q, func(p wire.TracedPacket) {
		begin()
		body, err := json.Marshal(p)
		if err != nil {
			panic(fmt.Sprintf("api: encode %T: %v", p, err)) // our own types: a bug
		}
		_ = rc.SetWriteDeadline(time.Now().Add(s.limits.write)) // a reader that stalls ends it
		if _, err := w.Write(append(body, '\n')); err != nil || rc.Flush() != nil {
			cancel()
			return
		}
		_ = rc.SetWriteDeadline(time.Time{})
	})
	switch {
	case errors.Is(err, wire.ErrTracing):
		fail(w, http.StatusConflict, "Conflict", err.Error())
	case err != nil && !begun:
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
	case err != nil:
		s.log.Warn("a trace ended early", "err", err)
	default:
		begin()
	}
}
