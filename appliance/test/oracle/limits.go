package oracle

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The annotations about how many connections there may be (behaviors 392 to 394).
const (
	annotationRate        = "svcctl.io/rate-limit"
	annotationClientRate  = "svcctl.io/client-rate-limit"
	annotationConnections = "svcctl.io/client-connections"
)

// Limits records the connections that Services with limits got within one moment, and those that are open: all. The
// zero Limits has none.
type Limits struct {
	made map[limited]int
	open map[limited]int
}

// limited is the scope of a limit: a port of a Service, or a range, at all of its addresses of a family; and for a
// limit of clients, the client.
type limited struct {
	service, port, family string
	protocol              Protocol
	first, last           uint16 // of a range
	client                netip.Addr
}

// Pass lets minutes go by: all rates are whole again.
func (l *Limits) Pass() { l.made = nil }

// Decide is World.Decide for one more new connection at this moment, which is made.
func (l *Limits) Decide(w *World, p Packet) []Outcome {
	all := w.Decide(p)
	f, ok := w.frontendFor(p)
	if !ok || all[0].Kind != Delivered {
		return all // who is refused anyway counts for nothing
	}
	if l.made == nil {
		l.made = map[limited]int{}
	}
	if l.open == nil {
		l.open = map[limited]int{}
	}
	key := limited{service: object.RefOf(f.service).Key(), port: f.port.Name, family: f.family, protocol: f.protocol, last: f.last}
	if f.isRange() {
		key.first = f.number
	}
	annotations, of := f.service.Metadata.Annotations, key
	of.client = p.From.Addr()
	if most, err := strconv.Atoi(annotations[annotationConnections]); err == nil && l.open[of] >= most {
		return []Outcome{{Kind: Refused}} // behavior 392
	}
	if most, given := atOnce(annotations[annotationClientRate]); given {
		if l.made[of] >= most {
			return []Outcome{{Kind: Dropped}} // behavior 394: it takes nothing from others
		}
		l.made[of]++
	}
	if most, given := atOnce(annotations[annotationRate]); given {
		if l.made[key] >= most {
			return []Outcome{{Kind: Dropped}} // behavior 393
		}
		l.made[key]++
	}
	l.open[of]++
	return all
}

// atOnce returns the number of connections that a rate lets through in a moment: "what comes in one second may come
// at once" (docs, limits), at least one.
func atOnce(rate string) (n int, given bool) {
	number, unit, given := strings.Cut(rate, "/")
	n, _ = strconv.Atoi(number)
	if unit == "m" {
		n = max(1, n/60)
	}
	return n, given
}

// Limit gives Services of a world limits that a few connections reach.
func (w *World) Limit(r randSource) {
	for _, service := range w.Services {
		for _, limit := range []struct{ key, value string }{
			{annotationRate, []string{fmt.Sprintf("%d/s", 1+r.IntN(12)), fmt.Sprintf("%d/m", 1+r.IntN(400))}[r.IntN(2)]},
			{annotationClientRate, []string{fmt.Sprintf("%d/s", 1+r.IntN(3)), fmt.Sprintf("%d/m", 1+r.IntN(200))}[r.IntN(2)]},
			{annotationConnections, strconv.Itoa(1 + r.IntN(6))},
		} {
			if r.IntN(2) == 0 {
				service.Metadata.Annotations[limit.key] = limit.value
			}
		}
	}
}
