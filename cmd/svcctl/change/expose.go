package change

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
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/convert"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func ExposeVerb() *cli.Verb {
	const groupService = "What clients connect to"
	const groupServers = "Servers"
	return &cli.Verb{
		Name: "expose",
		Options: append([]*cli.Option{
			{Name: "port", Arg: "PORT[:TARGET][/PROTOCOL]", Group: groupService, Repeats: true,
				Usage: "port of clients, port of the servers if it is another one, and tcp (the default), udp or sctp, as 80:8080 or 53/udp; repeatable"},
			{Name: "type", Arg: "TYPE", Def: object.TypeClusterIP, Words: []string{object.TypeClusterIP, object.TypeNodePort, object.TypeLoadBalancer}, Strict: true, Group: groupService,
				Usage: "ClusterIP: an address that svcctl allocates; NodePort: a port of this box too; LoadBalancer: an address of a pool too, which can be announced to the network"},
			{Name: "load-balancer-ip", Arg: "ADDRESS", Group: groupService, Repeats: true,
				Usage: "this address of the pool, with --type LoadBalancer; one for each family"},
			settings.NamespaceOption(),
			{Name: "to", Arg: "ADDRESS[:PORT]", Group: groupServers, Repeats: true,
				Usage: "server, as 10.1.2.11, 10.1.2.11:8080 or [2001:db8::11]:8080; repeatable"},
			{Name: "from", Arg: "PROVIDER:NAME", Group: groupServers, Repeats: true,
				Usage: "servers of a provider of svcctl discover, as dns:app.example.com or consul:web?tag=prod; repeatable"},
			{Name: "weight", Arg: "ADDRESS=WEIGHT", Group: groupServers, Repeats: true, Usage: "share of new connections of a server, 0 to 65535 (others have 1)"},
			{Name: "health-check", Arg: "CHECK", Group: groupServers, Usage: "check the servers, as tcp or http:8080/healthz: one that is down gets no new connections"},
			{Name: "apply", Group: cli.GroupHow, Usage: "create or change the Service in the appliance instead of printing it"},
		}, settings.ConnectOptions()...),
		Run: runExpose,
	}
}

