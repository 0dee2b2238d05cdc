package fleet

import (
	"context"
	"errors"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// Nobody answers for a commit, and the follower sees it just before its time is over: it was made, as the
// store does not get it by Follow any more.
func TestCommitThatOnlyTheFollowerSees(t *testing.T) {
	r, err := openReplica(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	cfg := Config{Fleet: "test", Box: "a", Endpoints: []string{"http://127.0.0.1:1"}} // without a listener
	client, err := cfg.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := newEngine(cfg, r)
	e.client, e.read, e.state.Kind = client, &head{Revision: 1, ID: "first", mod: 1}, Following
	ctx, cancel := context.WithCancel(t.Context())
	e.step = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.inflight.landed == nil {
			e.land(&head{Revision: 2, ID: e.inflight.id, mod: 2})
			cancel()
		}
	}
	ops := []operation{{Key: "object/Service/default/web", Value: []byte("{}")}}
	if err := e.commit(ctx, ops, 2, nil, 1); err != nil {
		t.Errorf("the commit: %v", err)
	}
	if e.inflight != nil || e.newestRead().Revision != 2 {
		t.Errorf("a flight %v, and revision %d", e.inflight, e.newestRead().Revision)
	}
	// One that no box has seen is not known to be made.
	e.step = func() {}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond) // real time: no answer comes meanwhile
	defer cancel()
	if err := e.commit(ctx, ops, 3, nil, 2); !errors.Is(err, engine.ErrUnsettled) || e.inflight != nil {
		t.Errorf("a commit without an answer: %v", err)
	}
}
