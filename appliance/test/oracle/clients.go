package oracle

import (
	"net/netip"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Annotations about who may connect (behaviors 206 to 210).
const (
	annotationRangesApply = "svcctl.io/source-ranges-apply"
	annotationSets        = "svcctl.io/source-sets"
	annotationGroups      = "service.beta.kubernetes.io/aws-load-balancer-security-groups"
	annotationExtraGroups = "service.beta.kubernetes.io/aws-load-balancer-extra-security-groups"
)

// mayConnect reports whether source ranges and source sets allow a client. They apply to load
// balancer IPs, with --source-ranges-apply all also to external IPs and node ports (behavior 34),
// never to cluster IPs (behavior 39), and to internal sources too (behavior 33). A family
// that is not listed is denied (behavior 37).
func (w *World) mayConnect(f frontend, client netip.Addr) bool { return w.admits(f, client, false) }

// admits is mayConnect with the answer for what cannot be read: the box closes, the author may have wanted the client.
func (w *World) admits(f frontend, client netip.Addr, doubt bool) bool {
	annotations, balanced := f.service.Metadata.Annotations, f.service.Spec.Type == object.TypeLoadBalancer
	names := splitNames(annotations[annotationSets])
	var ranges []string
	if balanced {
		names = append(names, splitNames(annotations[annotationGroups])...)
		names = append(names, splitNames(annotations[annotationExtraGroups])...)
		ranges = rangesOf(f.service)
	}
	everywhere := w.Box.SourceRangesApplyAll
	if value, given := annotations[annotationRangesApply]; given {
		everywhere = value == "all" || value != "load-balancer" && !doubt // behavior 207: what is not understood closes
	}
	if len(names) > 0 && !balanced {
		everywhere = true // behavior 209
	}
	if f.place == atClusterIP || f.place != atLoadBalancer && !everywhere {
		return true
	}
	listed, limited := false, len(ranges) > 0
	for _, text := range ranges {
		// Behavior 32: blanks around a range do not matter.
		listed = listed || netip.MustParsePrefix(strings.TrimSpace(text)).Contains(client)
	}
	for _, name := range names {
		name, deny := strings.CutPrefix(name, "!")
		prefixes, known := w.Box.SourceSets[name]
		if !known && doubt {
			listed = listed || !deny
			continue
		}
		switch within := anyContains(prefixes, client); {
		case !known, deny && within:
			return false // behaviors 208 and 210
		case !deny:
			limited, listed = true, listed || within
		}
	}
	return listed || !limited
}

// rangesOf are the source ranges: the field takes precedence over the annotation, and sets of
// the annotation about security groups over both.
func rangesOf(service *object.Service) []string {
	if _, given := service.Metadata.Annotations[annotationGroups]; given {
		return nil
	}
	ranges := service.Spec.LoadBalancerSourceRanges
	if len(ranges) == 0 {
		if annotation := strings.TrimSpace(service.Metadata.Annotations[annotationSourceRanges]); annotation != "" {
			ranges = strings.Split(annotation, ",")
		}
	}
	return ranges
}

func splitNames(text string) (names []string) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// clients adds annotations about who may connect.
func (g *generator) clients(service *object.Service) {
	annotate := func(key string, values ...string) {
		if oneIn(g.Rand, 5) {
			service.Metadata.Annotations[key] = pick(g.Rand, values)
		}
	}
	annotate(annotationRangesApply, "all", "all", "load-balancer", "everywhere")
	annotate(annotationSets, "office", "office, !scanners", "!scanners", "office,vpn", "office,nowhere", "!nowhere", "vpn, !office")
	annotate(annotationExtraGroups, "vpn", "office, vpn", "nowhere")
	annotate(annotationGroups, "office", "vpn,office")
}

// SourceSets are contents of --source-set that worlds have; scanners and office overlap.
var SourceSets = []map[string][]netip.Prefix{
	{
		"office":   prefixes("203.0.113.0/25", "2001:db8:203::/65", "10.0.0.0/8"),
		"scanners": prefixes("203.0.113.0/27", "2001:db8:203::/64"),
		"vpn":      prefixes("10.0.0.0/8", "192.0.3.0/24", "fd00:10::/32"),
	},
	{
		"office":   prefixes("203.0.113.0/26", "203.0.113.64/26", "10.180.0.0/16"),
		"scanners": prefixes("203.0.113.128/25", "10.180.0.0/24", "10.181.0.0/16"),
		"vpn":      nil,
	},
}
