package convert

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Keepalived reads a keepalived.conf and converts its virtual servers and VRRP instances. Everything else is recorded as losses.
func Keepalived(text string, options Options) (*Imported, error) {
	r := &keepalived{reading: reading{options: options}, groups: map[string]statement{}, used: map[string]bool{}}
	r.read(r.parse(text))
	r.election()
	return r.result()
}

// read converts the top-level statements of a file.
func (r *keepalived) read(statements []statement) {
	for _, s := range statements {
		if s.words[0] == "virtual_server_group" && len(s.words) == 2 {
			r.groups[s.words[1]] = s
		}
		if s.words[0] == "virtual_server" && len(s.words) == 3 && s.words[1] == "group" {
			r.used[s.words[2]] = true
		}
	}
	for _, s := range statements {
		r.top(s)
		r.trailing(s)
	}
}

// keepalivedSingle are the statements that take one argument.
var keepalivedSingle = []string{
	"lb_algo", "lvs_sched", "lb_kind", "lvs_method", "protocol", "persistence_timeout", "persistence_granularity", "delay_loop", "virtualhost", "retry", "connect_timeout", "weight", "uthreshold",
	"lvs_upper_threshold", "connect_port", "nb_get_retry", "path", "virtual_router_id", "priority", "advert_int", "interface",
}

// trailing records a loss for each statement of a block that has more words than it takes.
func (r *keepalived) trailing(s statement) {
	for _, in := range s.block {
		if len(in.words) > 2 && slices.Contains(keepalivedSingle, in.words[0]) && (s.words[0] != "vrrp_script") {
			r.lose(nil, in.line, "%q behind %s is left out: a statement ends with its line", strings.Join(in.words[2:], " "), strings.Join(in.words[:2], " "))
		}
		r.trailing(in)
	}
}

type keepalived struct {
	reading
	groups map[string]statement
	used   map[string]bool // virtual_server_group blocks that a virtual_server uses

	vrrp vrrpElection
}

// A statement is a line of keepalived.conf, split into words, with the statements of the block that follows it.
type statement struct {
	line  int
	words []string
	block []statement
}

// arg returns the first word behind the keyword, "" without one.
func (s statement) arg() string {
	if len(s.words) < 2 {
		return ""
	}
	return s.words[1]
}

// parse splits the text into statements. ! and # begin comments.
func (r *keepalived) parse(text string) []statement {
	stack := []statement{{}} // the open blocks, that of the file first
	line := 0
	for l := range strings.Lines(text) {
		line++
		var words []string
		end := func() {
			if len(words) > 0 {
				top := &stack[len(stack)-1]
				top.block = append(top.block, statement{line: line, words: words})
				words = nil
			}
		}
		tokens, ok := keepalivedWords(l)
		if !ok {
			r.fail(line, "a quote is not closed")
		}
		for _, word := range tokens {
			switch word {
			case "{":
				end()
				top := &stack[len(stack)-1]
				if len(top.block) == 0 {
					r.fail(line, "{ opens a block of nothing")
					return nil
				}
				last := len(top.block) - 1
				opened := top.block[last]
				top.block = top.block[:last]
				stack = append(stack, opened)
			case "}":
				end()
				if len(stack) == 1 {
					r.fail(line, "} closes no block")
					return nil
				}
				closed := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				top := &stack[len(stack)-1]
				top.block = append(top.block, closed)
			default:
				words = append(words, word)
			}
		}
		end()
	}
	if open := stack[len(stack)-1]; len(stack) > 1 {
		r.fail(open.line, "the block of %s is not closed", open.words[0])
	}
	return stack[0].block
}

// keepalivedWords returns the words of a line; each brace is a word of its own.
func keepalivedWords(l string) (words []string, ok bool) {
	for i := 0; i < len(l); {
		switch c := l[i]; {
		case c == '!' || c == '#':
			return words, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '{' || c == '}':
			words = append(words, string(c))
			i++
		case c == '"' || c == '\'':
			end := strings.IndexByte(l[i+1:], c)
			if end < 0 {
				return words, false
			}
			words = append(words, l[i+1:i+1+end])
			i += end + 2
		default:
			end := i + strings.IndexAny(l[i:]+"\n", " \t\r\n{}!#")
			words = append(words, l[i:end])
			i = end
		}
	}
	return words, true
}

