package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// Test1101_model_is_etcd has random transactions, reads, leases and compactions answered by the model and by etcd: the same answers, the
// same errors, and the same events in a watch. TRANSACTIONS is their number.
func Test1101_model_is_etcd(t *testing.T) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
			t.Fatal(err)
		}
		t.Skip("PRIVILEGED TEST SKIPPED: etcd is not installed: .ci/deps etcd")
	}
	n := 400
	if asked, err := strconv.Atoi(os.Getenv("TRANSACTIONS")); err == nil {
		n = asked
	}
	real := realEtcd(t, program)
	m := newEtcd()
	model := newLink(m).client(t.Context())
	r := rand.New(rand.NewPCG(1, 5))
	ctx := t.Context()
	var watches [2]<-chan []clientv3.WatchResponse
	for j, c := range []*clientv3.Client{real, model} {
		watches[j] = unread(ctx, c.Watch(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(1)))
	}
	leases := [2][]clientv3.LeaseID{{0}, {0}}
	var events [2][]string
	come := func() { // all events of what was written have come
		t.Helper()
		last := m.lastOf("k")
		for j, w := range watches {
			for deadline := time.After(time.Minute); !isAt(events[j], last); {
				select {
				case all, open := <-w:
					if !open {
						t.Fatalf("watch %d ends after %d events", j, len(events[j]))
					}
					for _, resp := range all {
						if err := resp.Err(); err != nil {
							t.Fatalf("watch %d: %v", j, err)
						}
						for _, e := range resp.Events {
							events[j] = append(events[j], fmt.Sprintf("%v %s=%s at %d", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision))
						}
					}
				case <-deadline:
					t.Fatalf("%d events of watch %d have come, the last one is not at %d", len(events[j]), j, last)
				}
			}
		}
	}
	failed, wrote := 0, 0
	for i := range n {
		switch r.IntN(40) {
		case 0:
			for j, c := range []*clientv3.Client{real, model} {
				granted, err := c.Grant(ctx, 3600)
				if err != nil {
					t.Fatal(err)
				}
				leases[j] = append(leases[j], granted.ID)
			}
		case 1:
			at := r.IntN(len(leases[0]))
			_, err := real.Revoke(ctx, leases[0][at])
			_, modelErr := model.Revoke(ctx, leases[1][at])
			if at != 0 && codeText(err) != codeText(modelErr) {
				t.Fatalf("%d: revoke: etcd answers %v, the model %v", i, err, modelErr)
			}
		}
		if i == n/2 {
			come() // a watch that is behind what is compacted ends
			revision := m.revision - 20
			_, err := real.Compact(ctx, revision)
			if modelErr := m.compact(revision); codeText(err) != codeText(modelErr) {
				t.Fatalf("%d: compact: etcd answers %v, the model %v", i, err, modelErr)
			}
		}
		lease := r.IntN(len(leases[0]))
		cmps, then, els := randomTxn(r, m.revision)
		var answers, texts [2]string
		for j, c := range []*clientv3.Client{real, model} {
			withLease := func(ops []clientv3.Op, values []randomOp) []clientv3.Op {
				for _, v := range values {
					ops = append(ops, v(leases[j][lease]))
				}
				return ops
			}
			resp, err := c.Txn(ctx).If(cmps...).Then(withLease(nil, then)...).Else(withLease(nil, els)...).Commit()
			texts[j] = codeText(err)
			if err == nil {
				answers[j] = answerText((*etcdserverpb.TxnResponse)(resp), leases[j])
			}
		}
		if texts[0] != texts[1] || answers[0] != answers[1] {
			t.Fatalf("transaction %d:\netcd:  %s %s\nmodel: %s %s", i, texts[0], answers[0], texts[1], answers[1])
		}
		if texts[0] != "" {
			failed++
		} else {
			wrote++
		}
	}
	come()
	for i := range max(len(events[0]), len(events[1])) {
		if both := [2]string{nth(events[0], i), nth(events[1], i)}; both[0] != both[1] {
			t.Fatalf("event %d: etcd sends %s, the model %s", i, both[0], both[1])
		}
	}
	if len(events[0]) < n/4 || failed < n/100 {
		t.Errorf("%d transactions, %d of them refused, and %d events prove little", n, failed, len(events[0]))
	}
	t.Logf("%d transactions, %d of them refused, %d events", n, failed, len(events[0]))
}

