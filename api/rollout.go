package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// The bounds of the times of a rollout.
const (
	mostBake    = 7 * 24 * time.Hour
	leastWithin = time.Second
	mostWithin  = 24 * time.Hour
)

// Rollouts are the staged rollouts of a fleet. All methods may be called concurrently. Their errors are *wire.Failure where a
// client can do something about it.
type Rollouts interface {
	// Get returns the rollout that is under way, or the last one.
	Get(ctx context.Context) (wire.Rollout, error)
	// Begin begins one: the writes that name its ID belong to it, until it is started.
	Begin(ctx context.Context, ask Rollout) (wire.Rollout, error)
	// Move starts, pauses, resumes or undoes the one that is under way; an id that is not "" must be its.
	Move(ctx context.Context, verb, id, user string) (wire.Rollout, error)
}

// Rollout is a client's request for one.
type Rollout struct {
	Steps        string
	Bake, Within time.Duration
	Reverts      bool // it is undone where it would stop by itself
	User         string
}

// rollout answers GET /svcctl/v1/rollout.
func (s *Server) rollout(w http.ResponseWriter, r *http.Request) {
	state, err := s.cfg.Rollouts.Get(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, state)
}

// beginRollout answers POST /svcctl/v1/rollout/begin?steps=gw1,25%&bake=2m&within=1m&onFailure=undo.
func (s *Server) beginRollout(w http.ResponseWriter, r *http.Request) {
	if !post(w, r) {
		return
	}
	q := r.URL.Query()
	ask := Rollout{Steps: q.Get("steps"), User: auth.From(r.Context()).Name}
	for _, d := range []struct {
		name        string
		to          *time.Duration
		least, most time.Duration
	}{{"bake", &ask.Bake, 0, mostBake}, {"within", &ask.Within, leastWithin, mostWithin}} {
		var err error
		if *d.to, err = time.ParseDuration(q.Get(d.name)); err != nil || *d.to < d.least || *d.to > d.most {
			fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("%s=%q: want a duration as 2m, from %v to %v", d.name, q.Get(d.name), d.least, d.most))
			return
		}
	}
	switch on := q.Get("onFailure"); on {
	case "", wire.OnFailureStop:
	case wire.OnFailureUndo:
		ask.Reverts = true
	default:
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("onFailure=%q: want %s or %s", on, wire.OnFailureStop, wire.OnFailureUndo))
		return
	}
	state, err := s.cfg.Rollouts.Begin(r.Context(), ask)
	if err != nil {
		failWith(w, err)
		return
	}
	s.log.Info("a rollout is being gathered", "rollout", state.ID, "steps", ask.Steps, "user", ask.User)
	writeJSON(w, http.StatusOK, state)
}

// moveRollout answers POST /svcctl/v1/rollout/VERB?id=ID.
func (s *Server) moveRollout(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !post(w, r) {
			return
		}
		user := auth.From(r.Context()).Name
		state, err := s.cfg.Rollouts.Move(r.Context(), verb, r.URL.Query().Get("id"), user)
		if err != nil {
			failWith(w, err)
			return
		}
		s.log.Info("a rollout is moved", "rollout", state.ID, "verb", verb, "phase", state.Phase, "user", user)
		writeJSON(w, http.StatusOK, state)
	}
}
