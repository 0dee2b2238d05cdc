package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// How long a trial may last.
const (
	leastTrial = time.Second
	mostTrial  = 24 * time.Hour
)

// Changes takes changes back, and all that is stored out. All methods may be called concurrently. Their
// errors are *wire.Failure where a client can do something about it.
type Changes interface {
	// Begin begins a trial, or moves the end of the one that is under way.
	Begin(ctx context.Context, user string, files bool, after time.Duration) (wire.Trial, error)
	// Confirm ends the trial, and makes what it changed stay; Back takes it back.
	Confirm(ctx context.Context) (wire.Trial, error)
	Back(ctx context.Context) (wire.RolledBack, error)
	// Rollback makes objects what they were at a revision.
	Rollback(ctx context.Context, ask Rollback) (wire.RolledBack, error)
	// Export writes everything that is stored.
	Export(w io.Writer) error
}

// Rollback is a client's request for one.
type Rollback struct {
	Revision    uint64 // 0 is the one before the last change by a client
	Last        uint64 // refused (409) after a newer change by a client than this one; 0: whatever came
	DryRun      bool
	Trial       string // the ID of the trial that it belongs to; "": it stays
	User, Agent string
}

// post refuses what is no POST, or has a body.
func post(w http.ResponseWriter, r *http.Request) bool {
	if !onlyPost(w, r) {
		return false
	}
	if r.ContentLength != 0 {
		spare(w, r)
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "POST takes no body here: leave it out")
		return false
	}
	return true
}

// failWith answers with an error of Changes.
func failWith(w http.ResponseWriter, err error) {
	if f, is := errors.AsType[*wire.Failure](err); is {
		writeJSON(w, f.Code, f)
		return
	}
	fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
}

// trial answers POST /svcctl/v1/trial?for=5m, with files=true for files too.
func (s *Server) trial(w http.ResponseWriter, r *http.Request) {
	if !post(w, r) {
		return
	}
	q := r.URL.Query()
	after, err := time.ParseDuration(q.Get("for"))
	if err != nil || after < leastTrial || after > mostTrial {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("for=%q: want a duration as 5m, from %v to %v", q.Get("for"), leastTrial, mostTrial))
		return
	}
	user := auth.From(r.Context()).Name
	t, err := s.cfg.Changes.Begin(r.Context(), user, q.Get("files") == "true", after)
	if err != nil {
		failWith(w, err)
		return
	}
	s.log.Info("a trial has begun: its changes are undone unless confirmed", "ends", t.Ends, "files", t.CoversFiles, "user", user)
	writeJSON(w, http.StatusOK, t)
}

// confirm answers POST /svcctl/v1/trial/confirm.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request) {
	if !post(w, r) {
		return
	}
	t, err := s.cfg.Changes.Confirm(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	s.log.Info("the trial is confirmed", "objects", len(t.Objects), "files", len(t.Files), "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, t)
}

// back answers POST /svcctl/v1/trial/back.
func (s *Server) back(w http.ResponseWriter, r *http.Request) {
	if !post(w, r) {
		return
	}
	b, err := s.cfg.Changes.Back(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	s.log.Info("the trial was taken back", "objects", len(b.Objects), "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, b)
}

// rollback answers POST /svcctl/v1/rollback?revision=N&last=N.
func (s *Server) rollback(w http.ResponseWriter, r *http.Request) {
	if !post(w, r) {
		return
	}
	q := r.URL.Query()
	ask := Rollback{DryRun: q.Has("dryRun"), Trial: q.Get("trial"), User: auth.From(r.Context()).Name, Agent: r.UserAgent()}
	for name, at := range map[string]*uint64{"revision": &ask.Revision, "last": &ask.Last} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("%s=%q: want a number", name, text))
			return
		}
		*at = n
	}
	b, err := s.cfg.Changes.Rollback(r.Context(), ask)
	if err != nil {
		failWith(w, err)
		return
	}
	if !ask.DryRun {
		s.log.Info("rolled back", "revision", b.Revision, "objects", len(b.Objects), "user", ask.User)
	}
	writeJSON(w, http.StatusOK, b)
}

// export answers /svcctl/v1/export. An answer that fails half-way has no last line, which a reader
// misses.
func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return
	}
	s.log.Info("everything that is stored is exported", "user", auth.From(r.Context()).Name)
	if err := s.cfg.Changes.Export(w); err != nil {
		s.log.Warn("an export was not finished", "err", err)
		panic(http.ErrAbortHandler) // the client sees that the answer is cut
	}
}
