package box

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// boxNetworks are the networks that this box is attached to.
func boxNetworks() (networks []netip.Prefix) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}

// announcingReasons has the reasons of problems about announcements; true: it is an error.
var announcingReasons = map[string]bool{
	"AddressConflict": true, "BadConfiguration": true, "GroupDisagrees": false, "PeerDown": false, "Announcer": false, "AnnouncerMissing": false,
}

// announcingFindings returns the findings about addresses of Services that are to be announced: what the
// announcer lacks, routers without a session, and pools without any route to them.
func announcingFindings(env *cli.Env, all *wire.Announcements, problems []wire.Problem, networks []netip.Prefix) (findings []appliance.Finding) {
	const check = "announcing"
	if len(all.Ranges) == 0 {
		return nil
	}
	for i := range problems {
		problem := &problems[i]
		if isError, is := announcingReasons[problem.Reason]; is {
			message, advice, _ := strings.Cut(problem.Message, "; ")
			advice = cmp.Or(advice, "`svcctl announce status` has details")
			f := appliance.Finding{Check: check, Level: "warning", Message: message, Advice: advice}
			if isError && problem.Severity == wire.SeverityError {
				f.Level = "error"
			}
			if problem.Object != "" {
				f.Message = problem.Object + ": " + f.Message
			}
			findings = append(findings, f)
		}
	}
	var away []string
	for _, text := range all.Ranges {
		if !touches(text, networks) {
			away = append(away, text)
		}
	}
	in := func(state string) (n int) {
		for i := range all.Items {
			if slices.ContainsFunc(all.Items[i].Places, func(p wire.Place) bool { return p.State == state }) {
				n++
			}
		}
		return n
	}
	switch {
	case all.Drained:
		findings = append(findings, appliance.Finding{Check: check, Level: "warning", Message: "this box is drained: it announces nothing", Advice: "`svcctl announce undrain` when it is to take part again"})
	case all.Announcer == nil && len(away) < len(all.Ranges):
		findings = append(findings, appliance.Finding{Check: check, Level: "warning", Message: "no announcer is connected, and pools lie in networks of this box",
			Advice: "run " + env.Packaged.Announce() + ": nothing else answers neighbors for their addresses, unless an interface has them"})
	case all.Announcer != nil && len(away) > 0 && len(all.Peers) == 0:
		findings = append(findings, appliance.Finding{Check: check, Level: "warning", Message: "pools lie in no network of this box, and no BGP peer gets routes to them: " + strings.Join(away, ", "),
			Advice: "add a BGPPeer, or --peer " + env.Packaged.AnnounceFlags() + "; or give the routers routes to this box"})
	case len(findings) == 0 && all.Announcer == nil:
		findings = append(findings, appliance.Finding{Check: check, Level: "ok", Message: "no announcer is connected; routers have routes to the pools, or clients do not reach them"})
	case len(findings) == 0:
		message := fmt.Sprintf("%d of %d addresses are announced", in("announced"), len(all.Items))
		if n := in("standby"); n > 0 {
			message += fmt.Sprintf("; for %d another box answers, and this one stands by", n)
		}
		findings = append(findings, appliance.Finding{Check: check, Level: "ok", Message: message})
	}
	return findings
}

// touches reports whether a range, "192.0.2.16-192.0.2.31", has addresses of one of the networks.
func touches(text string, networks []netip.Prefix) bool {
	from, to, _ := strings.Cut(text, "-")
	first, err1 := netip.ParseAddr(from)
	last, err2 := netip.ParseAddr(to)
	if err1 != nil || err2 != nil {
		return true // an answer that is not understood is no finding
	}
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool {
		inRange := p.Addr().BitLen() == first.BitLen() && !p.Addr().Less(first) && !last.Less(p.Addr())
		return inRange || p.Contains(first) || p.Contains(last)
	})
}
