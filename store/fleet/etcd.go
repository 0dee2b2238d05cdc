package fleet

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// rounds bounds how often each endpoint is asked, on average, for a call that its member refuses as it cannot serve it.
	// Calls take the endpoints in turn, and those of other tasks come in between.
	rounds = 4
	// betweenRounds is the wait before members that have refused are asked again: a leader is elected in a second or more.
	betweenRounds = 100 * time.Millisecond
)

// otherMember sends a call that one member of etcd cannot serve to the next one: a learner serves nothing, and a member that is
// cut off from a majority of the others has no leader. Without the request for a leader such a member would leave the call
// unanswered until its time is up. A call that is refused for these reasons had no effect.
func otherMember(endpoints int) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		ctx = clientv3.WithRequireLeader(ctx)
		for n := 1; ; n++ {
			if err = invoke(ctx, method, req, reply, cc, opts...); !isOfMember(err) || n == rounds*endpoints {
				return err
			}
			if n%endpoints != 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(betweenRounds):
			}
		}
	}
}

// errLearner is the refusal of a member that does not vote yet.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// isOfMember reports whether a call was refused for the state of the member that got it.
func isOfMember(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, errLearner) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// leaseTimeout bounds one of the questions of keepLease, so that a member that hangs does not use up the time of the beat.
const leaseTimeout = time.Second

// keepLease renews a lease, and asks another member where one does not answer. gone is set when etcd does not have it any
// more; after any other error it may still exist.
func keepLease(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (gone bool, err error) {
	for ctx.Err() == nil {
		ask, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), leaseTimeout)
		_, err = client.KeepAliveOnce(ask, lease)
		silent := ask.Err() != nil
		cancel()
		if !silent && !isOfMember(err) {
			break
		}
		if silent {
			continue
		}
		select { // a refusal comes at once
		case <-ctx.Done():
		case <-time.After(betweenRounds):
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return true, nil
	}
	return false, err
}

// silentFor is the time after which a question that was not answered is asked of another member as well: a member that
// hangs keeps its connections for as long as a keepalive ping and its timeout take.
const silentFor = 700 * time.Millisecond

// ask asks a question that changes nothing, and another member as well where the first one is silent. The first answer is taken, and
// an error when there is none.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx) // the slower question is not waited for
	defer cancel()
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 2)
	put := func() {
		value, err := question(ctx)
		replies <- reply{value, err}
	}
	go put()
	asked := 1
	silent := time.NewTimer(silentFor)
	defer silent.Stop()
	for {
		select {
		case <-silent.C:
			go put()
			asked++
		case r := <-replies:
			if asked--; r.err == nil || asked == 0 {
				return r.value, r.err
			}
		}
	}
}
