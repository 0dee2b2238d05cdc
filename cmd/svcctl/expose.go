package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/store/convert"
	"svcctl.io/svcctl/store/object"
)

func (p *program) exposeVerb() *verb {
	const groupService = "What clients connect to"
	const groupServers = "Servers"
	return &verb{
		name:    "expose",
		summary: "create a Service from a list of servers, without writing YAML",
		args:    "NAME --port PORT --to ADDRESS [FLAGS]",
		about: `Prints a Service with these ports and an EndpointSlice for each IP family of its
servers, or applies them with --apply. The manifests are validated as by
` + "`svcctl serve`" + `; if they have a problem nothing is printed or applied.

Without --apply it needs no privilege and no appliance.`,
		options: append([]*option{
			{name: "port", arg: "PORT[:TARGET][/PROTOCOL]", group: groupService, repeats: true,
				usage: "port of clients, port of the servers when it is another, and tcp (the default), udp or sctp; repeatable"},
			{name: "type", arg: "TYPE", def: object.TypeClusterIP, words: []string{object.TypeClusterIP, object.TypeNodePort, object.TypeLoadBalancer}, group: groupService,
				usage: "ClusterIP, NodePort or LoadBalancer"},
			{name: "load-balancer-ip", arg: "ADDRESS", group: groupService, repeats: true,
				usage: "address wanted of a pool, with --type LoadBalancer; one for each family"},
			namespaceOption(),
			{name: "to", arg: "ADDRESS[:PORT]", group: groupServers, repeats: true,
				usage: "server, as 10.1.2.11, 10.1.2.11:8080 or [2001:db8::11]:8080; repeatable"},
			{name: "weight", arg: "ADDRESS=WEIGHT", group: groupServers, repeats: true, usage: "share of a server, 0 to 65535; 1 without it"},
			{name: "health-check", arg: "CHECK", group: groupServers, usage: "health check of the servers, as tcp or http:8080/healthz"},
			{name: "apply", group: groupHow, usage: "apply the manifests instead of printing them"},
		}, connectOptions()...),
		examples: []example{
			{"Two servers behind an address that the appliance chooses.", "svcctl expose web --port 80 --to 10.1.2.11:8080 --to 10.1.2.12:8080 --apply"},
			{"An address from the pool, and a check.", "svcctl expose dns --port 53/udp --port 53 --to 10.1.2.21 --type LoadBalancer --health-check tcp:53"},
			{"A file to keep.", "svcctl expose web --port 80:8080 --to 10.1.2.11 > web.yaml"},
		},
		exits: `  0  done
  1  the Service was refused: stderr has the reason
  2  wrong usage
  3  the appliance cannot be reached (--apply)`,
		run: p.runExpose,
	}
}

// runExpose prints the manifests of flags, or applies them.
func (p *program) runExpose(ctx context.Context, v *verb, args []string) error {
	virtual, err := p.exposed(v, args)
	if err != nil {
		return err
	}
	text, err := virtual.YAML()
	if err != nil {
		return err
	}
	if err := p.judge(virtual, text); err != nil {
		return err
	}
	if !v.option("apply").on() {
		return p.print(text)
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	from := *p
	from.stdin = strings.NewReader(text)
	a := &applying{p: p, c: c, options: client.ApplyOptions{Manager: manager}, shown: p.progress()}
	files := &reader{p: &from, paths: []string{"-"}, namespace: virtual.Namespace}
	if err := files.each(func(d *document) error { return a.add(ctx, d) }); err != nil {
		return err
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	return refusedError(files.refused + a.refused)
}

// exposed is the virtual service of the flags. Errors are usageErrors.
func (p *program) exposed(v *verb, args []string) (*convert.Virtual, error) {
	switch {
	case len(args) == 0:
		return nil, usagef("expose as what? Give the Service a name, as `svcctl expose web --port 80 --to 10.1.2.11`")
	case len(args) > 1:
		return nil, usagef("expose makes one Service, and %q is a second name", args[1])
	case !v.option("port").isSet():
		return nil, usagef("expose %s at which port? Give --port", args[0])
	case !v.option("to").isSet():
		return nil, usagef("%s has no server: give one with --to", args[0])
	}
	if o := v.option("type"); !slices.Contains(o.words, o.text()) {
		return nil, usagef("--type %q: want one of %s", o.text(), strings.Join(o.words, ", "))
	}
	virtual := &convert.Virtual{Name: args[0], Type: v.option("type").text(), Annotations: map[string]string{}}
	if namespace := p.namespace(v); namespace != v.option("namespace").def {
		virtual.Namespace = namespace
	}
	for _, text := range v.option("port").texts {
		port, err := parsePort(text)
		if err != nil {
			return nil, usagef("--port %q: %v", text, err)
		}
		virtual.Ports = append(virtual.Ports, port)
	}
	for _, text := range v.option("to").texts {
		server, err := parseServer(text)
		switch {
		case err != nil:
			return nil, usagef("--to %q: %v", text, err)
		case server.Port != 0 && len(virtual.Ports) > 1:
			return nil, usagef("--to %q: there are several ports, and it names none: write --port PORT:TARGET", text)
		}
		if slices.Contains(virtual.Servers, server) {
			return nil, usagef("--to %q is given twice: leave one out, and give shares with --weight", text)
		}
		virtual.Servers = append(virtual.Servers, server)
	}
	for _, text := range v.option("load-balancer-ip").texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, usagef("--load-balancer-ip %q: want an address, as 198.51.100.4", text)
		}
		if virtual.Type != object.TypeLoadBalancer {
			return nil, usagef("--load-balancer-ip %q: a Service of type %s has none: add --type LoadBalancer", text, virtual.Type)
		}
		virtual.LoadBalancerIPs = append(virtual.LoadBalancerIPs, addr.Unmap())
	}
	if check := v.option("health-check"); check.isSet() {
		virtual.Annotations["svcctl.io/health-check"] = check.text()
	}
	return virtual, setWeights(virtual, v.option("weight").texts)
}

