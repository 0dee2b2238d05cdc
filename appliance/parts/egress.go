package parts

import (
	"fmt"
	"slices"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// The shares of used source ports of an egress address, in percent. A problem begins at portsShort and ends below portsEnough. Above about 96 percent
// the kernel fails to find a port for some connections, since it does not try all ports. The text of the problem has multiples of portsStep, so that
// it seldom changes.
const portsShort, portsEnough, portsStep = 80, 70, 5

// Egress warns before the source ports of an egress address run out.
type Egress struct {
	reconcile.NopPart
	mu    sync.Mutex
	short []resolve.Problem
	at    map[string]bool // addresses with a problem
}

// NewEgress returns an Egress. It calls follow with the function that receives the connections found by each scan.
func NewEgress(follow func(take func([]wire.EgressTraffic))) *Egress {
	e := new(Egress)
	follow(e.Take)
	return e
}

// Name implements reconcile.Part.
func (e *Egress) Name() string { return "egress" }

// Take updates the problems from the egress connections that a scan found.
func (e *Egress) Take(rows []wire.EgressTraffic) {
	var short []resolve.Problem
	at := map[string]bool{}
	e.mu.Lock()
	for i := range rows {
		of := &rows[i]
		percent := 100 * of.Ports / wire.EgressPorts
		if percent < portsEnough || percent < portsShort && !e.at[of.Address] {
			continue
		}
		at[of.Address] = true
		short = append(short, resolve.Problem{
			Object: object.ServiceRef(of.Namespace + "/" + of.Service), Field: annotation.Field(object.AnnotationEgress), Reason: "EgressPorts", Warning: true,
			Message: fmt.Sprintf("%s uses %d %% of its %d ports towards %s, most by %s: give some endpoints another address",
				of.Address, percent/portsStep*portsStep, wire.EgressPorts, of.Fullest, of.By),
		})
	}
	changed := !slices.Equal(short, e.short)
	e.short, e.at = short, at
	e.mu.Unlock()
	if changed {
		e.Changed()
	}
}

// Problems implements reconcile.Part.
func (e *Egress) Problems() []resolve.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.short
}
