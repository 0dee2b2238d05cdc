package story

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/trace"
)

// turn is the interval at which packets are checked for new trace steps. After quietTurns checks without a new step the description of a packet is
// sent; by then the endpoint has usually replied. The limit is a number of checks rather than a time so that on a busy machine a description is late
// but complete.
const (
	turn       = 100 * time.Millisecond
	quietTurns = 3
)

// maxPackets is the maximum number of packets with incomplete traces.
const maxPackets = 100

// Tracer traces packets through the nftables rules of this host, and describes their paths.
type Tracer struct {
	served func() (map[string][]nft.ServicePort, nft.Box)
	// follow and find ask the kernel; tests replace them.
	follow func(ctx context.Context, filters []trace.Filter, each func(trace.Step)) error
	find   func(first *trace.Step) *conntrack.Connection
	way    func(to netip.Addr) (Way, error)
	busy   atomic.Bool // set while packets are traced
}

// NewTracer returns a Tracer. served returns the ports of all Services, by "namespace/name", and the box; way looks up a route of this
// host.
func NewTracer(served func() (map[string][]nft.ServicePort, nft.Box), way func(to netip.Addr) (Way, error)) *Tracer {
	return &Tracer{
		served: served,
		follow: func(ctx context.Context, filters []trace.Filter, each func(trace.Step)) error {
			return trace.Run(ctx, 0, filters, each)
		},
		find: find,
		way:  way,
	}
}

// find returns the conntrack entry of a packet, given a trace step with its headers; nil if there is none. It compares conntrack IDs. Before Linux
// 6.18 a step has no ID; find then compares addresses. The packet may have its original or its translated destination, or be a reply.
func find(first *trace.Step) (found *conntrack.Connection) {
	h, id := first.Header, first.Connection
	_, _ = conntrack.Scan(0, func(c *conntrack.Connection) {
		is := c.Client == h.From && (c.To == h.To || c.Endpoint == h.To) || c.Endpoint == h.From && c.As == h.To
		if byte(c.Protocol) == h.Protocol && (id != 0 && id == c.ID || id == 0 && is) {
			found = new(*c)
		}
	})
	return found
}

// pending is a packet that may have further trace steps. quiet counts the checks since its last step. over is set when the next packet of the same
// flow has begun, which has the same trace ID: the kernel derives the ID from a hash of the flow.
type pending struct {
	steps []trace.Step
	quiet int
	over  bool
}

// isNext reports whether a step is the first one of another packet with the same trace ID.
func (p *pending) isNext(s *trace.Step) bool {
	first := &p.steps[0]
	return s.Header != nil && s.Table == first.Table && s.Chain == first.Chain && s.Family == first.Family
}

// Trace traces the packets that q selects, and calls the function each with the description of every packet. It returns after q.Count packets, after
// q.Seconds, or when ctx is done. Only one call at a time can trace; another one returns wire.ErrTracing. With q.Predict, Trace only calls each with
// a prediction.
func (t *Tracer) Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
	if q.Predict {
		predicted, err := t.predict(q)
		if err == nil {
			each(predicted)
		}
		return err
	}
	if t.busy.Swap(true) {
		return wire.ErrTracing
	}
	defer t.busy.Store(false)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.Seconds)*time.Second)
	defer cancel()
	steps := make(chan trace.Step, 256)
	ended := make(chan error, 1)
	go func() {
		ended <- t.follow(ctx, filters(q), func(s trace.Step) { task.Send(ctx, steps, s) })
	}()
	ticker := time.NewTicker(turn)
	defer ticker.Stop()
	var packets packets
	found := 0
	tell := func(ready func(*pending) bool) {
		for found < q.Count && len(packets.order) > 0 && ready(packets.order[0]) {
			found++
			each(t.story(packets.take()))
		}
	}
	for found < q.Count {
		select {
		case s := <-steps:
			packets.add(s)
		case <-ticker.C:
			packets.drain(steps)
			packets.age()
			tell(func(p *pending) bool { return p.over || p.quiet >= quietTurns })
		case err := <-ended:
			packets.drain(steps)
			tell(func(*pending) bool { return true })
			if errors.Is(err, trace.ErrBusy) { // another process of this program
				return wire.ErrTracing
			}
			return err
		}
	}
	cancel()
	return <-ended
}

// packets holds the packets with incomplete traces. order lists them in the order of their arrival; open maps the kernel's trace IDs to them.
type packets struct {
	order []*pending
	open  map[uint32]*pending
}

// add adds a step to its packet. If there are already maxPackets, it ignores steps of further packets.
func (ps *packets) add(s trace.Step) {
	p := ps.open[s.Packet]
	if p != nil && p.isNext(&s) {
		p.over, p = true, nil
	}
	if p == nil {
		if len(ps.order) == maxPackets {
			return
		}
		if ps.open == nil {
			ps.open = map[uint32]*pending{}
		}
		p = &pending{}
		ps.open[s.Packet], ps.order = p, append(ps.order, p)
	}
	p.steps, p.quiet = append(p.steps, s), 0
}

// drain adds the steps that are already in the channel. They happened before the event that drain is called for.
func (ps *packets) drain(steps <-chan trace.Step) {
	for waiting := len(steps); waiting > 0; waiting-- {
		ps.add(<-steps)
	}
}

func (ps *packets) age() {
	for _, p := range ps.order {
		p.quiet++
	}
}

// take removes the oldest packet and returns its steps.
func (ps *packets) take() []trace.Step {
	p := ps.order[0]
	ps.order = ps.order[1:]
	if id := p.steps[0].Packet; ps.open[id] == p {
		delete(ps.open, id)
	}
	return p.steps
}

func (t *Tracer) story(steps []trace.Step) wire.TracedPacket {
	facts := &Facts{Interface: interfaceName}
	facts.Served, facts.Box = t.served()
	if i := slices.IndexFunc(steps, func(s trace.Step) bool { return s.Header != nil }); i >= 0 {
		facts.Connection = t.find(&steps[i])
	}
	return Describe(steps, facts)
}

func interfaceName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return "interface " + strconv.Itoa(index)
}

// filters converts a query to trace filters: one for each IP family that its addresses allow.
func filters(q wire.TraceQuery) (list []trace.Filter) {
	protocol, _ := nft.ProtocolNamed(q.Protocol)
	for _, family := range nft.Families {
		if is6 := family == nft.IPv6; q.To.IsValid() && q.To.Is6() != is6 || q.From.IsValid() && q.From.Addr().Is6() != is6 {
			continue
		}
		list = append(list, trace.Filter{
			Family: family, From: q.From.Prefix, To: q.To, Port: q.Port, Protocol: protocol, Established: q.Established,
		})
	}
	return list
}