// runExpose prints the manifests that the flags describe, or applies them.
func runExpose(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	virtual, err := exposed(env, v, args)
	if err != nil {
		return err
	}
	text, err := virtual.YAML()
	if err != nil {
		return err
	}
	if err := judgeManifests(env, virtual, text); err != nil {
		return err
	}
	if !v.Option("apply").On() {
		return env.Print(text)
	}
	c := env.Client(v)
	from := *env
	from.In = strings.NewReader(text)
	a := &applying{env: env, c: c, options: client.ApplyOptions{Manager: manager}, shown: env.Progress()}
	files := &resource.Reader{Env: &from, Paths: []string{"-"}, Namespace: virtual.Namespace}
	if err := files.Each(func(d *resource.Document) error { return a.add(ctx, d) }); err != nil {
		return err
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	return resource.RefusedError(files.Refused + a.refused)
}

// exposed returns the virtual service that the command line describes. Errors are of type cli.UsageError.
func exposed(env *cli.Env, v *cli.Verb, args []string) (*convert.Virtual, error) {
	switch {
	case len(args) == 0:
		return nil, cli.Usagef("expose as what? Give the Service a name, as `svcctl expose web --port 80 --to 10.1.2.11`")
	case len(args) > 1:
		return nil, cli.Usagef("expose makes one Service, and %q is a second name", args[1])
	case !v.Option("port").IsSet():
		return nil, cli.Usagef("expose %s at which port? Give --port", args[0])
	case !v.Option("to").IsSet() && !v.Option("from").IsSet():
		return nil, cli.Usagef("%s has no server: give one with --to, or a provider of them with --from", args[0])
	case v.Option("to").IsSet() && v.Option("from").IsSet():
		return nil, cli.Usagef("--to lists the servers, and --from has them followed: leave one of them out")
	}
	virtual := &convert.Virtual{Name: args[0], Type: v.Option("type").Text(), Annotations: map[string]string{}}
	if namespace := settings.Namespace(env, v); namespace != v.Option("namespace").Def {
		virtual.Namespace = namespace
	}
	for _, text := range v.Option("port").Texts {
		port, err := parsePort(text)
		if err != nil {
			return nil, cli.Usagef("--port %q: %v", text, err)
		}
		virtual.Ports = append(virtual.Ports, port)
	}
	for _, text := range v.Option("to").Texts {
		server, err := parseServer(text)
		switch {
		case err != nil:
			return nil, cli.Usagef("--to %q: %v", text, err)
		case server.Port != 0 && len(virtual.Ports) > 1:
			return nil, cli.Usagef("--to %q: there are several ports, and it names none: write --port PORT:TARGET", text)
		}
		if slices.Contains(virtual.Servers, server) {
			return nil, cli.Usagef("--to %q is given twice: leave one out, and give shares with --weight", text)
		}
		virtual.Servers = append(virtual.Servers, server)
	}
	for _, text := range v.Option("load-balancer-ip").Texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, cli.Usagef("--load-balancer-ip %q: want an address, as 198.51.100.4", text)
		}
		if virtual.Type != object.TypeLoadBalancer {
			return nil, cli.Usagef("--load-balancer-ip %q: a Service of type %s has none: add --type LoadBalancer", text, virtual.Type)
		}
		virtual.LoadBalancerIPs = append(virtual.LoadBalancerIPs, addr.Unmap())
	}
	if from := v.Option("from"); from.IsSet() {
		virtual.Annotations[annotation.EndpointsFrom] = strings.Join(from.Texts, " ")
	}
	if check := v.Option("health-check"); check.IsSet() {
		virtual.Annotations["svcctl.io/health-check"] = check.Text()
	}
	return virtual, setWeights(virtual, v.Option("weight").Texts)
}

// setWeights sets the weights of servers from the values of --weight.
func setWeights(virtual *convert.Virtual, texts []string) error {
	for _, text := range texts {
		weights, err := object.ParseWeights(text)
		if err != nil {
			return cli.Usagef("--weight %v", err)
		}
		for _, w := range weights {
			found := false
			for i := range virtual.Servers {
				if s := &virtual.Servers[i]; s.Addr == w.Addr {
					s.Weight, found = w.Weight, true
				}
			}
			if !found {
				return cli.Usagef("--weight %q: no --to has the address %s", text, w.Addr)
			}
		}
	}
	return nil
}

// parsePort parses PORT[:TARGET][/PROTOCOL].
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

// parseServer parses ADDRESS[:PORT].
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

// reachable returns an error for a loopback address, which clients cannot reach. The error suggests an address of this box instead.
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

// Ranges for checking manifests without an appliance. They are reserved for benchmarks (RFC 2544, RFC 5180), so no server uses them.
var (
	judgedRanges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24"), netip.MustParsePrefix("2001:2::/112")}
	judgedPools  = []string{"198.19.0.0/24", "2001:2:0:1::/120"}
)

// judgeManifests returns the problems that an appliance would report about manifests if its pool contained the requested addresses. Warnings are
// errors here, because a flag without effect is a mistake.
func judgeManifests(env *cli.Env, virtual *convert.Virtual, text string) error {
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
	_, problems, err := env.Plan(cfg, []string{"-"}, strings.NewReader(text), io.Discard)
	if err != nil {
		return err
	}
	followed := annotation.HasSources(virtual.Annotations)
	problems = slices.DeleteFunc(problems, func(p manifest.Problem) bool { return followed && p.Reason == "NoEndpoints" })
	for _, problem := range problems {
		problem.File, problem.Line = "svcctl expose", 0 // the user has not seen the lines
		problem.Warning = false
		fmt.Fprintln(env.Err, problem)
	}
	return resource.RefusedError(len(problems))
}
