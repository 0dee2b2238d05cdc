package checkup

import "strings"

// ExamineAnnouncing checks facts that matter where addresses of Services are announced on segments.
func ExamineAnnouncing(f *Facts) Finding {
	const check = "arp"
	var proxies, ignoring []string
	for _, i := range f.Interfaces {
		if i.ProxyARP {
			proxies = append(proxies, i.Name)
		}
		if i.ARPIgnore > 0 && i.Name != "lo" {
			ignoring = append(ignoring, i.Name)
		}
	}
	switch {
	case len(proxies) > 0:
		return Doubt(check, "the kernel answers ARP for others (proxy_arp, proxy_arp_pvlan) on "+strings.Join(proxies, ", "),
			"a box that stands by may answer for addresses of Services, beside the one that was elected: set both to 0 on the interfaces of --l2")
	case len(ignoring) > 0:
		return Doubt(check, "arp_ignore is set on "+strings.Join(ignoring, ", "),
			"an address of a Service that another interface of this box has, state `host` of `svcctl announcements`, gets no answers to ARP: set it to 0, or take the address off that interface")
	}
	return Well(check, "the kernel answers ARP for addresses of this box alone")
}

// ExamineAdopting checks facts that matter where connections are to outlive a box (svcctl.io/adopt-connections).
func ExamineAdopting(f *Facts) Finding {
	const check = "takeover"
	switch {
	case f.Conntrack.Known && !f.Conntrack.Loose:
		return Fault(check, "net.netfilter.nf_conntrack_tcp_loose is 0: no connection goes on when this box takes over, even with svcctl.io/adopt-connections",
			f.Packaged.Sysctl("1", "net.netfilter.nf_conntrack_tcp_loose"))
	case f.Conntrack.Known && !f.Conntrack.Liberal:
		return Doubt(check, "net.netfilter.nf_conntrack_tcp_be_liberal is 0: when addresses come back to this box without a boot, connections end of which it has old entries",
			f.Packaged.Sysctl("1", "net.netfilter.nf_conntrack_tcp_be_liberal"))
	}
	return Well(check, "connections are taken up in mid-stream")
}
