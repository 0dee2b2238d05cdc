package oracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// String describes a World: the settings of the host that are not the default, and each
// object as a line of JSON.
func (w *World) String() string {
	if w == nil {
		return "nothing"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "box %s\n", w.Box)
	for _, o := range w.Services {
		line(&b, o, map[string]any{"spec": o.Spec, "ingress": o.Status.LoadBalancer.Ingress,
			"annotations": o.Metadata.Annotations, "created": o.Metadata.CreationTimestamp.Format("15:04")})
	}
	for _, o := range w.Slices {
		line(&b, o, map[string]any{"annotations": o.Metadata.Annotations, "of": o.Metadata.Labels[object.LabelServiceName], "type": o.AddressType,
			"endpoints": o.Endpoints, "ports": o.Ports})
	}
	for _, o := range w.Endpoints {
		line(&b, o, map[string]any{"annotations": o.Metadata.Annotations, "labels": o.Metadata.Labels, "subsets": o.Subsets})
	}
	for _, o := range w.Gateways {
		line(&b, o, map[string]any{"spec": o.Spec})
	}
	for _, r := range w.routes() {
		line(&b, &object.TCPRoute{TypeMeta: object.TypeMeta{Kind: r.kind}, Metadata: *r.meta}, map[string]any{"spec": r.spec})
	}
	for _, o := range w.Grants {
		line(&b, o, map[string]any{"spec": o.Spec})
	}
	if len(w.Down) > 0 {
		fmt.Fprintf(&b, "down %v\n", slices.SortedFunc(maps.Keys(w.Down), netip.AddrPort.Compare))
	}
	for _, p := range w.Programs {
		fmt.Fprintf(&b, "a program at %s %v\n", p.Protocol, p.At)
	}
	return b.String()
}

func line(b *strings.Builder, o object.Object, what map[string]any) {
	content, err := json.Marshal(what)
	if err != nil {
		content = []byte(err.Error())
	}
	fmt.Fprintf(b, "%s %s\n", object.RefOf(o), content)
}

// String returns the node, the zone, the interface of bound VIPs and the flags that are
// set.
func (b Box) String() string {
	words := []string{b.NodeName}
	flag := func(given bool, text string) {
		if given {
			words = append(words, text)
		}
	}
	flag(b.Zone != "", "--zone "+b.Zone)
	flag(len(b.InternalSources) > 0, fmt.Sprint("--cluster-cidr ", b.InternalSources))
	flag(len(b.ExternalIPRanges) > 0, fmt.Sprint("--external-ip-range ", b.ExternalIPRanges))
	flag(len(b.Pools) > 0, fmt.Sprint("--load-balancer-pool ", b.Pools))
	flag(len(b.InternalPools) > 0, fmt.Sprint("--load-balancer-internal-pool ", b.InternalPools))
	flag(len(b.InsideSources)+len(b.InsideInterfaces) > 0, fmt.Sprint("--load-balancer-internal-from ", b.InsideSources, b.InsideInterfaces))
	flag(b.ClusterIPsInside, "--cluster-ip-clients internal")
	flag(b.NodePortPrimary, "--nodeport-addresses primary")
	flag(len(b.NodePortAddresses) > 0, fmt.Sprint("--nodeport-addresses ", b.NodePortAddresses))
	flag(b.NodelessRemote, "--nodeless-endpoints remote")
	flag(b.SNATNever, "--snat never")
	flag(b.MasqueradeAll, "--masquerade-all")
	flag(b.SourceRangesApplyAll, "--source-ranges-apply all")
	flag(len(b.SourceSets) > 0, fmt.Sprint("--source-set ", b.SourceSets))
	flag(len(b.EgressFrom) > 0, fmt.Sprint("--egress-from ", b.EgressFrom))
	flag(b.Ping != PingWhenReady, "--vip-ping "+string(b.Ping))
	for _, i := range b.Interfaces {
		flag(i.Name == boundVIPs && len(i.Addresses) > 0, fmt.Sprint("bound: ", i.Addresses))
	}
	return strings.Join(words, " ")
}
