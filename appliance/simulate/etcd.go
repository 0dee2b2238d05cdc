package simulate

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcd is a model of etcd: keys with all their versions, transactions, leases that expire in virtual time, watches. It is held to
// the real one by TestEtcdModel.
type etcd struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	keys      map[string][]stored
	versions  int
	leases    map[int64]*lease
	nextLease int64
	changed   chan struct{} // closed by the next change
}

// stored is a version of a key; one without a value is a deletion.
type stored struct {
	kv      *mvccpb.KeyValue
	deleted bool
	n       int // counts all, in the order of their operations
}

type lease struct {
	ttl  int64 // in seconds
	ends time.Time
	keys map[string]bool
}

func newEtcd() *etcd {
	return &etcd{revision: 1, keys: map[string][]stored{}, leases: map[int64]*lease{}, changed: make(chan struct{})}
}

// at returns a key as of a revision, nil if there is none.
func (m *etcd) at(key string, revision int64) *mvccpb.KeyValue {
	for _, v := range slices.Backward(m.keys[key]) {
		if v.kv.ModRevision <= revision {
			if v.deleted {
				return nil
			}
			return v.kv
		}
	}
	return nil
}

// in reports whether a key is in a range as requests have it.
func in(key string, from, end []byte) bool {
	switch {
	case len(end) == 0:
		return key == string(from)
	case len(end) == 1 && end[0] == 0:
		return key >= string(from)
	}
	return key >= string(from) && key < string(end)
}

// span lists the keys of a range as of a revision, by key.
func (m *etcd) span(from, end []byte, revision int64) (all []*mvccpb.KeyValue) {
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		if in(key, from, end) {
			if kv := m.at(key, revision); kv != nil {
				all = append(all, kv)
			}
		}
	}
	return all
}

func (m *etcd) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{Revision: m.revision}
}

func (m *etcd) rangeOf(r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	at := cmp.Or(r.Revision, m.revision)
	switch {
	case at > m.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision != 0 && at < m.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	all := m.span(r.Key, r.RangeEnd, at)
	resp := &etcdserverpb.RangeResponse{Header: m.header(), Count: int64(len(all))}
	if r.CountOnly {
		return resp, nil
	}
	if r.Limit > 0 && int64(len(all)) > r.Limit {
		all, resp.More = all[:r.Limit], true
	}
	for _, kv := range all {
		copied := &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
		if !r.KeysOnly {
			copied.Value = kv.Value
		}
		resp.Kvs = append(resp.Kvs, copied)
	}
	return resp, nil
}

// put writes a key at a revision, which is the next one.
func (m *etcd) put(r *etcdserverpb.PutRequest, revision int64) {
	key := string(r.Key)
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, ModRevision: revision, CreateRevision: revision, Version: 1}
	if before := m.at(key, revision); before != nil {
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
		if of := m.leases[before.Lease]; of != nil {
			delete(of.keys, key)
		}
	}
	if of := m.leases[r.Lease]; of != nil {
		of.keys[key] = true
	}
	m.add(stored{kv: kv})
}

func (m *etcd) add(v stored) {
	m.versions++
	v.n = m.versions
	m.keys[string(v.kv.Key)] = append(m.keys[string(v.kv.Key)], v)
}

func (m *etcd) deleteRange(from, end []byte, revision int64) (n int64) {
	for _, kv := range m.span(from, end, revision) {
		if of := m.leases[kv.Lease]; of != nil {
			delete(of.keys, string(kv.Key))
		}
		m.add(stored{kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: revision}, deleted: true})
		n++
	}
	return n
}

// holds evaluates a comparison.
func (m *etcd) holds(c *etcdserverpb.Compare) bool {
	kv := m.at(string(c.Key), m.revision)
	if kv == nil {
		if c.Target == etcdserverpb.Compare_VALUE {
			return false
		}
		kv = &mvccpb.KeyValue{}
	}
	var order int
	switch c.Target {
	case etcdserverpb.Compare_VALUE:
		order = bytes.Compare(kv.Value, c.GetValue())
	case etcdserverpb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case etcdserverpb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case etcdserverpb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case etcdserverpb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case etcdserverpb.Compare_EQUAL:
		return order == 0
	case etcdserverpb.Compare_GREATER:
		return order > 0
	case etcdserverpb.Compare_LESS:
		return order < 0
	}
	return order != 0
}