// keepalivedAside are top-level keywords that have nothing to do with virtual servers.
var keepalivedAside = []string{
	"global_defs", "vrrp_sync_group", "vrrp_script", "vrrp_track_process", "track_process", "vrrp_track_file", "track_file",
	"track_group", "static_ipaddress", "static_routes", "static_rules", "static_track_group", "garp_group", "bfd_instance",
	"linkbeat_use_polling", "net_namespace", "net_namespace_ipvs", "namespace_with_ipsets", "instance", "use_pid_dir",
	"interface_up_down_delays", "child_wait_time", "global_tracking", "random_seed", "SSL",
}

func (r *keepalived) top(s statement) {
	switch keyword := s.words[0]; {
	case keyword == "virtual_server":
		r.virtual(s)
	case keyword == "virtual_server_group":
		if len(s.words) != 2 {
			r.fail(s.line, "write virtual_server_group NAME")
		} else if !r.used[s.arg()] {
			r.lose(nil, s.line, "virtual_server_group %s is left out: no virtual_server is one of it", s.arg())
		}
	case keyword == "vrrp_instance":
		r.instance(s)
	case slices.Contains(keepalivedAside, keyword):
		inside := object.Texts(s.block, func(inner statement) string { return inner.words[0] })
		r.lose(nil, s.line, "%s has no counterpart and is left out: %s", strings.Join(s.words, " "), strings.Join(inside, ", "))
	case keyword == "include" || strings.HasPrefix(keyword, "@") || strings.HasPrefix(keyword, "$"):
		r.fail(s.line, "%s: included files, conditions and definitions are not followed: put all of it into one file", keyword)
	default:
		r.fail(s.line, "%q is not understood", keyword)
	}
}

// keepalivedLost are keywords in blocks virtual_server and real_server that have no counterpart.
var keepalivedLost = []string{
	"alpha", "omega", "quorum", "hysteresis", "quorum_up", "quorum_down", "ha_suspend", "ops", "persistence_engine",
	"hashed", "flag-1", "flag-2", "flag-3", "sh-fallback", "mh-fallback", "warmup", "delay_before_retry", "retry",
	"inhibit_on_failure", "sorry_server_inhibit", "smtp_alert", "no_smtp_alert", "notify_up", "notify_down", "lthreshold", "snmp_name", "ip_family", "virtualhost",
	"nat_mask", "lvs_lower_threshold", "sorry_server_lvs_method", "log_all_failures",
}

// virtual converts a block virtual_server.
func (r *keepalived) virtual(s statement) {
	v := &Virtual{Line: s.line, Annotations: map[string]string{}, KeepsClient: true}
	k := &keepalivedServer{keepalived: r, v: v, weight: 1}
	frontends, ok := r.frontends(s)
	r.described(ok)
	if !ok {
		return
	}
	protocol, scheduler, schedulerLine := object.ProtocolTCP, "wlc", s.line
	byPort := 0 // the line that has the hash include the client's port
	var servers []statement
	for _, in := range s.block {
		switch keyword := in.words[0]; keyword {
		case "lb_algo", "lvs_sched":
			scheduler, schedulerLine = in.arg(), in.line
		case "lb_kind", "lvs_method":
			r.method(v, in)
		case "protocol":
			protocol = strings.ToUpper(in.arg())
			if !slices.Contains([]string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}, protocol) {
				r.fail(in.line, "the protocol %q is unknown: use TCP, UDP or SCTP", in.arg())
			}
		case "persistence_timeout":
			seconds := int64(360) // keepalived.conf(5)
			if len(in.words) > 1 {
				seconds = r.number(in)
			}
			r.affinity(v, in.line, seconds)
		case "persistence_granularity":
			r.granularity(v, in.line, in.arg())
		case "delay_loop":
			k.delay, k.delayLine = r.seconds(in), in.line
		case "virtualhost", "retry", "connect_timeout":
			k.says.read(in)
		case "weight":
			k.weight = k.weightOf(in)
		case "uthreshold", "lvs_upper_threshold":
			k.bound = &in
		case "sh-port", "mh-port":
			byPort = in.line
		case "real_server", "sorry_server":
			servers = append(servers, in)
		default:
			if !slices.Contains(keepalivedLost, keyword) {
				r.fail(in.line, "%q is not understood in virtual_server", keyword)
				continue
			}
			r.lose(v, in.line, "%s has no counterpart and is left out", strings.Join(in.words, " "))
		}
	}
	for _, in := range servers {
		k.server(in)
	}
	r.balance(v, schedulerLine, scheduler)
	r.hashPort(v, byPort)
	if k.delayLine > 0 && !slices.ContainsFunc(k.checks, func(c checked) bool { return c.check != nil }) {
		r.lose(v, k.delayLine, "delay_loop has no counterpart: no server is checked")
	}
	ports, addrs := addressesByPort(frontends)
	for i, port := range ports { // if there is none, a loss has it
		name := "v-" + addrs[port][0].String() + "-" + strconv.Itoa(int(port)) + "-" + protocol
		one := v.part(i, r.name(name), []Port{{Protocol: protocol, Port: port}})
		one.ExternalIPs = addrs[port]
		r.check(one, k.checks)
		r.add(one)
	}
}

