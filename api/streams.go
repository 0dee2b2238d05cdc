package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// maxReport bounds a report of the announcer, in bytes: of 100,000 addresses.
const maxReport = 32 << 20

// announcements answers GET /svcctl/v1/announcements with all of them, with ?watch=true followed by
// changes. ?announcer=true makes the watcher the announcer.
func (s *Server) announcements(w http.ResponseWriter, r *http.Request) {
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

// tracePage is the page of Config.Dashboard that follows packets.
const tracePage = "/dashboard/trace"