// txn makes a transaction: all of it or, with an error, nothing.
func (m *etcd) txn(r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	if err := duplicate(r.Success, r.Failure); err != nil {
		return nil, err
	}
	resp := &etcdserverpb.TxnResponse{Succeeded: !slices.ContainsFunc(r.Compare, func(c *etcdserverpb.Compare) bool { return !m.holds(c) })}
	ops := r.Failure
	if resp.Succeeded {
		ops = r.Success
	}
	for _, op := range ops {
		if put := op.GetRequestPut(); put != nil && put.Lease != 0 && m.leases[put.Lease] == nil {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
	}
	for _, op := range ops {
		if get := op.GetRequestRange(); get != nil && get.Revision > m.revision {
			return nil, rpctypes.ErrGRPCFutureRev
		}
		if get := op.GetRequestRange(); get != nil && get.Revision != 0 && get.Revision < m.compacted {
			return nil, rpctypes.ErrGRPCCompacted
		}
	}
	next, wrote := m.revision+1, false
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil:
			m.put(op.GetRequestPut(), next)
			wrote = true
			resp.Responses = append(resp.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: &etcdserverpb.PutResponse{Header: m.header()}}})
		case op.GetRequestDeleteRange() != nil:
			d := op.GetRequestDeleteRange()
			n := m.deleteRange(d.Key, d.RangeEnd, next)
			wrote = wrote || n > 0
			resp.Responses = append(resp.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &etcdserverpb.DeleteRangeResponse{Header: m.header(), Deleted: n}}})
		default:
			get, before := op.GetRequestRange(), m.revision
			if wrote {
				m.revision = next // it sees the writes before it
			}
			answer, err := m.rangeOf(get)
			m.revision = before
			if err != nil {
				return nil, err
			}
			resp.Responses = append(resp.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: answer}})
		}
	}
	if wrote {
		m.revision = next
		m.notify()
	}
	resp.Header = m.header()
	return resp, nil
}

// duplicate refuses a transaction that writes a key twice.
func duplicate(branches ...[]*etcdserverpb.RequestOp) error {
	for _, ops := range branches {
		var deletes []*etcdserverpb.DeleteRangeRequest
		seen := map[string]bool{}
		for _, op := range ops {
			if d := op.GetRequestDeleteRange(); d != nil {
				deletes = append(deletes, d)
			}
		}
		for _, op := range ops {
			put := op.GetRequestPut()
			if put == nil {
				continue
			}
			if seen[string(put.Key)] || slices.ContainsFunc(deletes, func(d *etcdserverpb.DeleteRangeRequest) bool { return in(string(put.Key), d.Key, d.RangeEnd) }) {
				return rpctypes.ErrGRPCDuplicateKey
			}
			seen[string(put.Key)] = true
		}
	}
	return nil
}

// notify wakes the watches.
func (m *etcd) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// expire ends the leases whose time is over.
func (m *etcd) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		if !time.Now().Before(m.leases[id].ends) {
			m.revoke(id)
		}
	}
}

func (m *etcd) revoke(id int64) {
	of := m.leases[id]
	delete(m.leases, id)
	if len(of.keys) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(of.keys)) {
		m.deleteRange([]byte(key), nil, m.revision+1)
	}
	m.revision++
	m.notify()
}

// compact forgets the versions before a revision.
func (m *etcd) compact(revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case revision <= m.compacted:
		return rpctypes.ErrGRPCCompacted
	case revision > m.revision:
		return rpctypes.ErrGRPCFutureRev
	}
	m.compacted = revision
	for key, versions := range m.keys {
		for len(versions) > 1 && versions[1].kv.ModRevision <= revision {
			versions = versions[1:]
		}
		m.keys[key] = versions
	}
	return nil
}