// frontends returns the addresses and ports of a virtual server.
func (r *keepalived) frontends(s statement) (list []netip.AddrPort, ok bool) {
	switch {
	case len(s.words) == 3 && s.words[1] == "fwmark":
		r.lose(nil, s.line, "the virtual_server of fwmark %s has no counterpart: it is left out, with its servers", s.words[2])
		return nil, false
	case len(s.words) == 3 && s.words[1] == "group":
		group, has := r.groups[s.words[2]]
		if !has {
			r.fail(s.line, "there is no virtual_server_group %s", s.words[2])
			return nil, false
		}
		for _, in := range group.block {
			list = append(list, r.frontend(in, in.words)...)
		}
	case len(s.words) == 2 || len(s.words) == 3:
		list = r.frontend(s, s.words[1:])
	default:
		r.fail(s.line, "write virtual_server ADDRESS PORT, fwmark MARK or group NAME")
	}
	return list, len(list) > 0
}

// frontend parses ADDRESS[-LAST] PORT, where LAST is the last byte (IPv4) or group (IPv6) of the last address of a range.
func (r *keepalived) frontend(s statement, words []string) (list []netip.AddrPort) {
	if words[0] == "fwmark" {
		r.lose(nil, s.line, "%s has no counterpart: it is left out of the group", strings.Join(words, " "))
		return nil
	}
	if len(words) == 1 || words[1] == "0" {
		r.lose(nil, s.line, "the service of all ports of %s has no counterpart: it is left out", words[0])
		return nil
	}
	if len(words) != 2 {
		r.fail(s.line, "write ADDRESS PORT")
		return nil
	}
	from, last, is := strings.Cut(words[0], "-")
	addr, err := parseAddr(from)
	if err != nil {
		r.fail(s.line, "%v", err)
		return nil
	}
	port, err := ParsePort(words[1])
	if err != nil {
		r.fail(s.line, "%v", err)
		return nil
	}
	list = append(list, netip.AddrPortFrom(addr, port))
	if !is {
		return list
	}
	base := 10
	if addr.Is6() {
		base = 16
	}
	n, err := strconv.ParseUint(last, base, 16)
	bytes := addr.AsSlice()
	first := uint64(bytes[len(bytes)-1])
	if addr.Is6() {
		first |= uint64(bytes[len(bytes)-2]) << 8
	}
	if err != nil || n < first || n-first > 255 || addr.Is4() && n > 255 {
		r.fail(s.line, "%q is no range of at most 256 addresses, as 192.0.2.3-10", words[0])
		return nil
	}
	for range n - first {
		addr = addr.Next()
		list = append(list, netip.AddrPortFrom(addr, port))
	}
	return list
}

// method reads lb_kind or lvs_method: NAT, DR or TUN.
func (r *keepalived) method(v *Virtual, s statement) {
	switch strings.ToUpper(s.arg()) {
	case "NAT":
	case "DR", "TUN":
		v.KeepsClient = false
		r.lose(v, s.line, "%s %s: %s", s.words[0], s.arg(), directText)
	default:
		r.fail(s.line, "%s %q is none of NAT, DR, TUN", s.words[0], s.arg())
	}
}

func (r *keepalived) number(s statement) int64 { return r.natural(s.line, s.words[0], s.arg()) }

// seconds parses a time in seconds, which may have decimals.
func (r *keepalived) seconds(s statement) time.Duration {
	n, err := strconv.ParseFloat(s.arg(), 64)
	if err != nil || !(n >= 0 && n <= 1e6) {
		r.fail(s.line, "%s %q is no number of seconds", s.words[0], s.arg())
		return 0
	}
	return time.Duration(n * float64(time.Second))
}
