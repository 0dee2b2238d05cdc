package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// maxReport bounds a report of the announcer, in bytes: of 100,000 addresses.
const maxReport = 32 << 20

// announcements answers GET /svcctl/v1/announcements with all of them, with ?watch=true followed by what
// changes. ?announcer=true says that the watcher is the announcer.
func (s *Server) announcements(w http.ResponseWriter, r *http.Request) {
	if !bodiless(w, r) {
		return
	}
	if !isWatch(r) {
		writeJSON(w, http.StatusOK, s.cfg.Announcements.List())
		return
	}
	announces := r.URL.Query().Get("announcer") == "true"
	if announces && !mayAnnounce(r) {
		notAnnouncer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	frames := json.NewEncoder(w)
	_ = s.cfg.Announcements.Watch(r.Context(), announces, func(e wire.AnnouncementsEvent) error {
		if err := frames.Encode(e); err != nil {
			return err
		}
		return control.Flush()
	}) // the client hung up, or we stop
}

// announcerReport answers POST /svcctl/v1/announcements/report.
func (s *Server) announcerReport(w http.ResponseWriter, r *http.Request) {
	if !mayAnnounce(r) {
		notAnnouncer(w, r)
		return
	}
	var report wire.AnnouncerReport
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(&report); err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "the report is not read: "+err.Error())
		return
	}
	s.cfg.Announcements.Report(report)
	writeJSON(w, http.StatusOK, wire.None{})
}

// mayAnnounce reports whether the user of a request may be the announcer: over the socket, an admin
// or a member of the group that the appliance runs as. The announcer's reports are shown, and
// change nothing.
func mayAnnounce(r *http.Request) bool {
	peer, unix := peerFrom(r.Context())
	if !unix {
		return false
	}
	group := uint32(os.Getegid())
	return auth.From(r.Context()).Role == auth.Admin || peer.GID == group || slices.Contains(peer.Groups, group)
}

func notAnnouncer(w http.ResponseWriter, r *http.Request) {
	spare(w, r)
	fail(w, http.StatusForbidden, wire.ReasonForbidden, fmt.Sprintf(
		"%s may not announce: run `svcctl announce` on this box, as root or in the group of `svcctl serve`", auth.From(r.Context()).Name))
}

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

// journal answers with the newest changes: one a line, the oldest first.
func (s *Server) journal(w http.ResponseWriter, r *http.Request) {
	q, ok := asked(w, r, wire.GetJournal)
	if !ok {
		return
	}
	entries, err := s.cfg.Journal(q.Limit, q.Events)
	if err != nil {
		fail(w, http.StatusInternalServerError, wire.ReasonInternalError, "the journal cannot be read: "+err.Error())
		return
	}
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	for _, entry := range entries {
		if err := lines.Encode(entry); err != nil {
			panic(fmt.Sprintf("api: encode %T: %v", entry, err)) // our own types: a bug
		}
	}
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	_, _ = w.Write(body.Bytes())
}
