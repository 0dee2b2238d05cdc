package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Trace follows packets, until there were so many, the time is over, or ctx is done.
type Trace func(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error

const tracePath = "/svcctl/v1/trace"

// The bounds of a trace.
const (
	defaultTraced, maxTraced             = 5, 1000
	defaultTraceSeconds, maxTraceSeconds = 30, 60
)

// traceHandler answers /svcctl/v1/trace: a wire.TracedPacket a line, as they come.
func (s *Server) traceHandler() http.HandlerFunc {
	var busy atomic.Bool
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := traceQuery(r)
		if err != nil {
			fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
			return
		}
		if !q.Predict && busy.Swap(true) {
			fail(w, http.StatusConflict, "Conflict", "somebody traces already: wait until that ends, a minute at most")
			return
		}
		if !q.Predict {
			defer busy.Store(false)
		}
		s.log.Info("a trace was asked for", "from", q.From, "to", q.To, "port", q.Port, "user", auth.From(r.Context()).Name)
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Time{})
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
			}
		})
		switch {
		case err != nil && !begun:
			fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
		case err != nil:
			s.log.Warn("a trace ended early", "err", err)
		default:
			begin()
		}
	}
}

// traceQuery reads the query of /svcctl/v1/trace.
func traceQuery(r *http.Request) (q wire.TraceQuery, err error) {
	values := r.URL.Query()
	if text := values.Get("from"); text != "" {
		if q.From, err = netip.ParsePrefix(text); err != nil {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return q, fmt.Errorf("from=%q: want an address or a prefix as 203.0.113.0/24", text)
			}
			q.From = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	if text := values.Get("to"); text != "" {
		if q.To, err = netip.ParseAddr(text); err != nil {
			return q, fmt.Errorf("to=%q: want an address", text)
		}
	}
	if text := values.Get("port"); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return q, fmt.Errorf("port=%q: want a number from 1 to 65535", text)
		}
		q.Port = uint16(port)
	}
	switch q.Protocol = strings.ToUpper(values.Get("protocol")); q.Protocol {
	case "TCP", "UDP", "SCTP":
	case "":
		if q.Port != 0 {
			q.Protocol = "TCP"
		}
	default:
		return q, fmt.Errorf("protocol=%q: want TCP, UDP or SCTP", values.Get("protocol"))
	}
	q.Established, q.Predict = values.Get("established") == "true", values.Get("predict") == "true"
	if q.Predict && (!q.To.IsValid() || q.Port == 0) {
		return q, errors.New("a prediction is of a packet to an address with a port: give to and port")
	}
	if q.Predict && q.From.IsValid() && !q.From.IsSingleIP() {
		return q, fmt.Errorf("from=%q: a prediction is of the packet of one client: want an address", q.From)
	}
	if q.Count, err = boundedNumber(values.Get("count"), defaultTraced, maxTraced); err != nil {
		return q, fmt.Errorf("count=%w", err)
	}
	if q.Seconds, err = boundedNumber(values.Get("seconds"), defaultTraceSeconds, maxTraceSeconds); err != nil {
		return q, fmt.Errorf("seconds=%w", err)
	}
	if q.From.IsValid() && q.To.IsValid() && q.From.Addr().Is4() != q.To.Is4() {
		return q, errors.New("from and to: one address is IPv4 and the other IPv6")
	}
	if q.From.IsValid() && q.From.Addr().Is4In6() || q.To.Is4In6() {
		return q, errors.New("from and to: write an IPv4 address as such")
	}
	return q, nil
}

// boundedNumber reads a number from 1 to most; "" is def.
func boundedNumber(text string, def, most int) (int, error) {
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%q: want a number from 1 to %d", text, most)
	}
	return n, nil
}