// events returns what happened to a range from a revision on, in order.
func (m *etcd) events(from, end []byte, revision int64) []*clientv3.Event {
	var all []stored
	for key, versions := range m.keys {
		if in(key, from, end) {
			all = append(all, versions...)
		}
	}
	all = slices.DeleteFunc(all, func(v stored) bool { return v.kv.ModRevision < revision })
	slices.SortFunc(all, func(a, b stored) int { return cmp.Compare(a.n, b.n) })
	events := make([]*clientv3.Event, len(all))
	for i, v := range all {
		events[i] = &clientv3.Event{Type: mvccpb.Event_PUT, Kv: v.kv}
		if v.deleted {
			events[i].Type = mvccpb.Event_DELETE
		}
	}
	return events
}

// Faults of calls of etcd.
const (
	callLost       = "lost"       // it has no effect, and no answer comes
	callUnanswered = "unanswered" // it has an effect, and no answer comes
	callSlow       = "slow"       // it takes 3 s
	callRefused    = "refused"    // the member has no leader
)

// link is the connection of one box to etcd: clientv3.KV by way of KVClient, Lease and Watcher.
type link struct {
	etcdserverpb.KVClient
	etcd *etcd

	mu     sync.Mutex
	cut    bool
	cuts   int
	open   int           // calls without a time limit, which a silent member keeps for good
	healed chan struct{} // closed when it is not cut any more
	calls  int
	faults map[int]string // by the number of the call
}

func newLink(m *etcd) *link { return &link{etcd: m, faults: map[int]string{}} }

// client returns a client of etcd over the link.
func (l *link) client(ctx context.Context) *clientv3.Client {
	c := clientv3.NewCtxClient(ctx)
	c.KV, c.Lease, c.Watcher = clientv3.NewKVFromKVClient(l, c), linkLease{l}, l
	return c
}

// fault has the nth call from now on fail.
func (l *link) fault(how string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[l.calls+n] = how
}

// setCut cuts the link, or heals it.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cut == l.cut {
		return
	}
	if l.cut = cut; cut {
		l.cuts++
		l.healed = make(chan struct{})
	} else {
		close(l.healed)
	}
}

// waitHealed waits until the link is not cut.
func (l *link) waitHealed(ctx context.Context) error {
	l.mu.Lock()
	healed := l.healed
	l.mu.Unlock()
	if healed == nil {
		return nil
	}
	select {
	case <-healed:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// call makes a call, with its fault.
func (l *link) call(ctx context.Context, f func() error) error {
	l.mu.Lock()
	l.calls++
	if _, limited := ctx.Deadline(); !limited {
		l.open++
	}
	fault := l.faults[l.calls]
	cut := l.cut
	l.mu.Unlock()
	silence := func() error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if cut {
		return silence()
	}
	do := func() error {
		l.etcd.mu.Lock()
		defer l.etcd.mu.Unlock()
		return f()
	}
	switch fault {
	case callLost:
		return silence()
	case callUnanswered:
		_ = do()
		return status.Error(codes.Unavailable, "the connection is closed")
	case callRefused:
		return rpctypes.ErrGRPCNoLeader
	case callSlow:
		select {
		case <-ctx.Done():
			_ = do() // it was under way
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(3 * time.Second):
		}
	}
	return do()
}

// Range implements etcdserverpb.KVClient, as the others do.
func (l *link) Range(ctx context.Context, r *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (resp *etcdserverpb.RangeResponse, err error) {
	err = l.call(ctx, func() (err error) { resp, err = l.etcd.rangeOf(r); return err })
	return resp, err
}

// Put runs a transaction of one operation.
func (l *link) Put(ctx context.Context, r *etcdserverpb.PutRequest, opts ...grpc.CallOption) (*etcdserverpb.PutResponse, error) {
	resp, err := l.Txn(ctx, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: r}}}}, opts...)
	if err != nil {
		return nil, err
	}
	return &etcdserverpb.PutResponse{Header: resp.Header}, nil
}

