package convert

import (
	"net/netip"
	"path"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// directText is the text of the loss for servers in direct routing or tunnel mode. svcctl translates their packets (NAT) instead.
const directText = "direct routing and tunnels have no counterpart: packets are translated, servers see the box's address as the client and answer through it"

// IPVS reads the output of `ipvsadm -S -n`, or a script of ipvsadm commands that add the same, and converts its virtual services.
func IPVS(text string, options Options) (*Imported, error) {
	r := &ipvs{reading: reading{options: options}, virtuals: map[string]*Virtual{}, lost: map[string]bool{}}
	line := 0
	for l := range strings.Lines(text) {
		line++
		words := strings.Fields(l)
		isCommand := len(words) > 1 && path.Base(words[0]) == "ipvsadm"
		if isCommand {
			words = words[1:]
		}
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch option := words[0]; {
		case option == "-A" || option == "--add-service":
			r.service(line, words[1:])
		case option == "-a" || option == "--add-server":
			r.server(line, words[1:])
		case isCommand && (option == "-C" || option == "--clear") && len(r.virtuals)+len(r.lost) == 0: // as a script begins
		default:
			r.fail(line, "%q is no line of `ipvsadm -S -n`: it begins with -A or -a", words[0])
		}
	}
	for _, s := range r.order {
		r.balance(s.Virtual, s.Line, s.scheduler)
		if s.byPort {
			r.hashPort(s.Virtual, s.Line)
		}
		r.add(s.Virtual)
	}
	return r.result()
}

// An ipvsService is a virtual service with its scheduler. byPort is set if that hashes the client's port with the address.
type ipvsService struct {
	*Virtual
	scheduler string
	byPort    bool
}

type ipvs struct {
	reading
	virtuals map[string]*Virtual // virtual services, keyed by protocol and the address as written
	lost     map[string]bool     // virtual services that cannot be converted, keyed like virtuals
	order    []ipvsService
}

// ipvsProtocols maps the options that introduce a virtual service to its protocol; "" for a firewall mark.
var ipvsProtocols = map[string]string{
	"-t": object.ProtocolTCP, "--tcp-service": object.ProtocolTCP, "-u": object.ProtocolUDP, "--udp-service": object.ProtocolUDP,
	"--sctp-service": object.ProtocolSCTP, "-f": "", "--fwmark-service": "",
}

// take returns the value behind the option words[*i] and advances *i.
func (r *ipvs) take(line int, words []string, i *int) string {
	if *i+1 >= len(words) {
		r.fail(line, "%s needs a value", words[*i])
		return ""
	}
	*i++
	return words[*i]
}

// service reads a line -A, which adds a virtual service.
func (r *ipvs) service(line int, words []string) {
	v := &Virtual{Line: line, Annotations: map[string]string{}, KeepsClient: true}
	key, scheduler, byPort := "", "wlc", false
	for i := 0; i < len(words); i++ {
		option := words[i]
		if protocol, is := ipvsProtocols[option]; is {
			value := r.take(line, words, &i)
			key = option + " " + value
			r.address(v, line, key, protocol, value)
			continue
		}
		switch option {
		case "-s", "--scheduler":
			scheduler = r.take(line, words, &i)
		case "-p", "--persistent":
			seconds := int64(300) // ipvsadm(8)
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				seconds = r.natural(line, option, r.take(line, words, &i))
			}
			r.affinity(v, line, seconds)
		case "-M", "--netmask":
			r.granularity(v, line, r.take(line, words, &i))
		case "-b", "--sched-flags":
			for flag := range strings.SplitSeq(r.take(line, words, &i), ",") {
				if flag == "sh-port" || flag == "mh-port" {
					byPort = true
				} else {
					r.lose(v, line, "%s %s has no counterpart and is left out", option, flag)
				}
			}
		case "--pe":
			r.lose(v, line, "%s %s has no counterpart and is left out", option, r.take(line, words, &i))
		case "-o", "--ops":
			r.lose(v, line, "%s has no counterpart: a server is chosen once for each flow of UDP", option)
		case "-6", "--ipv6":
		default:
			r.fail(line, "%q is not understood", option)
		}
	}
	switch {
	case key == "":
		r.fail(line, "which service? -t, -u, --sctp-service and -f name one")
	case r.virtuals[key] != nil || r.lost[key] && len(v.Ports) > 0:
		r.fail(line, "the service %s is there a second time", key)
	default:
		r.described(len(v.Ports) > 0)
	}
	if key != "" && len(v.Ports) > 0 && r.virtuals[key] == nil {
		r.virtuals[key] = v
		r.order = append(r.order, ipvsService{v, scheduler, byPort})
	}
}

