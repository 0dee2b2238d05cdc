package parts

import (
	"fmt"

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
	for _, c := range r.relay.Overloaded() {
		list = append(list, overloadedProblem(c))
	}
	return list
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