// setWeights gives servers the weights of --weight.
func setWeights(virtual *convert.Virtual, texts []string) error {
	for _, text := range texts {
		weights, err := object.ParseWeights(text)
		if err != nil {
			return usagef("--weight %v", err)
		}
		for _, w := range weights {
			found := false
			for i := range virtual.Servers {
				if s := &virtual.Servers[i]; s.Addr == w.Addr {
					s.Weight, found = w.Weight, true
				}
			}
			if !found {
				return usagef("--weight %q: no --to has the address %s", text, w.Addr)
			}
		}
	}
	return nil
}

// parsePort reads PORT[:TARGET][/PROTOCOL].
func parsePort(text string) (port convert.Port, err error) {
	numbers, protocol, has := strings.Cut(text, "/")
	port.Protocol = strings.ToUpper(protocol)
	if !has {
		port.Protocol = object.ProtocolTCP
	}
	switch port.Protocol {
	case object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP:
	default:
		return port, fmt.Errorf("the protocol %q is unknown: use tcp, udp or sctp", protocol)
	}
	number, target, has := strings.Cut(numbers, ":")
	if port.Port, err = convert.ParsePort(number); err == nil && has {
		port.Target, err = convert.ParsePort(target)
	}
	return port, err
}

// parseServer reads ADDRESS[:PORT].
func parseServer(text string) (convert.Server, error) {
	server := convert.Server{Weight: 1}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		server.Addr = addr.Unmap()
		return server, reachable(server.Addr)
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return server, fmt.Errorf("want an address, as 10.1.2.11, 10.1.2.11:8080 or [2001:db8::11]:8080; names are not looked up")
	}
	host := text[:i]
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil || addr.Zone() != "" || addr.Is6() != strings.HasPrefix(host, "[") {
		return server, fmt.Errorf("want an address, as 10.1.2.11, 10.1.2.11:8080 or [2001:db8::11]:8080; names are not looked up")
	}
	server.Addr = addr.Unmap()
	if server.Port, err = convert.ParsePort(text[i+1:]); err != nil {
		return server, err
	}
	return server, reachable(server.Addr)
}

// reachable returns an error for a loopback address, with one of this box that can stand in its place.
func reachable(addr netip.Addr) error {
	if !addr.IsLoopback() {
		return nil
	}
	instead := "192.0.2.1"
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if own, err := netip.ParsePrefix(a.String()); err == nil && own.Addr().Is4() == addr.Is4() && own.Addr().IsGlobalUnicast() {
				instead = own.Addr().String()
				break
			}
		}
	}
	return fmt.Errorf("clients do not reach a loopback address: have the server listen at an address of its box, as %s, and give that one", instead)
}

// Ranges for judging a manifest without an appliance: those for benchmarks (RFC 2544, RFC 5180),
// which no server is in.
var (
	judgedRanges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24"), netip.MustParsePrefix("2001:2::/112")}
	judgedPools  = []string{"198.19.0.0/24", "2001:2:0:1::/120"}
)

// judge has the product judge manifests as an appliance would whose pool has the wanted
// addresses. Whatever it says is a refusal: a flag that would have no effect is a mistake.
func (p *program) judge(virtual *convert.Virtual, text string) error {
	cfg := config.Default()
	cfg.Addresses.ClusterIPRanges = judgedRanges
	pools := judgedPools
	for _, addr := range virtual.LoadBalancerIPs {
		pools = append(pools[:len(pools):len(pools)], netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	var err error
	if cfg.Addresses.LoadBalancerPools, err = config.ParseAddrRanges(pools); err != nil {
		return err
	}
	planned, err := p.plan(cfg, []string{"-"}, strings.NewReader(text), io.Discard)
	if err != nil {
		return err
	}
	for _, problem := range planned.Problems {
		problem.File, problem.Line = "svcctl expose", 0 // the user has not seen the lines
		problem.Warning = false
		fmt.Fprintln(p.stderr, problem)
	}
	return refusedError(len(planned.Problems))
}