// address sets the address and port of a virtual service.
func (r *ipvs) address(v *Virtual, line int, key, protocol, value string) {
	if protocol == "" {
		r.lost[key] = true
		r.lose(nil, line, "the service of firewall mark %s has no counterpart: it is left out, with its servers", value)
		return
	}
	i := strings.LastIndexByte(value, ':')
	if i < 0 {
		r.fail(line, "%q has no port: write ADDRESS:PORT", value)
		return
	}
	addr, err := parseAddr(value[:i])
	if err != nil {
		r.fail(line, "%v; save with `ipvsadm -S -n`", err)
		return
	}
	if value[i+1:] == "0" {
		r.lost[key] = true
		r.lose(nil, line, "the service of all ports of %s has no counterpart: it is left out, with its servers", addr)
		return
	}
	port, err := ParsePort(value[i+1:])
	if err != nil {
		r.fail(line, "%v; save with `ipvsadm -S -n`", err)
		return
	}
	v.Name = r.name(strings.ToLower("v-" + addr.String() + "-" + value[i+1:] + "-" + protocol))
	v.ExternalIPs, v.Ports = append(v.ExternalIPs, addr), []Port{{Protocol: protocol, Port: port}}
}

// server reads a line -a, which adds a server to a virtual service.
func (r *ipvs) server(line int, words []string) {
	key, server, direct := "", Server{Weight: 1}, true // -g is the default, ipvsadm(8)
	bound := uint64(0)
	var losses []string
	for i := 0; i < len(words); i++ {
		option := words[i]
		if _, is := ipvsProtocols[option]; is {
			key = option + " " + r.take(line, words, &i)
			continue
		}
		switch option {
		case "-r", "--real-server":
			if value := r.take(line, words, &i); !r.lost[key] {
				server.Addr, server.Port = r.real(line, value)
			}
		case "-m", "--masquerading":
			direct = false
		case "-g", "--gatewaying", "-i", "--ipip":
		case "-w", "--weight":
			n := r.natural(line, option, r.take(line, words, &i))
			if n > object.MaxWeight {
				r.fail(line, "the weight %d is more than %d", n, object.MaxWeight)
			}
			server.Weight = uint16(n)
		case "-x", "--u-threshold":
			bound = uint64(r.natural(line, option, r.take(line, words, &i)))
		case "-y", "--l-threshold":
			if value := r.take(line, words, &i); value != "0" {
				losses = append(losses, "the bound of connections "+option+" "+value+" has no counterpart")
			}
		case "--tun-type", "--tun-port":
			losses = append(losses, option+" "+r.take(line, words, &i)+" has no counterpart")
		case "--tun-nocsum", "--tun-csum", "--tun-remcsum":
			losses = append(losses, option+" has no counterpart")
		default:
			r.fail(line, "%q is not understood", option)
		}
	}
	if r.lost[key] {
		return
	}
	v := r.virtuals[key]
	switch {
	case v == nil:
		r.fail(line, "the service %s of this server is not there: its line -A comes first", key)
		return
	case !server.Addr.IsValid():
		r.fail(line, "which server? -r names one")
		return
	}
	if direct && v.KeepsClient {
		v.KeepsClient = false
		r.lose(v, line, "%s", directText)
	}
	for _, text := range losses {
		r.lose(v, line, "%s: %s", server.Addr, text)
	}
	r.limit(v, line, server.Addr, "-x "+strconv.FormatUint(bound, 10), bound)
	v.Servers = append(v.Servers, server)
}

// real parses ADDRESS:PORT of a server.
func (r *ipvs) real(line int, value string) (a netip.Addr, port uint16) {
	i := strings.LastIndexByte(value, ':')
	if i < 0 {
		r.fail(line, "%q has no port: write ADDRESS:PORT", value)
		return a, 0
	}
	a, err := parseAddr(value[:i])
	if err == nil {
		port, err = ParsePort(value[i+1:])
	}
	if err != nil {
		r.fail(line, "%v; save with `ipvsadm -S -n`", err)
	}
	return a, port
}
