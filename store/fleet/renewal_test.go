package fleet

import (
	"context"
	"net"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// leaderless is a member of etcd without a leader: it refuses each renewal at once.
type leaderless struct {
	etcdserverpb.UnimplementedLeaseServer
	refused []time.Time // when each renewal was refused
	least   time.Duration
	enough  context.CancelFunc // called once there are 20
}

// LeaseKeepAlive is one renewal.
func (l *leaderless) LeaseKeepAlive(stream etcdserverpb.Lease_LeaseKeepAliveServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if n := len(l.refused); n > 0 {
		l.least = min(l.least, time.Since(l.refused[n-1]))
	}
	if l.refused = append(l.refused, time.Now()); len(l.refused) == 20 {
		l.enough()
	}
	return rpctypes.ErrGRPCNoLeader
}

// Members refuse at once while they have no leader, so a renewal of a lease that was refused is repeated after a pause.
func Test1042_refused_renewals_are_repeated_after_a_pause(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	member, server := &leaderless{least: time.Hour, enough: cancel}, grpc.NewServer()
	etcdserverpb.RegisterLeaseServer(server, member)
	go func() { _ = server.Serve(listener) }()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + listener.Addr().String()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := keepLease(ctx, client, 7)
	_ = client.Close()
	server.Stop() // waits for its calls
	if gone || len(member.refused) < 20 {
		t.Fatalf("the lease is gone: %v, after %d renewals: %v", gone, len(member.refused), err)
	}
	if member.least < betweenRounds {
		t.Errorf("a refused renewal was repeated after %v, want %v at least", member.least, betweenRounds)
	}
}
