package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// LeafReport is the report of a leaf to its core box.
type LeafReport struct {
	// Instance identifies the data directory of the leaf.
	Instance string `json:"instance"`
	Report   Report `json:"report"`
	// Anew is set when the leaf reported to another core box since its last report here.
	Anew bool `json:"anew,omitempty"`
	// Node is the Node object of the leaf, if that has changed since it was told last.
	Node json.RawMessage `json:"node,omitempty"`
}

// errNamesake means that another box has the name of a leaf.
var errNamesake = errors.New("another box of this fleet has that name")

// hear takes the report of a leaf.
func (e *Engine) hear(ctx context.Context, r *LeafReport) error {
	if err := e.serves(); err != nil {
		return err
	}
	box := r.Report.Box
	e.mu.Lock()
	lease := e.leaves.lease
	e.mu.Unlock()
	if lease == 0 {
		granted, err := e.client.Grant(ctx, leaseTTL)
		if err != nil {
			return e.away(err)
		}
		e.mu.Lock()
		if e.leaves.lease == 0 {
			e.leaves.lease = granted.ID
		}
		lease = e.leaves.lease
		e.mu.Unlock()
	}
	mine, _, err := e.claimName(ctx, box, r.Instance, lease, false)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		e.mu.Lock()
		if e.leaves.lease == lease {
			e.leaves.lease = 0 // the next report gets another one
		}
		e.mu.Unlock()
		return e.away(err)
	case err != nil:
		return e.away(err)
	case !mine || box == e.cfg.Box:
		return errNamesake
	}
	text, err := json.Marshal(r.Report)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.leaves.present == nil {
		e.leaves.present = map[string]*leaf{}
	}
	is := e.leaves.present[box]
	if is == nil {
		is = &leaf{}
		e.leaves.present[box] = is
	}
	is.heard = time.Now()
	if r.Node != nil && !bytes.Equal(is.node, r.Node) {
		is.node = r.Node
		e.signal()
	}
	told := is.told
	e.mu.Unlock()
	if !r.Anew && told == string(text) {
		return nil
	}
	if _, err := e.client.Put(ctx, e.key(boxPrefix+box), string(text)); err != nil {
		return e.away(err)
	}
	e.mu.Lock()
	is.told = string(text)
	e.mu.Unlock()
	return nil
}

// keepLeaves renews the lease with the names of the leaves, and lets those go that are not heard of any more.
func (e *Engine) keepLeaves(ctx context.Context) error {
	e.mu.Lock()
	lease := e.leaves.lease
	var silent []string
	for box, is := range e.leaves.present {
		if time.Since(is.heard) > leaseTTL*time.Second {
			silent = append(silent, box)
			delete(e.leaves.present, box)
		}
	}
	if len(e.leaves.present) == 0 {
		e.leaves.lease = 0 // it ends by itself, with the names that it has
	}
	e.mu.Unlock()
	if lease == 0 {
		return nil
	}
	for _, box := range silent { // unless it reports to another core box
		key := e.key(alivePrefix + box)
		if _, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease)).Then(clientv3.OpDelete(key)).Commit(); err != nil {
			return err
		}
	}
	gone, err := keepLease(ctx, e.client, lease)
	if gone {
		e.mu.Lock()
		if e.leaves.lease == lease {
			e.leaves.lease = 0
		}
		e.mu.Unlock()
	}
	return err
}

// LeafNodes returns the Nodes of the leaves that report here, as JSON, by name.
func (e *Engine) LeafNodes() map[string]json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.leaves.present) == 0 {
		return nil
	}
	nodes := map[string]json.RawMessage{}
	for box, is := range e.leaves.present {
		if is.node != nil {
			nodes[box] = is.node
		}
	}
	return nodes
}
