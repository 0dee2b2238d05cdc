package parts

import (
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// Problems implements reconcile.Part.
func (r *Relay) Problems() []resolve.Problem {
	list := r.names.problems()
	for _, p := range r.relay.Problems() {
		namespace, name, _ := PortOf(p.ID)
		ref := object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}
		list = append(list, resolve.Problem{Object: ref, Reason: p.Reason, Message: p.Message})
	}
	return append(list, overloadProblems(r.relay.Overloaded())...)
}

// overloadProblems are about ports that refuse clients. One whose clients circulate is full for that reason.
func overloadProblems(all []relay.Overloaded) (list []resolve.Problem) {
	for _, c := range all {
		loop := c
		loop.Looped = true
		switch {
		case c.Looped:
			list = append(list, loopProblem(c))
		case !slices.Contains(all, loop):
			list = append(list, overloadedProblem(c))
		}
	}
	return list
}

func loopProblem(c relay.Overloaded) resolve.Problem {
	namespace, name, port := PortOf(c.ID)
	if port != "" {
		port = "of port " + port + " "
	}
	return resolve.Problem{
		Object: object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}, Reason: resolve.ReasonRelayLoop,
		Message: fmt.Sprintf("clients %sover %s are refused that come with a hop limit (TTL) of 1: an endpoint of this Service leads to another relay, perhaps on another box, whose endpoint leads back here; "+
			"look where the endpoints lead (`svcctl get endpointslices -A`), or at clients that send with so low a hop limit", port, strings.ToUpper(c.Protocol)),
	}
}

// reasonRelayFull: clients of a relayed port are turned away, as there are too many at once.
const reasonRelayFull = "RelayFull"

func overloadedProblem(c relay.Overloaded) resolve.Problem {
	namespace, name, port := PortOf(c.ID)
	if port != "" {
		port = "to port " + port + " "
	}
	what, of := "connections "+port+"over TCP are reset", "relayed ports"
	if c.Protocol == relay.UDP {
		what = "clients " + port + "over UDP lose their flow to new ones"
	}
	if !c.Redirected {
		of = "node ports on loopback addresses"
	}
	return resolve.Problem{
		Object: object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}, Reason: reasonRelayFull, Warning: true,
		Message: fmt.Sprintf("%s: all %s together have room for %d at once, and one port for as many as the others leave free: look for clients that leave connections open, or raise the limit of open files (LimitNOFILE)", what, of, c.Limit),
	}
}
