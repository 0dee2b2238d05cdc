package appliance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/watch"
)

const (
	// probeFor is the timeout for a TCP connection to an endpoint. It allows for one repeated SYN, which a client sends after a second.
	probeFor = 2 * time.Second
	// probeLimit is the timeout for all connections of one request together.
	probeLimit = 5 * time.Second
	// mostProbed is the maximum number of endpoints probed by one request; probeWidth is the maximum number of concurrent connections.
	mostProbed = 1000
	probeWidth = 64
)

// probes makes test connections to endpoints when a client of the API requests it, for one request at a time.
type probes struct {
	ports func(service string) []nft.ServicePort
	state func(namespace, name string) []wire.EndpointHealth
	busy  sync.Mutex
	log   *slog.Logger
}

// probe connects to each TCP endpoint of a Service, including endpoints that are out of use because of their health checks, and returns the results.
func (p *probes) probe(r *http.Request, q wire.ObjectQuery) (found wire.Probes, err error) {
	if q.Name == "" {
		return found, wire.BadRequest("name: give the Service whose endpoints are to be asked")
	}
	namespace := cmp.Or(q.Namespace, "default")
	ctx, cancel := context.WithTimeout(r.Context(), probeLimit)
	defer cancel()
	if found.Endpoints, err = p.ask(ctx, namespace, q.Name); err == nil {
		p.log.Info("endpoints were asked", "svc", namespace+"/"+q.Name, "endpoints", len(found.Endpoints), "user", api.UserOf(r))
	}
	return found, err
}

func (p *probes) ask(ctx context.Context, namespace, name string) ([]wire.Probed, error) {
	if !p.busy.TryLock() {
		return nil, errors.New("the endpoints of another Service are being asked: try again in some seconds")
	}
	defer p.busy.Unlock()
	list := p.endpoints(namespace, name)
	list = list[:min(len(list), mostProbed)]
	var all sync.WaitGroup
	turns := make(chan struct{}, probeWidth)
	for i := range list {
		turns <- struct{}{}
		all.Go(func() {
			began := time.Now()
			list[i].Why = connect(ctx, list[i].Endpoint)
			list[i].Took = wire.Duration(time.Since(began))
			<-turns
		})
	}
	all.Wait()
	return list, nil
}

// endpoints returns the TCP endpoints of a Service, sorted by address and port. Those of port ranges are left out.
func (p *probes) endpoints(namespace, name string) (list []wire.Probed) {
	add := func(port, protocol, endpoint string) {
		e := wire.Probed{Port: port, Protocol: protocol, Endpoint: endpoint}
		if protocol == nft.TCP.Name() && !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	for _, port := range p.ports(namespace + "/" + name) {
		if slices.ContainsFunc(port.Frontends, func(fe nft.Frontend) bool { return fe.IsRange() }) {
			continue
		}
		_, portName := nft.SplitID(port.ID)
		for _, pool := range port.Pools {
			for _, at := range pool {
				add(portName, port.Protocol.Name(), at.String())
			}
		}
	}
	for _, e := range p.state(namespace, name) {
		add(e.Port, e.Protocol, e.Endpoint)
	}
	slices.SortFunc(list, func(a, b wire.Probed) int {
		at := func(e wire.Probed) netip.AddrPort { ap, _ := netip.ParseAddrPort(e.Endpoint); return ap }
		return at(a).Compare(at(b))
	})
	return list
}

// connect makes a TCP connection and resets it. It returns the reason for a failure, or "" on success.
func connect(ctx context.Context, to string) (why string) {
	dialer := net.Dialer{Timeout: probeFor}
	conn, err := dialer.DialContext(ctx, "tcp", to)
	var errno syscall.Errno
	switch {
	case err == nil:
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		return ""
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer in " + probeFor.String()
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// newSuspicion returns the Part that processes failed connections of clients. It has its own prober, since an endpoint may also have a health check
// of another Service. The kernel chooses the source ports of that prober.
func newSuspicion(answers *traffic.Queries, grants *reconcile.Grants, checks *parts.Health, always bool, log *slog.Logger) *parts.Suspicion {
	find := func(c *conntrack.Connection) (parts.Found, bool) {
		p, endpoint, ok := answers.Find(c)
		if !ok {
			return parts.Found{}, false
		}
		return parts.Found{Service: p.Service, Key: p.Key(), Endpoint: endpoint, Apart: p.Relay != nil || p.Ranged}, true
	}
	return parts.NewSuspicion(prober.New(prober.Options{Log: log}), always, parts.Lookup{Find: find, Served: grants.Served, Hasten: checks.Hasten}, log)
}

// requests holds the channel over which requests are sent to the reconcile loop, and the watcher, which must read the manifest directories before
// some requests.
type requests struct {
	watcher *watch.Watcher // nil if no directory is watched
	loop    chan reconcile.Request
}

// inputs returns a copy of in with the request channel and the watcher's snapshots added.
func (q requests) inputs(in reconcile.Inputs) reconcile.Inputs {
	in.Requests = q.loop
	if q.watcher != nil {
		in.Snapshots = q.watcher.Snapshots()
	}
	return in
}

// ask sends a request to the loop and waits for its answer, or until ctx is done.
func ask[Request, Answer any](ctx context.Context, to chan<- Request, request Request, answer <-chan Answer) (a Answer, err error) {
	if !task.Send(ctx, to, request) {
		return a, ctx.Err()
	}
	select {
	case a = <-answer:
		return a, nil
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// backend is the Board, extended by the endpoints that svcctl discover holds back from removal.
type backend struct {
	*reconcile.Board
	discovers *parts.Discovered
}

// Synced waits like Board.Synced. For revision 0 it also fails while removals of endpoints of providers are held.
func (b backend) Synced(ctx context.Context, revision uint64) error {
	err := b.Board.Synced(ctx, revision)
	if n := b.discovers.Held(); err == nil && revision == 0 && n > 0 {
		return fmt.Errorf("everything else is in the kernel, but the endpoints of %d Services are held whose providers have none any more: "+
			"put the provider right, or confirm with `svcctl confirm --removals` that they are to go (`svcctl status` has the reason)", n)
	}
	return err
}

// Release confirms the removals that are held: of Services, and of endpoints of providers.
func (b backend) Release(ctx context.Context) (wire.Released, error) {
	released, err := b.Board.Release(ctx)
	if err != nil {
		return released, err
	}
	n, err := b.discovers.Release(time.Now())
	released.Services += n
	return released, err
}

// rescan makes the watcher read the directories, and waits until their content at the time of the call is in the store.
func (q requests) rescan(ctx context.Context) error {
	if q.watcher != nil {
		if err := q.watcher.Rescan(ctx); err != nil {
			return fmt.Errorf("read the manifests once more: %w", err)
		}
	}
	return q.sync(ctx)
}

// sync waits until the newest snapshot of the watched directories is in the store.
func (q requests) sync(ctx context.Context) error {
	barrier := make(chan struct{})
	_, err := ask(ctx, q.loop, reconcile.Barrier(barrier), barrier)
	return err
}

// release removes the Services that are no longer in any file and whose removal is held for confirmation.
func (q requests) release(ctx context.Context) (wire.Released, error) {
	released := make(chan wire.Released, 1)
	return ask(ctx, q.loop, reconcile.Release(released), released)
}
