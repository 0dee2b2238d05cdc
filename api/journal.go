package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"svcctl.io/svcctl/api/wire"
)

// How many entries of the journal are told when nothing else is asked for, and at most.
const (
	defaultJournal = 100
	maxJournal     = 10_000
)

// journal answers /svcctl/v1/journal: one entry a line, the oldest first.
func (s *Server) journal(w http.ResponseWriter, r *http.Request) {
	limit := defaultJournal
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxJournal {
			fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("limit=%q: want a number from 1 to %d", text, maxJournal))
			return
		}
		limit = n
	}
	entries, err := s.cfg.Journal(limit, r.URL.Query().Get("events") == "true")
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
