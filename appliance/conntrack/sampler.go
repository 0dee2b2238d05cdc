package conntrack

import (
	"context"
	"encoding/binary"
	"net/netip"

	"svcctl.io/svcctl/nft"
)

// Sampler reads the connections of the endpoints of Service ports from the connection tracking
// table. It changes nothing. Its methods are for one goroutine.
type Sampler struct{ table table }

// NewSampler returns a Sampler that opens its socket at the first look.
func NewSampler(options Options) *Sampler { return &Sampler{&kernelTable{netns: options.NetNS}} }

// Asked are the ports that a look is about, by index.
type Asked struct {
	ports     map[Frontend]int
	ranges    Ranges // those of ports
	nodePorts map[netip.Addr]bool
}

// NewAsked is about some ports on a box.
func NewAsked(box *nft.Box, ports []*nft.ServicePort) *Asked {
	a := &Asked{ports: make(map[Frontend]int, len(ports)), nodePorts: addressSet(box.NodePortAddresses)}
	for i, p := range ports {
		for _, fe := range FrontendsOf(p) {
			a.ports[fe] = i
		}
	}
	a.ranges = rangesOf(a.ports)
	return a
}

// Tracked is a connection that was sent to an endpoint.
type Tracked struct {
	Port     int // of Asked
	ID       uint32
	Endpoint netip.AddrPort
	// Ending reports that both ends have closed it.
	Ending bool
}

// Look hands each connection of the ports to each. One that comes or goes meanwhile may be missed, or seen
// twice. The error is one after which the next look may succeed.
func (c *Sampler) Look(asked *Asked, each func(Tracked)) error {
	return c.look(context.Background(), asked, func(port int, e *entry) {
		each(Tracked{port, binary.BigEndian.Uint32(e.id), e.replyFrom, e.isEnding()})
	})
}

// look hands each connection of the ports to each, as its entry. It ends early with ctx.
func (c *Sampler) look(ctx context.Context, asked *Asked, each func(port int, e *entry)) error {
	for _, q := range queriesOf(asked.ports, false) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := c.table.clean(q, func(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
			for i := range entries {
				e := &entries[i]
				verdicts = append(verdicts, leave)
				if !q.has(e) || !e.isThrough() {
					continue
				}
				if port, is := atFrontend(asked.ports, e, asked.nodePorts, asked.ranges); is {
					each(port, e)
				}
			}
			return verdicts, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Close gives the sockets back; the next look opens others.
func (c *Sampler) Close() error { return c.table.close() }
