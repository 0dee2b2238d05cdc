package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// newFleet is an etcd with a fleet that no box has joined.
type newFleet struct {
	origin
	clientv3.KV
	unlimited bool // it got a transaction without a time limit
}

func (f *newFleet) settings(context.Context) (*settings, int64, error) {
	return &settings{ID: "f"}, 1, nil
}

func (f *newFleet) Txn(ctx context.Context) clientv3.Txn {
	_, limited := ctx.Deadline()
	f.unlimited = !limited
	return refused{}
}

// refused is a transaction that fails.
type refused struct{}

var errRefused = errors.New("refused")

func (refused) If(...clientv3.Cmp) clientv3.Txn        { return refused{} }
func (refused) Then(...clientv3.Op) clientv3.Txn       { return refused{} }
func (refused) Else(...clientv3.Op) clientv3.Txn       { return refused{} }
func (refused) Commit() (*clientv3.TxnResponse, error) { return nil, errRefused }

// The first box of a fleet writes its settings, and a member of etcd that is silent then, while its connection lives, keeps it from
// joining no longer than a call may take.
func Test1012_first_write_of_a_box_has_a_time_limit(t *testing.T) {
	etcd, box := &newFleet{}, &follower{}
	box.origin, box.client, box.cfg.Settings = etcd, &clientv3.Client{KV: etcd}, json.RawMessage("{}")
	if err := box.checkFleet(t.Context()); !errors.Is(err, errRefused) || etcd.unlimited {
		t.Errorf("it is written without a time limit: %t, %v", etcd.unlimited, err)
	}
}
