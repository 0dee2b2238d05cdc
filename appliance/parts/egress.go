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

// An address that endpoints leave with is short of ports from portsShort percent on, and until they are below portsEnough. The kernel
// loses the first connections at about 96 percent, as it gives up before it has tried all ports. The step of the percentage keeps
// the text of the problem as it is for most looks.
const portsShort, portsEnough, portsStep = 80, 70, 5

// Egress warns before the ports of an address run out that endpoints leave with.
type Egress struct {
	reconcile.NopPart
	mu    sync.Mutex
	short []resolve.Problem
	at    map[string]bool // addresses with a problem
}

// NewEgress calls follow with the function that takes the connections which each scan finds.
func NewEgress(follow func(take func([]wire.EgressTraffic))) *Egress {
	e := new(Egress)
	follow(e.Take)
	return e
}

// Name implements reconcile.Part.
func (e *Egress) Name() string { return "egress" }

// Take takes the connections that left, as a look found them.
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
