package fleet

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Names returns the boxes that have reported, and those that are heard of, as one state of etcd has them. A leaf knows neither.
func (e *Engine) Names(ctx context.Context) (reported, present map[string]bool, err error) {
	if e.client == nil {
		return nil, nil, errors.New("a leaf does not ask etcd")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names := func(prefix string) clientv3.Op {
		return clientv3.OpGet(e.key(prefix), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	}
	resp, err := e.client.Txn(ctx).Then(names(boxPrefix), names(alivePrefix)).Commit()
	if err != nil {
		return nil, nil, err
	}
	read := func(i int, prefix string) map[string]bool {
		all := map[string]bool{}
		for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
			all[strings.TrimPrefix(string(kv.Key), e.key(prefix))] = true
		}
		return all
	}
	return read(0, boxPrefix), read(1, alivePrefix), nil
}

// Forget removes the report of a box, unless it is heard of. It reports again when it comes back.
func (e *Engine) Forget(ctx context.Context, box string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.key(alivePrefix+box)), "=", 0)).
		Then(clientv3.OpDelete(e.key(boxPrefix + box))).Commit()
	return err
}
