package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Changes undoes changes, and exports what is stored. All methods may be called concurrently. Their errors are
// *wire.Failure where a client can do something about it.
type Changes interface {
	// Begin begins a trial, or moves the end of the one that is under way.
	Begin(ctx context.Context, user string, files bool, after time.Duration) (wire.Trial, error)
	// Confirm ends the trial and keeps its changes; Back undoes them. With unchanged only the trial of that ID ends, while it has no
	// change.
	Confirm(ctx context.Context, unchanged string) (wire.Trial, error)
	Back(ctx context.Context) (wire.RolledBack, error)
	// Rollback restores the objects of a revision, for a user with the User-Agent agent.
	Rollback(ctx context.Context, q wire.RollbackQuery, user, agent string) (wire.RolledBack, error)
	// Export writes everything that is stored.
	Export(w io.Writer) error
}

// Rollouts are the staged rollouts of a fleet. All methods may be called concurrently. Their errors are *wire.Failure where a
// client can do something about it.
type Rollouts interface {
	// Get returns the rollout that is under way, or the last one.
	Get(ctx context.Context) (wire.Rollout, error)
	// Begin begins one: the writes that name its ID belong to it, until it is started.
	Begin(ctx context.Context, q wire.RolloutQuery, user string) (wire.Rollout, error)
	// Move starts, pauses, resumes or undoes the one that is under way; an id that is not "" must be its.
	Move(ctx context.Context, verb, id, user string) (wire.Rollout, error)
}

func (s *Server) beginTrial(r *http.Request, q wire.TrialQuery) (wire.Trial, error) {
	t, err := s.cfg.Changes.Begin(r.Context(), userOf(r), q.Files, q.For)
	if err == nil {
		s.log.Info("a trial has begun: its changes are undone unless confirmed", "ends", t.Ends, "files", t.CoversFiles, "user", userOf(r))
	}
	return t, err
}

func (s *Server) confirmTrial(r *http.Request, _ wire.None) (wire.Trial, error) {
	t, err := s.cfg.Changes.Confirm(r.Context(), "")
	if err == nil {
		s.log.Info("the trial is confirmed", "objects", len(t.Objects), "files", len(t.Files), "user", userOf(r))
	}
	return t, err
}

func (s *Server) endTrial(r *http.Request, q wire.EndQuery) (wire.Trial, error) {
	return s.cfg.Changes.Confirm(r.Context(), q.ID)
}

func (s *Server) undoTrial(r *http.Request, _ wire.None) (wire.RolledBack, error) {
	b, err := s.cfg.Changes.Back(r.Context())
	if err == nil {
		s.log.Info("the trial was undone", "objects", len(b.Objects), "user", userOf(r))
	}
	return b, err
}

func (s *Server) rollback(r *http.Request, q wire.RollbackQuery) (wire.RolledBack, error) {
	b, err := s.cfg.Changes.Rollback(r.Context(), q, userOf(r), r.UserAgent())
	if err == nil && !b.DryRun {
		s.log.Info("rolled back", "revision", b.Revision, "objects", len(b.Objects), "user", userOf(r))
	}
	return b, err
}

// export answers with everything that is stored. An answer that fails half-way has no last line, which a reader misses.
func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	if !bodiless(w, r) {
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return
	}
	s.log.Info("everything that is stored is exported", "user", userOf(r))
	if err := s.cfg.Changes.Export(w); err != nil {
		s.log.Warn("an export was not finished", "err", err)
		panic(http.ErrAbortHandler) // the client sees that the answer is cut
	}
}

// plan answers with the changes in the kernel. The body is that of /svcctl/v1/apply, with removals=N after N lines of JSON with objects
// that are to go then (wire.PlanRemoval); or with directory=DIR lines of JSON with the files that are to be in a watched directory
// (wire.PlanFile).
func (s *Server) plan(w http.ResponseWriter, r *http.Request) {
	plan, err := s.cfg.Plan(w, r)
	if err != nil {
		spare(w, r)
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, plan)
}

func (s *Server) rollout(r *http.Request, _ wire.None) (wire.Rollout, error) {
	return s.cfg.Rollouts.Get(r.Context())
}

func (s *Server) beginRollout(r *http.Request, q wire.RolloutQuery) (wire.Rollout, error) {
	state, err := s.cfg.Rollouts.Begin(r.Context(), q, userOf(r))
	if err == nil {
		s.log.Info("a rollout is being gathered", "rollout", state.ID, "steps", q.Steps, "user", userOf(r))
	}
	return state, err
}

func (s *Server) moveRollout(verb string) func(*http.Request, wire.MoveQuery) (wire.Rollout, error) {
	return func(r *http.Request, q wire.MoveQuery) (wire.Rollout, error) {
		state, err := s.cfg.Rollouts.Move(r.Context(), verb, q.ID, userOf(r))
		if err == nil {
			s.log.Info("a rollout is moved", "rollout", state.ID, "verb", verb, "phase", state.Phase, "user", userOf(r))
		}
		return state, err
	}
}
