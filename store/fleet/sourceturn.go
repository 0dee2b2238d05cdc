package fleet

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// SourceTurn names the box that reads a directory of manifests for all.
type SourceTurn struct {
	// Holder is the box that has the turn; "" when none has it, or it is not known.
	Holder string
	// Mine reports whether this box has it, and may go on without asking.
	Mine bool
	// Vacant is the time since which no box has it; the zero Time while one has.
	Vacant time.Time
}

// sourceTurns are the turns that this box asks for.
type sourceTurns struct {
	willing map[string]bool // by source; false: it only wants to know who has the turn
	known   map[string]SourceTurn
}

// WantSources sets the sources whose turn this box wants (true), or whose holder it only wants to know. A turn
// that it has and does not want any more is given up. It takes effect with the next beat, which comes at once.
//
// The turn is a key with the lease of the box. It only keeps two boxes from trying at once: that one
// box alone changes the objects of a source is for the store to see to, which does so in each commit.
func (e *Engine) WantSources(willing map[string]bool) {
	e.mu.Lock()
	same := maps.Equal(e.sources.willing, willing)
	e.sources.willing = maps.Clone(willing)
	e.mu.Unlock()
	if same {
		return
	}
	select {
	case e.nudged <- struct{}{}:
	default: // a beat is coming
	}
}

// SourceTurn returns what the last beat has found of the turn of a source. It does not wait.
func (e *Engine) SourceTurn(name string) SourceTurn {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.sources.known[name]
	t.Mine = t.Mine && time.Now().Before(e.turn.until)
	return t
}

// claimSources takes the free turns that this box wants, and gives up those that it does not want.
func (e *Engine) claimSources(ctx context.Context, lease clientv3.LeaseID, able bool) error {
	e.mu.Lock()
	willing := maps.Clone(e.sources.willing)
	e.mu.Unlock()
	known := make(map[string]SourceTurn, len(willing))
	for name, wants := range willing {
		holder, mine, err := e.claim(ctx, sourceTurnPrefix+name, lease, wants && able)
		if err != nil {
			return err
		}
		known[name] = SourceTurn{Holder: holder, Mine: mine}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, t := range known {
		before, was := e.sources.known[name]
		if t.Holder == "" {
			t.Vacant = before.Vacant
			if t.Vacant.IsZero() {
				t.Vacant = time.Now()
			}
			known[name] = t
		}
		if !was || before.Holder != t.Holder || before.Mine != t.Mine {
			e.signal()
		}
	}
	e.sources.known = known
	return nil
}

// claim takes a free key with the lease of this box if it wants it, and gives it up if it does not. It returns the
// name of the box that has the key afterwards.
func (e *Engine) claim(ctx context.Context, key string, lease clientv3.LeaseID, wants bool) (holder string, mine bool, err error) {
	key = e.key(key)
	me := e.cfg.Box + " " + fmt.Sprint(int64(lease))
	var kvs []string
	if wants {
		resp, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, me, clientv3.WithLease(lease))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return "", false, err
		}
		if resp.Succeeded {
			return e.cfg.Box, true, nil
		}
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			kvs = append(kvs, string(kv.Value))
		}
	} else {
		resp, err := e.client.Get(ctx, key)
		if err != nil {
			return "", false, err
		}
		for _, kv := range resp.Kvs {
			kvs = append(kvs, string(kv.Value))
		}
	}
	switch {
	case len(kvs) == 0:
		return "", false, nil
	case kvs[0] == me && !wants:
		_, err := e.client.Delete(ctx, key)
		return "", false, err
	}
	holder, _, _ = strings.Cut(kvs[0], " ")
	return holder, kvs[0] == me, nil
}

// SourceHolders asks for the readers of the sources, by name.
func (e *Engine) SourceHolders(ctx context.Context) (map[string]string, error) {
	return e.origin.holders(ctx)
}

// Instance is the identifier of this data directory.
func (e *Engine) Instance() string { return e.instance }
