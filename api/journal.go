package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"svcctl.io/svcctl/api/wire"
)

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
