package checkup

import "strings"

// ExamineBridges checks facts that matter where endpoints are behind bridges of this box, as containers and virtual
// machines are. Where rules are asked at a bridge's port, a packet that is translated to an endpoint of the same bridge
// goes on to its port and never to the box's routing: nothing masquerades a client that meets itself
// (br_nf_pre_routing_finish of net/bridge/br_netfilter_hooks.c).
func ExamineBridges(f *Facts, bridges []string) Finding {
	const check = "bridges"
	if len(f.BridgeCalls) == 0 || len(bridges) == 0 {
		return Well(check, "packets between the ports of a bridge are left to the bridge")
	}
	verb := " is 1"
	if len(f.BridgeCalls) > 1 {
		verb = " are 1"
	}
	return Doubt(check, strings.Join(f.BridgeCalls, " and ")+verb+": an endpoint behind "+strings.Join(bridges, " or ")+
		" that is balanced to itself gets no answer, and one that is balanced to a neighbor there is not masqueraded",
		"if endpoints there are clients of their own Services, "+f.Packaged.Sysctl("0", f.BridgeCalls...)+"; "+
			"who filters between the ports of a bridge by iptables needs 1")
}
