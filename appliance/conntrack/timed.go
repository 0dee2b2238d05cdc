package conntrack

import (
	"net/netip"
	"time"

	"svcctl.io/svcctl/nft"
)

// timed are the frontends of TCP whose Services ask for a time, for Idle and Retry.
type timed struct {
	times     map[Frontend]time.Duration
	services  map[string][]Frontend
	nodePorts map[netip.Addr]bool
	ranges    Ranges // those of times
}

func newTimed() timed {
	return timed{times: map[Frontend]time.Duration{}, services: map[string][]Frontend{}}
}

// any reports whether there is a frontend.
func (t *timed) any() bool { return len(t.times) > 0 }

// drop takes the frontends of a Service away. What changes together is dropped before any of it is
// added: a frontend may go from one Service to another.
func (t *timed) drop(service string) {
	for _, fe := range t.services[service] {
		delete(t.times, fe)
		t.ranges.Drop(fe)
	}
	delete(t.services, service)
}

// add adds the frontends of a port of a Service, unless it asks for no time.
func (t *timed) add(service string, p *nft.ServicePort, after time.Duration) {
	if after == 0 || p.Protocol != nft.TCP {
		return
	}
	for _, fe := range FrontendsOf(p) {
		t.times[fe] = after
		t.ranges.Add(fe)
		t.services[service] = append(t.services[service], fe)
	}
}

// of is the time of the frontend that an entry's client had sent to; 0: it has none.
func (t *timed) of(e *entry) time.Duration {
	after, _ := atFrontend(t.times, e, t.nodePorts, t.ranges)
	return after
}
