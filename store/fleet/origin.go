package fleet

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// origin is the source of commits of an Engine: etcd ([atEtcd]), or for a leaf a box that follows etcd ([atCore]). All else,
// what is believed, held, kept and shown, is the same for both.
type origin interface {
	// settings reads those of the fleet.
	settings(ctx context.Context) (*settings, error)
	// head reads the newest head, and the revision of etcd up to which there is no other; nil: there is none. With at it is
	// the one as of that revision; when nobody knows any more, isCompacted reports so of the error.
	head(ctx context.Context, at int64) (*head, int64, error)
	// state reads all objects as of one head, with the revision of etcd, of any time after the call.
	state(ctx context.Context) (now *head, at int64, have map[string][]byte, err error)
	// follow has the Engine take what comes after Engine.read, until ctx is done or that fails: after errGap, and an error
	// of which isCompacted reports so, all objects are read.
	follow(ctx context.Context) error
	// renew publishes the report of this box, and reads the holders of the turns.
	renew(ctx context.Context, b *beats) error
	boxes(ctx context.Context) ([]Box, error)
	// holders are the boxes that read the sources, by name.
	holders(ctx context.Context) (map[string]string, error)
	// refusal is why nothing is committed from here; nil: it may be.
	refusal() error
	// from names the origin in a sentence, silence says why it does not answer.
	from() string
	silence(err error) string
	// leave gives up what others know of this box, and ends all connections.
	leave() error
}

// atEtcd is the origin of a core box.
type atEtcd struct{ e *Engine }

func (o atEtcd) head(ctx context.Context, at int64) (*head, int64, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := ask(call, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return o.e.client.Get(ctx, o.e.key(headKey), clientv3.WithRev(at))
	})
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, resp.Header.Revision, nil
	}
	h, err := o.e.decodeHead(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
	return h, resp.Header.Revision, err
}

func (o atEtcd) settings(ctx context.Context) (*settings, error) {
	e := o.e
	for {
		s, mod, err := e.settings(ctx)
		if err != nil {
			return nil, err
		}
		if err := e.fits(s); err != nil || s.Settings != nil {
			return s, err
		}
		// The first box says which they are.
		s.Settings = e.cfg.Settings
		value, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		_, err = e.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(e.key(fleetKey)), "=", mod)).
			Then(clientv3.OpPut(e.key(fleetKey), string(value))).Commit()
		if err != nil {
			return nil, err
		}
	}
}

func (o atEtcd) state(ctx context.Context) (now *head, at int64, have map[string][]byte, err error) {
	now, at, err = o.head(ctx, 0)
	switch {
	case err != nil:
		return nil, 0, nil, err
	case now == nil:
		return nil, 0, nil, &heldError{Emptied, "etcd has no objects of the fleet any more"}
	}
	have, err = o.e.objects(ctx, now, at)
	return now, at, have, err
}

func (o atEtcd) follow(ctx context.Context) error {
	e := o.e
	e.mu.Lock()
	from := e.known + 1
	e.mu.Unlock()
	for resp := range e.watchFrom(ctx, from) {
		if err := resp.Err(); err != nil {
			return err
		}
		if err := e.take(ctx, resp.Events); err != nil {
			return err
		}
		e.mu.Lock()
		e.known = max(e.known, resp.Header.Revision)
		e.mu.Unlock()
	}
	return nil
}

// watchFrom watches all that boxes share.
func (e *Engine) watchFrom(ctx context.Context, from int64) clientv3.WatchChan {
	return e.client.Watch(clientv3.WithRequireLeader(ctx), e.key(fleetKey), clientv3.WithRange(e.key(sharedEnd)), clientv3.WithRev(from))
}

func (o atEtcd) boxes(ctx context.Context) ([]Box, error) {
	return boxes(ctx, o.e.client, o.e.prefix)
}

func (o atEtcd) holders(ctx context.Context) (map[string]string, error) {
	e := o.e
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Get(ctx, e.key(sourceTurnPrefix), clientv3.WithPrefix())
	if err != nil {
		return nil, e.away(err)
	}
	holders := make(map[string]string, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		holder, _, _ := strings.Cut(string(kv.Value), " ")
		holders[strings.TrimPrefix(string(kv.Key), e.key(sourceTurnPrefix))] = holder
	}
	return holders, nil
}

func (atEtcd) refusal() error { return nil }

func (atEtcd) from() string { return "etcd" }

func (o atEtcd) silence(err error) string {
	e := o.e
	if isDenied(err) {
		return e.denied(err)
	}
	if NoAnswer(err) {
		return "no member of etcd answers in time: " + e.cfg.Unreached(context.Background())
	}
	return err.Error()
}

// leave gives up the name and the turn, so that no box waits for the lease to end. Leaves that report here have
// theirs by another lease, until they have found another core box.
func (o atEtcd) leave() error {
	e := o.e
	e.mu.Lock()
	lease := e.turn.lease
	e.turn = turn{}
	e.mu.Unlock()
	if lease != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := e.client.Revoke(ctx, lease); err != nil {
			e.cfg.Log.Debug("the lease of this box ends by itself", "err", err)
		}
	}
	return e.client.Close()
}
