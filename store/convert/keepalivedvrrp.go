package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A vrrpElection is the election of `svcctl announce` that does what the instances of a keepalived.conf do.
type vrrpElection struct {
	vrid, priority string
	interval       time.Duration
	noPreempt      bool
	interfaces     []string
	addresses      []netip.Addr
}

// The bounds of --priority and --interval of `svcctl announce`.
const (
	leastPriority, mostPriority = 2, 254
	leastAdvert, mostAdvert     = 10 * time.Millisecond, 40 * time.Second
)

// instance reads a block vrrp_instance. A box takes part in one election: the addresses of further instances join it.
func (r *keepalived) instance(s statement) {
	e := vrrpElection{priority: "100", interval: time.Second} // keepalived.conf(5)
	var lost []string
	for _, in := range s.block {
		switch keyword := in.words[0]; keyword {
		case "virtual_router_id":
			e.vrid = in.arg()
			if n := r.number(in); n < 1 || n > 255 {
				r.fail(in.line, "virtual_router_id %q is none from 1 to 255", in.arg())
			}
		case "priority":
			n := r.number(in)
			to := min(max(n, leastPriority), mostPriority)
			if e.priority = fmt.Sprint(to); to != n {
				lost = append(lost, strings.Join(in.words, " ")+" (it is "+e.priority+")")
			}
		case "advert_int":
			d := r.seconds(in)
			e.interval = min(max(d, leastAdvert), mostAdvert)
			if e.interval != d {
				lost = append(lost, strings.Join(in.words, " ")+" (it is "+short(e.interval)+")")
			}
		case "nopreempt":
			e.noPreempt = true
		case "interface":
			e.interfaces = []string{in.arg()}
		case "virtual_ipaddress", "virtual_ipaddress_excluded":
			for _, a := range in.block {
				r.virtualAddress(&e, a, &lost)
			}
		default:
			text := keyword // a block is named by its keyword
			if len(in.block) == 0 {
				text = strings.Join(in.words, " ")
			}
			lost = append(lost, text)
		}
	}
	if e.vrid == "" {
		r.fail(s.line, "vrrp_instance %s has no virtual_router_id", s.arg())
		return
	}
	text := fmt.Sprintf("vrrp_instance %s is the election of `svcctl announce --vrid %s`", s.arg(), e.vrid)
	if r.vrrp.vrid != "" {
		text = fmt.Sprintf("the addresses of vrrp_instance %s join the election of virtual router %s: a box takes part in one; its virtual_router_id %s, priority %s and interval %s are left out",
			s.arg(), r.vrrp.vrid, e.vrid, e.priority, short(e.interval))
	}
	if len(lost) > 0 {
		text += "; left out of it, without a counterpart: " + strings.Join(lost, ", ")
	}
	r.lose(nil, s.line, "%s", text)
	if r.vrrp.vrid == "" {
		r.vrrp = e
		return
	}
	for _, name := range e.interfaces {
		if !slices.Contains(r.vrrp.interfaces, name) {
			r.vrrp.interfaces = append(r.vrrp.interfaces, name)
		}
	}
	for _, addr := range e.addresses {
		if !slices.Contains(r.vrrp.addresses, addr) {
			r.vrrp.addresses = append(r.vrrp.addresses, addr)
		}
	}
}

// virtualAddress reads ADDRESS[/LENGTH] [dev INTERFACE] and parameters of ip-address(8).
func (r *keepalived) virtualAddress(e *vrrpElection, s statement, lost *[]string) {
	host, _, _ := strings.Cut(s.words[0], "/")
	addr, err := parseAddr(host)
	if err != nil {
		r.fail(s.line, "%v", err)
		return
	}
	if !slices.Contains(e.addresses, addr) {
		e.addresses = append(e.addresses, addr)
	}
	for i := 1; i < len(s.words); i++ {
		switch word := s.words[i]; {
		case word == "dev" && i+1 < len(s.words):
			i++
			if !slices.Contains(e.interfaces, s.words[i]) {
				e.interfaces = append(e.interfaces, s.words[i])
			}
		default:
			*lost = append(*lost, word+" of "+addr.String())
		}
	}
}

// election adds the settings that do what the instances do: the addresses as a pool, and the announcer.
func (r *keepalived) election() {
	e := &r.vrrp
	if e.vrid == "" {
		return
	}
	if len(e.addresses) > 0 {
		var pools []string
		for _, addr := range e.addresses {
			pools = append(pools, addr.String()+"-"+addr.String())
		}
		r.out.Settings = append(r.out.Settings, "svcctl serve --load-balancer-pool "+strings.Join(pools, ",")+" # or loadBalancerPool in /etc/svcctl/svcctl.yaml")
	}
	line := "svcctl announce"
	for _, name := range e.interfaces {
		line += " --l2 " + name
	}
	line += " --vrid " + e.vrid + " --priority " + e.priority + " --interval " + short(e.interval)
	if !e.noPreempt {
		line += " --preempt"
	}
	r.out.Settings = append(r.out.Settings, line,
		"of the package: systemctl edit svcctl-announce, with the lines",
		"  [Service]", "  ExecStart=", "  ExecStart=/usr/bin/"+line,
		"then: systemctl enable --now svcctl-announce, and keepalived without these instances")
}
