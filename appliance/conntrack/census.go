package conntrack

import (
	"encoding/binary"
	"net/netip"

	"svcctl.io/svcctl/nft"
)

// Census looks which connections the endpoints of some Service ports have. It changes nothing. Its
// methods are for one goroutine.
type Census struct{ table table }

// NewCensus opens nothing before the first look.
func NewCensus(options Options) *Census { return &Census{&kernelTable{netns: options.NetNS}} }

// Asked are the ports that a look is about, by index.
type Asked struct {
	ports     map[Frontend]int
	nodePorts map[netip.Addr]bool
}

// NewAsked is about some ports on a box.
func NewAsked(box *nft.Box, ports []*nft.ServicePort) *Asked {
	a := &Asked{ports: make(map[Frontend]int, len(ports)), nodePorts: addressSet(box.NodePortAddresses)}
	for i, p := range ports {
		for _, fe := range frontendsOfPort(p) {
			a.ports[fe] = i
		}
	}
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
func (c *Census) Look(asked *Asked, each func(Tracked)) error {
	leaveAll := func(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
		for i := range entries {
			e := &entries[i]
			verdicts = append(verdicts, leave)
			if !e.isThrough() {
				continue
			}
			if port, is := atFrontend(asked.ports, e, asked.nodePorts); is {
				each(Tracked{port, binary.BigEndian.Uint32(e.id), e.replyFrom, e.isEnding()})
			}
		}
		return verdicts, nil
	}
	for _, q := range queriesOf(asked.ports, false) {
		if _, err := c.table.clean(q, leaveAll); err != nil {
			return err
		}
	}
	return nil
}

// Close gives the sockets back; the next look opens others.
func (c *Census) Close() error { return c.table.close() }

// queriesOf covers frontends of any port each, or else whole protocols.
func queriesOf[V any](frontends map[Frontend]V, unanswered bool) (queries []query) {
	whole, single := map[query]bool{}, map[query]bool{}
	for fe := range frontends {
		whole[query{family: fe.Family, protocol: fe.Protocol, unanswered: unanswered}] = true
		single[query{family: fe.Family, protocol: fe.Protocol, port: fe.Port, unanswered: unanswered}] = true
	}
	if len(single) <= maxQueries {
		whole = single
	}
	for q := range whole {
		queries = append(queries, q)
	}
	return queries
}
