package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// keepalivedServer reads the servers of one virtual server, and the statements that apply to all of them.
type keepalivedServer struct {
	*keepalived
	v         *Virtual
	delay     time.Duration
	delayLine int
	weight    uint16 // the weight of servers that set none
	bound     *statement
	says      keepalivedSays
	checks    []checked
}

// keepalivedSays holds the statements virtualhost, retry and connect_timeout of a virtual server or a real server. Health checks inherit them.
type keepalivedSays struct {
	host           string
	retry, timeout *statement
}

func (k *keepalivedSays) read(s statement) {
	switch s.words[0] {
	case "virtualhost":
		k.host = s.arg()
	case "retry":
		k.retry = &s
	case "connect_timeout":
		k.timeout = &s
	}
}

// keepalivedChecks maps the blocks of health checks to the kind of check in svcctl.io/health-check, or to "" if svcctl has no such check.
var keepalivedChecks = map[string]string{
	"TCP_CHECK": "tcp", "HTTP_GET": "http", "SSL_GET": "https", "PING_CHECK": "icmp", "UDP_CHECK": "udp", "DNS_CHECK": "dns",
	"MISC_CHECK": "", "SMTP_CHECK": "", "BFD_CHECK": "", "FILE_CHECK": "",
}

// server converts a block real_server or sorry_server.
func (k *keepalivedServer) server(s statement) {
	if len(s.words) != 2 && len(s.words) != 3 {
		k.fail(s.line, "write %s ADDRESS PORT", s.words[0])
		return
	}
	if addr, err := netip.ParseAddr(s.words[1]); err == nil && addr.IsLoopback() {
		k.lose(k.v, s.line, "%s %s is the box itself, which has no counterpart: write an address that the program listens at", s.words[0], addr)
		return
	}
	server, says, bound := Server{Weight: k.weight}, k.says, k.bound
	var err error
	if server.Addr, err = parseAddr(s.words[1]); err == nil && len(s.words) == 3 {
		server.Port, err = ParsePort(s.words[2])
	}
	if err != nil {
		k.fail(s.line, "%v", err)
		return
	}
	if s.words[0] == "sorry_server" {
		server.Priority = object.MaxPriority
	}
	for _, in := range s.block {
		says.read(in)
	}
	var found check
	for _, in := range s.block {
		keyword := in.words[0]
		switch kind, isCheck := keepalivedChecks[keyword]; {
		case isCheck && kind == "":
			k.lose(k.v, in.line, "%s of %s has no counterpart: the server is not checked by it", keyword, server.Addr)
		case isCheck && found != nil:
			k.lose(k.v, in.line, "%s of %s is a second check: a server is checked in one way", keyword, server.Addr)
		case isCheck:
			found = k.check(in, kind, server, says)
		case keyword == "weight":
			server.Weight = k.weightOf(in)
		case keyword == "uthreshold" || keyword == "lvs_upper_threshold":
			bound = &in
		case keyword == "virtualhost" || keyword == "retry" || keyword == "connect_timeout": // read above
		case keyword == "lb_kind" || keyword == "lvs_method":
			k.method(k.v, in)
		case keyword == "delay_loop":
			k.lose(k.v, in.line, "delay_loop of a single server has no counterpart: that of the virtual_server holds")
		case slices.Contains(keepalivedLost, keyword):
			k.lose(k.v, in.line, "%s of %s has no counterpart and is left out", strings.Join(in.words, " "), server.Addr)
		default:
			k.fail(in.line, "%q is not understood in %s", keyword, s.words[0])
		}
	}
	if bound != nil {
		k.limit(k.v, bound.line, server.Addr, strings.Join(bound.words, " "), uint64(k.number(*bound)))
	}
	k.v.Servers = append(k.v.Servers, server)
	k.checks = append(k.checks, checked{server, s.line, found})
}

func (r *keepalived) weightOf(s statement) uint16 {
	n := r.number(s)
	if n > object.MaxWeight {
		r.fail(s.line, "the weight %d is more than %d", n, object.MaxWeight)
	}
	return uint16(n)
}