// DeleteRange runs a transaction of one operation.
func (l *link) DeleteRange(ctx context.Context, r *etcdserverpb.DeleteRangeRequest, opts ...grpc.CallOption) (*etcdserverpb.DeleteRangeResponse, error) {
	resp, err := l.Txn(ctx, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}}}, opts...)
	if err != nil {
		return nil, err
	}
	return &etcdserverpb.DeleteRangeResponse{Header: resp.Header, Deleted: resp.Responses[0].GetResponseDeleteRange().Deleted}, nil
}

// Txn implements etcdserverpb.KVClient.
func (l *link) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (resp *etcdserverpb.TxnResponse, err error) {
	err = l.call(ctx, func() (err error) { resp, err = l.etcd.txn(r); return err })
	return resp, err
}

// Watch implements clientv3.Watcher. A watch over a link that was cut goes on where it was, as that of the real client does.
func (l *link) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	to := make(chan clientv3.WatchResponse)
	go func() {
		defer close(to)
		for next := op.Rev(); ; {
			if l.waitHealed(ctx) != nil {
				return
			}
			m := l.etcd
			m.mu.Lock()
			if next == 0 {
				next = m.revision + 1
			}
			resp := clientv3.WatchResponse{Header: m.header(), Events: m.events(op.KeyBytes(), op.RangeBytes(), next)}
			if next <= m.compacted {
				resp = clientv3.WatchResponse{Header: m.header(), CompactRevision: m.compacted, Canceled: true}
			}
			next = max(next, m.revision+1)
			changed := m.changed
			m.mu.Unlock()
			if len(resp.Events) > 0 || resp.Canceled {
				select {
				case to <- resp:
				case <-ctx.Done():
					return
				}
			}
			if resp.Canceled {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}

// RequestProgress implements clientv3.Watcher.
func (l *link) RequestProgress(context.Context) error { return nil }

// Close implements clientv3.Watcher.
func (l *link) Close() error { return nil }

// linkLease implements clientv3.Lease, as far as the product has need of it.
type linkLease struct{ *link }

func (l linkLease) Grant(ctx context.Context, ttl int64) (resp *clientv3.LeaseGrantResponse, err error) {
	err = l.call(ctx, func() error {
		m := l.etcd
		m.nextLease++
		m.leases[m.nextLease] = &lease{ttl: ttl, ends: time.Now().Add(time.Duration(ttl) * time.Second), keys: map[string]bool{}}
		resp = &clientv3.LeaseGrantResponse{ResponseHeader: m.header(), ID: clientv3.LeaseID(m.nextLease), TTL: ttl}
		return nil
	})
	return resp, clientv3.ContextError(ctx, err)
}

func (l linkLease) Revoke(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseRevokeResponse, err error) {
	err = l.call(ctx, func() error {
		if l.etcd.leases[int64(id)] == nil {
			return rpctypes.ErrGRPCLeaseNotFound
		}
		l.etcd.revoke(int64(id))
		resp = &clientv3.LeaseRevokeResponse{Header: l.etcd.header()}
		return nil
	})
	return resp, clientv3.ContextError(ctx, err)
}

func (l linkLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseKeepAliveResponse, err error) {
	err = l.call(ctx, func() error {
		of := l.etcd.leases[int64(id)]
		if of == nil {
			return rpctypes.ErrGRPCLeaseNotFound
		}
		of.ends = time.Now().Add(time.Duration(of.ttl) * time.Second)
		resp = &clientv3.LeaseKeepAliveResponse{ResponseHeader: l.etcd.header(), ID: id, TTL: of.ttl}
		return nil
	})
	return resp, clientv3.ContextError(ctx, err)
}

func (l linkLease) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not modeled")
}

func (l linkLease) Leases(context.Context) (*clientv3.LeaseLeasesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not modeled")
}

func (l linkLease) KeepAlive(context.Context, clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not modeled")
}