// unread takes what comes from a watch, so that it is not behind when etcd is compacted.
func unread(ctx context.Context, w clientv3.WatchChan) <-chan []clientv3.WatchResponse {
	to := make(chan []clientv3.WatchResponse)
	go func() {
		defer close(to)
		var all []clientv3.WatchResponse
		for w != nil || len(all) > 0 {
			var out chan []clientv3.WatchResponse
			if len(all) > 0 {
				out = to
			}
			select {
			case resp, open := <-w:
				if !open {
					w = nil
					continue
				}
				all = append(all, resp)
			case out <- all:
				all = nil
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}

// lastOf is the revision of the last change of keys with a prefix.
func (m *etcd) lastOf(prefix string) (last int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events([]byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), 0) {
		last = max(last, e.Kv.ModRevision)
	}
	return last
}

// nth returns an event, "none" after the last one.
func nth(events []string, i int) string {
	if i >= len(events) {
		return "none"
	}
	return events[i]
}

func isAt(events []string, revision int64) bool {
	return len(events) > 0 && bytes.HasSuffix([]byte(events[len(events)-1]), fmt.Appendf(nil, " at %d", revision))
}

func codeText(err error) string {
	if err == nil {
		return ""
	}
	if s, ok := status.FromError(err); ok {
		return s.Code().String() + " " + s.Message()
	}
	return err.Error()
}

// answerText is an answer without what differs by nature: members, terms, and the numbers of leases.
func answerText(resp *etcdserverpb.TxnResponse, leases []clientv3.LeaseID) string {
	number := func(id int64) int {
		for i, l := range leases {
			if int64(l) == id {
				return i
			}
		}
		return -1
	}
	var parts []any
	for _, r := range resp.Responses {
		switch {
		case r.GetResponseRange() != nil:
			got := r.GetResponseRange()
			kvs := []any{}
			for _, kv := range got.Kvs {
				kvs = append(kvs, []any{string(kv.Key), string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, number(kv.Lease)})
			}
			parts = append(parts, []any{kvs, got.More, got.Count})
		case r.GetResponseDeleteRange() != nil:
			parts = append(parts, r.GetResponseDeleteRange().Deleted)
		default:
			parts = append(parts, "put")
		}
	}
	text, _ := json.Marshal([]any{resp.Succeeded, resp.Header.Revision, parts})
	return string(text)
}

// randomOp is an operation with a lease.
type randomOp func(clientv3.LeaseID) clientv3.Op

func randomTxn(r *rand.Rand, revision int64) (cmps []clientv3.Cmp, then, els []randomOp) {
	key := func() string { return fmt.Sprintf("k%d", r.IntN(8)) }
	for range r.IntN(3) {
		k, how := key(), []string{"=", "!=", "<", ">"}[r.IntN(4)]
		switch r.IntN(4) {
		case 0:
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(k), how, max(0, revision-r.Int64N(20))))
		case 1:
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(k), how, []int64{0, revision - r.Int64N(20)}[r.IntN(2)]))
		case 2:
			cmps = append(cmps, clientv3.Compare(clientv3.Value(k), how, fmt.Sprint(r.IntN(5))))
		default:
			cmps = append(cmps, clientv3.Compare(clientv3.Version(k), how, r.Int64N(4)))
		}
	}
	ops := func() (all []randomOp) {
		for range r.IntN(4) {
			k, value := key(), fmt.Sprint(r.IntN(5))
			switch r.IntN(9) {
			case 0, 1, 2:
				all = append(all, func(clientv3.LeaseID) clientv3.Op { return clientv3.OpPut(k, value) })
			case 3:
				all = append(all, func(l clientv3.LeaseID) clientv3.Op { return clientv3.OpPut(k, value, clientv3.WithLease(l)) })
			case 4:
				all = append(all, func(clientv3.LeaseID) clientv3.Op { return clientv3.OpDelete(k) })
			case 5:
				all = append(all, func(clientv3.LeaseID) clientv3.Op { return clientv3.OpDelete("k3", clientv3.WithRange(k)) })
			case 6:
				at := max(0, revision+2-r.Int64N(30))
				all = append(all, func(clientv3.LeaseID) clientv3.Op {
					return clientv3.OpGet("k", clientv3.WithPrefix(), clientv3.WithRev(at), clientv3.WithLimit(3))
				})
			case 7:
				all = append(all, func(clientv3.LeaseID) clientv3.Op {
					return clientv3.OpGet("k", clientv3.WithPrefix(), clientv3.WithCountOnly())
				})
			default:
				all = append(all, func(clientv3.LeaseID) clientv3.Op {
					return clientv3.OpGet(k, clientv3.WithFromKey(), clientv3.WithKeysOnly())
				})
			}
		}
		return all
	}
	return cmps, ops(), ops()
}

// realEtcd starts an etcd of one member, and ends it with the test.
func realEtcd(t *testing.T, program string) *clientv3.Client {
	t.Helper()
	url := func() string { return fmt.Sprintf("http://127.0.0.1:%d", providertest.FreePort(t)) }
	clients, peers := url(), url()
	t.Setenv("ETCD_CLIENT_DEBUG", "fatal") // the client warns of each refusal
	cmd := exec.Command(program, "--name", "m", "--data-dir", quickDir(t), "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "m="+peers)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{clients}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // real time: one attempt of those of a minute
		_, err := client.Get(ctx, "x")
		cancel()
		if err == nil {
			return client
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
