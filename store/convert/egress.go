package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// kubeVIPEgress is the kube-vip annotation that makes connections from a Service's endpoints use the Service's address as their source. Annotations
// that refine it begin with it (kube-vip, pkg/kubevip/annotations.go).
const kubeVIPEgress = "kube-vip.io/egress"

// egress converts the kube-vip annotations for egress of a Service to those of svcctl. An annotation that would apply to more traffic than with
// kube-vip is not converted, but recorded as a loss.
func (r *cluster) egress(s *object.Service, service string, lose func(field, format string, args ...any)) {
	of := s.Metadata.Annotations
	if of[kubeVIPEgress] != "true" {
		return // it compares so
	}
	refined := map[string]string{}
	for _, part := range []string{"", "-internal", "-nftables-table", "-ipv6", "-destination-ports", "-allowed-networks", "-denied-networks"} {
		refined[part] = strings.TrimSpace(of[kubeVIPEgress+part])
		delete(of, kubeVIPEgress+part)
	}
	left := func(part, format string, args ...any) {
		lose(annotation.Field(kubeVIPEgress+part), kubeVIPEgress+part+": "+format+"; endpoints leave with their own addresses", args...)
	}
	value, to := "vip", ""
	if refined["-ipv6"] == "true" && !slices.Equal(s.Spec.IPFamilies, []string{object.IPv6}) {
		had := balancerIPs(s)
		six := slices.IndexFunc(had, func(ip string) bool { return strings.Contains(ip, ":") })
		if six < 0 {
			left("-ipv6", "no IPv6 address of the load balancer is known: write svcctl.io/egress with it")
			return
		}
		value = had[six]
	}
	if ports := refined["-destination-ports"]; ports != "" {
		left("-destination-ports", "connections to all ports leave with the address, or none, not those to %s alone: write svcctl.io/egress: %s if all may", ports, value)
		return
	}
	for _, list := range []struct{ part, sign string }{{"-allowed-networks", ""}, {"-denied-networks", ",!"}} {
		if networks := refined[list.part]; networks != "" {
			set, bad := r.set(networks)
			if bad != "" {
				left(list.part, "%q is no network", bad)
				return
			}
			to += list.sign + set
		}
	}
	if of[object.AnnotationEgress] = value; to != "" {
		of["svcctl.io/egress-to"] = strings.TrimPrefix(to, ",")
	}
	r.leaving = append(r.leaving, service)
}

// balancerIPs returns the load balancer IPs that a Service requests, or those in its status if it requests none.
func balancerIPs(s *object.Service) (ips []string) {
	for _, asked := range append(annotation.Addresses(s.Metadata.Annotations), annotation.Asked{Text: s.Spec.LoadBalancerIP}) {
		if asked.Text != "" {
			ips = append(ips, asked.Text)
		}
	}
	if len(ips) == 0 {
		return s.IngressIPs()
	}
	return ips
}

// set returns the name of the source set for a list of networks, and adds the setting for its file, which the user has to write. bad is the
// first entry that is neither an address nor a prefix.
func (r *cluster) set(networks string) (name, bad string) {
	lines := strings.FieldsFunc(networks, func(c rune) bool { return c == ',' || c == ' ' })
	for _, text := range lines {
		_, noPrefix := netip.ParsePrefix(text)
		if _, noAddr := netip.ParseAddr(text); noPrefix != nil && noAddr != nil {
			return "", text
		}
	}
	text := strings.Join(lines, " ")
	if r.sets[text] == "" {
		r.sets[text] = r.name("kube-vip")
		r.out.Settings = append(r.out.Settings, fmt.Sprintf("svcctl serve --source-set %s=/etc/svcctl/%[1]s # a file with these lines: %s", r.sets[text], text))
	}
	return r.sets[text], ""
}

// leavers adds --egress-from with the endpoints whose outgoing connections get the address of a Service as their source.
func (r *cluster) leavers() {
	var hosts []string
	for _, service := range r.leaving {
		for _, addr := range object.Addrs(r.hosts[service]) {
			hosts = append(hosts, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	if slices.Sort(hosts); len(hosts) > 0 {
		r.out.Settings = append(r.out.Settings, "svcctl serve --egress-from "+strings.Join(slices.Compact(hosts), ",")+
			" # or the ranges of these hosts; the ranges that see their own addresses, as those of egress_podcidr and egress_servicecidr, belong to --cluster-cidr")
	}
}