// check converts the block of a health check.
func (k *keepalivedServer) check(s statement, kind string, server Server, says keepalivedSays) check {
	c, port, path := check{"timeout": "5s", "healthy-threshold": "1", "unhealthy-threshold": "2"}, "", "" // keepalived.conf(5)
	if kind == "dns" {
		c["unhealthy-threshold"], path = "4", "/."
	}
	if k.delayLine > 0 {
		k.bounded(k.v, c, k.delayLine, "interval", k.delay, leastInterval, mostInterval)
	}
	isHTTP := kind == "http" || kind == "https"
	if says.host != "" && isHTTP {
		c["host"] = says.host
	}
	if says.retry != nil {
		k.times(k.v, c, says.retry.line, "unhealthy-threshold", k.number(*says.retry)+1)
	}
	if says.timeout != nil {
		k.bounded(k.v, c, says.timeout.line, "timeout", k.seconds(*says.timeout), leastTimeout, mostTimeout)
	}
	urls := 0
	for _, in := range s.block {
		switch keyword := in.words[0]; {
		case keyword == "connect_port":
			n, err := ParsePort(in.arg())
			if err != nil {
				k.fail(in.line, "%v", err)
			}
			if n != server.Port {
				port = fmt.Sprintf(":%d", n)
			}
		case keyword == "connect_timeout":
			k.bounded(k.v, c, in.line, "timeout", k.seconds(in), leastTimeout, mostTimeout)
		case keyword == "retry" || keyword == "nb_get_retry":
			k.times(k.v, c, in.line, "unhealthy-threshold", k.number(in)+1)
		case keyword == "virtualhost" && isHTTP:
			c["host"] = in.arg()
		case keyword == "name" && kind == "dns":
			path = "/" + in.arg()
		case keyword == "url" && isHTTP:
			if urls++; urls > 1 {
				k.lose(k.v, in.line, "this url has no counterpart: a check asks for its first one alone")
				continue
			}
			path = k.url(c, in)
		case slices.Contains([]string{
			"connect_ip", "bindto", "bind_if", "bind_port", "fwmark", "delay_before_retry", "warmup", "delay_loop", "alpha", "log_all_failures", "enable_sni", "type",
			"http_protocol", "fast_recovery", "tls_compliant", "payload", "require_reply", "min_reply_length", "max_reply_length", "helo_name",
		}, keyword):
			k.lose(k.v, in.line, "%s of %s has no counterpart and is left out", strings.Join(in.words, " "), s.words[0])
		default:
			k.fail(in.line, "%q is not understood in %s", keyword, s.words[0])
		}
	}
	c[""] = kind + port + path
	return c
}

// url reads the block url of HTTP_GET or SSL_GET and returns its path.
func (k *keepalivedServer) url(c check, s statement) (path string) {
	for _, in := range s.block {
		switch keyword := in.words[0]; keyword {
		case "path":
			if path = in.arg(); !strings.HasPrefix(path, "/") {
				k.fail(in.line, "the path %q does not begin with /", path)
			}
		case "status_code":
			c["status"] = strings.Join(in.words[1:], ",")
		case "virtualhost":
			c["host"] = in.arg()
		case "digest", "regex", "regex_no_match", "regex_options", "regex_stack", "regex_min_offset", "regex_max_offset", "tls_compliant":
			k.lose(k.v, in.line, "%s of a url has no counterpart: the body of the answer is not looked at", keyword)
		default:
			k.fail(in.line, "%q is not understood in url", keyword)
		}
	}
	if path == "/" {
		return "" // as without one
	}
	return path
}

// A vrrpElection has the settings of `svcctl announce` that replace the vrrp_instance blocks of a keepalived.conf.
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

// instance reads a block vrrp_instance. A box takes part in one election only: addresses of further instances are added to the first.
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
	r.vrrp.interfaces = addOnce(r.vrrp.interfaces, e.interfaces...)
	r.vrrp.addresses = addOnce(r.vrrp.addresses, e.addresses...)
}

// virtualAddress parses ADDRESS[/LENGTH] [dev INTERFACE] with parameters of ip-address(8).
func (r *keepalived) virtualAddress(e *vrrpElection, s statement, lost *[]string) {
	host, _, _ := strings.Cut(s.words[0], "/")
	addr, err := parseAddr(host)
	if err != nil {
		r.fail(s.line, "%v", err)
		return
	}
	e.addresses = addOnce(e.addresses, addr)
	for i := 1; i < len(s.words); i++ {
		switch word := s.words[i]; {
		case word == "dev" && i+1 < len(s.words):
			i++
			e.interfaces = addOnce(e.interfaces, s.words[i])
		default:
			*lost = append(*lost, word+" of "+addr.String())
		}
	}
}

// election adds the settings that replace the VRRP instances: a pool with their addresses, and `svcctl announce`.
func (r *keepalived) election() {
	e := &r.vrrp
	if e.vrid == "" {
		return
	}
	if len(e.addresses) > 0 {
		pools := object.Texts(e.addresses, func(a netip.Addr) string { return a.String() + "-" + a.String() })
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
