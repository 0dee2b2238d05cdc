package story

import (
	"context"
	"net"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/trace"
)

// settle is how long nothing more is heard of a packet before its story is told: an answer of the
// endpoint comes meanwhile, too.
const settle = 250 * time.Millisecond

// maxPackets bounds what is held of packets whose story is not told yet.
const maxPackets = 100

// Teller follows packets through the rules of this host, and tells their stories.
type Teller struct {
	served func() (map[string][]nft.ServicePort, nft.Box)
	// follow and find are what the kernel is asked by; tests replace them.
	follow func(ctx context.Context, filters []trace.Filter, each func(trace.Step)) error
	find   func(h *trace.Header) *conntrack.Connection
}

// NewTeller tells of what served gives: the ports of all Services, "namespace/name", and the box.
func NewTeller(served func() (map[string][]nft.ServicePort, nft.Box)) *Teller {
	return &Teller{
		served: served,
		follow: func(ctx context.Context, filters []trace.Filter, each func(trace.Step)) error {
			return trace.Run(ctx, 0, filters, each)
		},
		find: find,
	}
}

// find is the tracked connection that a packet belongs to: as its client sent it, as it is
// translated already, or an answer to it.
func find(h *trace.Header) (found *conntrack.Connection) {
	_, _ = conntrack.Look(0, func(c *conntrack.Connection) {
		if byte(c.Protocol) == h.Protocol && (c.Client == h.From && (c.To == h.To || c.Endpoint == h.To) || c.Endpoint == h.From && c.As == h.To) {
			copied := *c
			found = &copied
		}
	})
	return found
}

// pending is a packet of which more may be heard. over reports that the next one of its flow has
// come: the kernel numbers packets by a hash of their flow.
type pending struct {
	steps []trace.Step
	last  time.Time
	over  bool
}

// isNext reports whether a step begins another packet.
func (p *pending) isNext(s *trace.Step) bool {
	first := &p.steps[0]
	return s.Header != nil && s.Table == first.Table && s.Chain == first.Chain && s.Family == first.Family
}

// Trace follows the packets that q chooses and hands each story to each, until there were
// q.Count of them, q.Seconds are over, or ctx is done.
func (t *Teller) Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.Seconds)*time.Second)
	defer cancel()
	steps := make(chan trace.Step, 256)
	ended := make(chan error, 1)
	go func() {
		ended <- t.follow(ctx, filters(q), func(s trace.Step) {
			select {
			case steps <- s:
			case <-ctx.Done():
			}
		})
	}()
	open := map[uint32]*pending{}
	var order []*pending
	told := 0
	tick := time.NewTicker(settle / 2)
	defer tick.Stop()
	tell := func(all bool) {
		for len(order) > 0 && told < q.Count {
			p := order[0]
			if !all && !p.over && time.Since(p.last) < settle {
				return
			}
			if id := p.steps[0].Packet; open[id] == p {
				delete(open, id)
			}
			order = order[1:]
			told++
			each(t.story(p.steps))
		}
	}
	for told < q.Count {
		select {
		case s := <-steps:
			p := open[s.Packet]
			if p != nil && p.isNext(&s) {
				p.over, p = true, nil
			}
			if p == nil {
				if len(order) == maxPackets {
					continue
				}
				p = &pending{}
				open[s.Packet], order = p, append(order, p)
			}
			p.steps, p.last = append(p.steps, s), time.Now()
		case <-tick.C:
			tell(false)
		case err := <-ended:
			tell(true)
			return err
		}
	}
	cancel()
	return <-ended
}

func (t *Teller) story(steps []trace.Step) wire.TracedPacket {
	facts := &Facts{Interface: interfaceName}
	facts.Served, facts.Box = t.served()
	for i := range steps {
		if h := steps[i].Header; h != nil {
			facts.Connection = t.find(h)
			break
		}
	}
	return Tell(steps, facts)
}

func interfaceName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return "interface " + strconv.Itoa(index)
}

// filters are what q chooses, of each family that it may be about.
func filters(q wire.TraceQuery) (list []trace.Filter) {
	protocol, _ := nft.ProtocolNamed(q.Protocol)
	for _, family := range nft.Families {
		if is6 := family == nft.IPv6; q.To.IsValid() && q.To.Is6() != is6 || q.From.IsValid() && q.From.Addr().Is6() != is6 {
			continue
		}
		list = append(list, trace.Filter{
			Family: family, From: q.From, To: q.To, Port: q.Port, Protocol: protocol, Established: q.Established,
		})
	}
	return list
}
