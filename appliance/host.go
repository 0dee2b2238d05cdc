package appliance

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/admission"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/story"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft/kernel"
)

// procPath is the mount point of proc(5).
const procPath = "/proc"

// checkupEvery is the interval between two checks of the host.
const checkupEvery = 10 * time.Second

// watchHost checks the host every checkupEvery until ctx is done, and sends the findings when they changed. validity returns the validity of the
// API's certificate.
func (a *assembly) watchHost(ctx context.Context, out chan<- []checkup.Finding, validity func() auth.Validity) error {
	var before []checkup.Finding
	var failure task.LastError
	packaged := checkup.Packaged()
	for {
		facts, err := checkup.Read(procPath)
		facts.Packaged = packaged
		failure.Log(a.log, err, "some settings of the host cannot be read, and are not watched", "all settings of the host can be read again")
		c := facts.Conntrack
		a.metrics.Conntrack(c.Entries, c.Max, c.InsertFailed, c.Dropped)
		a.parts.bridged.Settings(facts.BridgeCalls)
		findings := checkup.Examine(&facts)
		if validity != nil {
			findings = append(findings, apiserver.CertificateFinding(validity(), time.Now()))
		}
		now := slices.DeleteFunc(findings, func(f checkup.Finding) bool { return f.Level == checkup.OK })
		if !slices.Equal(now, before) {
			before = now
			task.Send(ctx, out, now)
		}
		if !task.Sleep(ctx, checkupEvery) {
			return nil
		}
	}
}

// wayTo returns this host's route to an address. It is used to predict the path of packets.
func wayTo(to netip.Addr) (story.Way, error) {
	way, err := node.WayTo(to)
	return story.Way{Interface: uint32(way.Index), Local: way.Local, From: way.From, Unforwarded: checkup.Unforwarded(procPath, to.Is4())}, err
}

// maxRoutes is the largest number of routes that are looked up for one response.
const maxRoutes = 20

// unrouted returns the frontend addresses of ports to which this host has no route. The host's own programs cannot reach them, since the kernel looks
// up the route of their packets before NAT. Forwarded packets are translated first.
func unrouted(ports []wire.PortState) (list []string) {
	seen := map[netip.Addr]bool{}
	for i := range ports {
		for _, frontend := range ports[i].Frontends {
			at, err := netip.ParseAddrPort(frontend)
			if err != nil || seen[at.Addr()] || len(seen) == maxRoutes {
				continue // a node port, or a range with its port
			}
			seen[at.Addr()] = true
			if _, err := node.WayTo(at.Addr()); errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) {
				list = append(list, at.Addr().String())
			}
		}
	}
	return list
}

// placedHost implements reconcile.Addresses, and passes the host's addresses to admission as well.
type placedHost struct {
	*control.HostAddresses
	admission *admission.Check
}

// Place classifies the addresses in new facts, and passes these to admission.
func (p placedHost) Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error {
	if err := p.HostAddresses.Place(facts, wasService); err != nil {
		return err
	}
	p.admission.Take(facts)
	return nil
}

// monitorRetryFirst is the wait before a lost subscription to nf_tables is made again. It doubles with each attempt up to monitorRetryLast.
const (
	monitorRetryFirst = 500 * time.Millisecond
	monitorRetryLast  = 30 * time.Second
)

// monitor forwards the changes that other programs make to nf_tables (kernel.Conn.Watch). When the subscription ends, it subscribes again, and sends
// a Change which reports that changes were lost.
type monitor struct {
	listen  func(context.Context) (<-chan kernel.Change, error)
	log     *slog.Logger
	current <-chan kernel.Change
	changes chan kernel.Change
}

// newMonitor subscribes to changes until ctx is done. Run forwards them.
func newMonitor(ctx context.Context, listen func(context.Context) (<-chan kernel.Change, error), log *slog.Logger) (*monitor, error) {
	current, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	return &monitor{listen: listen, log: log, current: current, changes: make(chan kernel.Change)}, nil
}

// Run forwards changes until ctx is done.
func (m *monitor) Run(ctx context.Context) error {
	wait := monitorRetryFirst
	var err error
	for {
		for open := true; open; {
			var c kernel.Change
			select {
			case c, open = <-m.current:
			case <-ctx.Done():
				return nil
			}
			if !open {
				break
			}
			wait = monitorRetryFirst
			task.Send(ctx, m.changes, c)
		}
		for m.current = nil; m.current == nil; wait = min(2*wait, monitorRetryLast) {
			if ctx.Err() == nil {
				m.log.Warn("nf_tables is not watched any more; it is tried again", "err", err, "retry", wait)
			}
			if !task.Sleep(ctx, wait) {
				return nil
			}
			if m.current, err = m.listen(ctx); err != nil {
				m.current = nil
			}
		}
		task.Send(ctx, m.changes, kernel.Change{Lost: true})
	}
}
