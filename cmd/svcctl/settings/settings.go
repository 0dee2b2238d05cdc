package settings

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/store/object"
)

// Setting is one field of config.Config or of a group of it: a flag, an environment variable and a
// key of the configuration file.
type Setting struct {
	Name  string // of the flag
	Arg   string // what stands for the value in help; "" for a switch
	Usage string
	Def   string // the default, equal to config.Default's
	Shown string // what help shows as the default instead of Def
	Group string
	Words []string // the values it takes, when they are few
	// set reads the values given, one for a setting that is no list.
	Set func(c *config.Config, texts []string) error
	// list settings take several values, parted by commas or given one by one.
	List bool
	// serveOnly settings mean nothing to `svcctl plan`.
	ServeOnly bool
}

// The headings of help.
const (
	GroupPlaces   = "Where things are"
	groupFleet    = "Many boxes"
	groupBox      = "Identity of the box"
	groupRanges   = "Addresses and ports"
	groupServices = "How Services behave"
	groupDNS      = "Names"
	groupLog      = "Logging"
)

// Settings returns all settings, in the order of help.
func Settings() []Setting {
	return slices.Concat(PlaceSettings(), FleetSettings(), leafSettings(), boxSettings(), rangeSettings(), serviceSettings(), dnsSettings(), LogSettings())
}

func PlaceSettings() []Setting {
	return []Setting{
		{Name: "manifests", Arg: cli.ArgDir, List: true, Group: GroupPlaces,
			Usage: "directory of manifests (*.yaml, *.yml, *.json), read recursively and watched; repeatable; with --fleet as NAME=DIR, see `svcctl fleet source`",
			Set:   texts(func(c *config.Config) *[]string { return &c.Manifests })},
		{Name: "data-dir", Arg: cli.ArgDir, Def: config.DefaultDataDir, Group: GroupPlaces, ServeOnly: true,
			Usage: "objects, allocations and the last good copy of every manifest",
			Set:   text(func(c *config.Config) *string { return &c.DataDir })},
		{Name: "data-key-file", Arg: cli.ArgFile, Shown: "none", Group: GroupPlaces, ServeOnly: true,
			Usage: "encrypt the content of --data-dir by the key in this file, 32 bytes in base64, as a credential of systemd",
			Set:   text(func(c *config.Config) *string { return &c.DataKeyFile })},
		{Name: "socket", Arg: cli.ArgPath, Def: config.DefaultSocket, Group: GroupPlaces, ServeOnly: true,
			Usage: "unix socket of the API; root has all rights, other users who can open it may read",
			Set:   text(func(c *config.Config) *string { return &c.API.Socket })},
		{Name: "socket-group", Arg: "GROUP", Shown: "none", Group: GroupPlaces, ServeOnly: true,
			Usage: "group whose members have all rights over the socket, as root has",
			Set:   text(func(c *config.Config) *string { return &c.API.SocketGroup })},
		{Name: "socket-readers", Group: GroupPlaces, Shown: "false", ServeOnly: true,
			Usage: "let every user of this box read over the socket",
			Set:   onOff(func(c *config.Config) *bool { return &c.API.SocketReaders })},
		{Name: "listen", Arg: "HOST:PORT", Shown: "off", Group: GroupPlaces, ServeOnly: true,
			Usage: "serve the API there too, over TLS, for kubectl and other clients; see `svcctl admin kubeconfig`",
			Set:   text(func(c *config.Config) *string { return &c.API.Listen })},
		{Name: "tls-cert", Arg: cli.ArgFile, Shown: "made by svcctl", Group: GroupPlaces, ServeOnly: true,
			Usage: "certificate for --listen, PEM, with those of its issuers after it; read again when it is replaced",
			Set:   text(func(c *config.Config) *string { return &c.API.TLSCert })},
		{Name: "tls-key", Arg: cli.ArgFile, Shown: "made by svcctl", Group: GroupPlaces, ServeOnly: true,
			Usage: "key of --tls-cert, PEM",
			Set:   text(func(c *config.Config) *string { return &c.API.TLSKey })},
		{Name: "allow-mass-removal", Group: GroupPlaces, Shown: "false", ServeOnly: true,
			Usage: "remove Services that vanish from the manifests at once, however many; see `svcctl confirm --removals`",
			Set:   onOff(func(c *config.Config) *bool { return &c.AllowMassRemoval })},
		{Name: "metrics-listen", Arg: "HOST:PORT", Shown: "off", Group: GroupPlaces, ServeOnly: true,
			Usage: "serve Prometheus /metrics, /healthz and /readyz there, in plain HTTP",
			Set:   text(func(c *config.Config) *string { return &c.API.MetricsListen })},
	}
}

// FleetSettings returns the settings of a box that shares its objects, and of the verbs that look
// at a fleet.
func FleetSettings() []Setting {
	return []Setting{
		{Name: "fleet", Arg: "NAME", Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "share the objects with the other boxes of this fleet, in etcd; see `svcctl fleet`",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.Name })},
		{Name: "etcd", Arg: "URL[,URL]", List: true, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "members of etcd, as https://10.0.0.1:2379; repeatable",
			Set:   texts(func(c *config.Config) *[]string { return &c.Fleet.Etcd })},
		{Name: "etcd-cacert", Arg: cli.ArgFile, Shown: "those of the system", Group: groupFleet, ServeOnly: true,
			Usage: "CA of the certificates of etcd, PEM",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.CACert })},
		{Name: "etcd-cert", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "certificate of this box for etcd, PEM; read again for each connection",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.Cert })},
		{Name: "etcd-key", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "key of --etcd-cert, PEM",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.Key })},
		{Name: "fleet-key-file", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "keys that all boxes of the fleet have, by which its Secrets are sealed and its tokens shared: 32 bytes in base64 a line, the first one seals; without it Secrets are refused",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.KeyFile })},
	}
}

// leafSettings returns the settings of a box that follows a box of its fleet, and of one that is followed.
func leafSettings() []Setting {
	return []Setting{
		{Name: "core", Arg: "URL[,URL]", List: true, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "be a leaf of the fleet: follow one of these boxes instead of etcd, as https://10.0.0.1:6443; repeatable",
			Set:   texts(func(c *config.Config) *[]string { return &c.Fleet.Cores })},
		{Name: "core-cacert", Arg: cli.ArgFile, Shown: "those of the system", Group: groupFleet, ServeOnly: true,
			Usage: "CA of the server certificates of --core boxes, PEM",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.CoreCACert })},
		{Name: "core-cert", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "certificate of this leaf, PEM, with its --node-name as common name; read again for each connection",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.CoreCert })},
		{Name: "core-key", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "key of --core-cert, PEM",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.CoreKey })},
		{Name: "leaf-cacert", Arg: cli.ArgFile, Shown: "none", Group: groupFleet, ServeOnly: true,
			Usage: "allow leaves with certificates of this CA to follow this box over --listen, PEM; may include its revocation lists",
			Set:   text(func(c *config.Config) *string { return &c.Fleet.LeafCACert })},
		{Name: "leaf-writes", Group: groupFleet, Shown: "false", ServeOnly: true,
			Usage: "allow the admins of these leaves to change the objects of the fleet, through their leaf",
			Set:   onOff(func(c *config.Config) *bool { return &c.Fleet.LeafWrites })},
	}
}

func boxSettings() []Setting {
	return []Setting{
		{Name: "node-name", Arg: "NAME", Shown: "the host name", Group: groupBox,
			Usage: "endpoints with this nodeName are local",
			Set:   text(func(c *config.Config) *string { return &c.NodeName })},
		{Name: "zone", Arg: "NAME", Shown: "none", Group: groupBox,
			Usage: "topology zone of this box, for endpoints with zone hints",
			Set:   text(func(c *config.Config) *string { return &c.Zone })},
		{Name: "nodeport-addresses", Arg: "LIST", List: true, Group: groupBox,
			Shown: "every local one, but loopback, link-local ones and VIPs",
			Usage: "addresses that node ports answer on: CIDRs, interfaces with whatever addresses they get, or `primary` for the one the default route uses",
			Set:   parsed(config.ParseNodePortAddresses, func(c *config.Config) *config.NodePortAddresses { return &c.Addresses.NodePortAddresses })},
	}
}

func rangeSettings() []Setting {
	return []Setting{
		{Name: "service-cluster-ip-range", Arg: "CIDR[,CIDR]", List: true, Def: "10.96.0.0/16,fd00:10:96::/112", Group: groupRanges,
			Usage: "ranges of cluster IPs, at most one for each family, the primary family first",
			Set:   prefixes(func(c *config.Config) *[]netip.Prefix { return &c.Addresses.ClusterIPRanges })},
		{Name: "service-node-port-range", Arg: "A-B", Def: "30000-32767", Group: groupRanges,
			Usage: "range of node ports",
			Set:   single(config.ParsePortRange, func(c *config.Config) *config.PortRange { return &c.Addresses.NodePortRange })},
		{Name: "cluster-cidr", Arg: "CIDR[,CIDR]", List: true, Shown: "none", Group: groupRanges,
			Usage: "internal sources: never masqueraded towards VIPs, exempt from the policy Local",
			Set:   prefixes(func(c *config.Config) *[]netip.Prefix { return &c.Addresses.ClusterCIDRs })},
		{Name: "announce-table", Arg: "NUMBER", Def: "0", Shown: "none", ServeOnly: true, Group: groupRanges,
			Usage: "keep routes to announced addresses in this routing table, for a BIRD or FRR on the box to announce",
			Set:   single(config.ParseTable, func(c *config.Config) *int { return &c.AnnounceTable })},
		{Name: "load-balancer-pool", Arg: "CIDR|A-B", List: true, Shown: "none", Group: groupRanges,
			Usage: "addresses for Services of type LoadBalancer; repeatable",
			Set:   list(config.ParseAddrRanges, func(c *config.Config) *[]config.AddrRange { return &c.Addresses.LoadBalancerPools })},
		{Name: "load-balancer-internal-pool", Arg: "CIDR|A-B", List: true, Shown: "none", Group: groupRanges,
			Usage: "addresses for internal load balancers, which only internal clients reach; repeatable",
			Set:   list(config.ParseAddrRanges, func(c *config.Config) *[]config.AddrRange { return &c.Addresses.InternalPools })},
		{Name: "load-balancer-internal-from", Arg: "CIDR|INTERFACE", List: true, Shown: "--cluster-cidr alone", Group: groupRanges,
			Usage: "internal clients, besides --cluster-cidr: by prefix, or by the interface that they arrive on; repeatable",
			Set:   parsed(config.ParseInternalFrom, func(c *config.Config) *config.InternalFrom { return &c.Addresses.InternalFrom })},
		{Name: "cluster-ip-clients", Arg: "all|internal", Def: "all", Words: []string{"all", "internal"}, Group: groupRanges,
			Usage: "clients that reach cluster IPs: all with a route, or internal clients only",
			Set:   word(func(c *config.Config) *config.ClusterIPClients { return &c.Addresses.ClusterIPClients })},
		{Name: "external-ip-range", Arg: "CIDR|none", List: true, Group: groupRanges,
			Shown: "any without another use, and of it the named ports only",
			Usage: "externalIPs that are accepted, with all their ports, or `none`; repeatable",
			Set:   parsed(config.ParseExternalIPRanges, func(c *config.Config) *config.ExternalIPRanges { return &c.Addresses.ExternalIPRanges })},
	}
}

func serviceSettings() []Setting {
	return []Setting{
		{Name: "health-check-source-ports", Arg: "A-B|ephemeral", Def: "61000-61255", Group: groupServices, ServeOnly: true,
			Usage: "source ports of health checks, outside of net.ipv4.ip_local_port_range, or `ephemeral`",
			Set:   single(config.ParseSourcePorts, func(c *config.Config) *config.PortRange { return &c.Services.HealthCheckSourcePorts })},
		{Name: "relay-ports", Arg: "A-B", Def: "10270-10271", Group: groupServices,
			Usage: "two ports of this box that the kernel redirects clients of relayed Services to; the firewall of the box has to let them in",
			Set:   single(config.ParsePortRange, func(c *config.Config) *config.PortRange { return &c.Services.RelayPorts })},
		{Name: "nodeless-endpoints", Arg: "local|remote", Def: "local", Words: []string{"local", "remote"}, Group: groupServices,
			Usage: "locality of an endpoint without nodeName, for the policy Local",
			Set:   word(func(c *config.Config) *config.NodelessEndpoints { return &c.Services.NodelessEndpoints })},
		{Name: "balance", Arg: "ALGORITHM", Def: object.BalanceRandom, Words: object.BalanceNames(), Group: groupServices,
			Usage: "algorithm of Services without the annotation svcctl.io/balance",
			Set:   text(func(c *config.Config) *string { return &c.Services.Balance })},
		{Name: "snat", Arg: "auto|never", Def: "auto", Words: []string{"auto", "never"}, Group: groupServices,
			Usage: "which clients are masqueraded: auto, as Kubernetes does and those whose replies would bypass this box",
			Set:   word(func(c *config.Config) *config.SNATMode { return &c.Services.SNAT })},
		{Name: "masquerade-all", Group: groupServices, Shown: "false",
			Usage: "masquerade every client of a cluster IP",
			Set:   onOff(func(c *config.Config) *bool { return &c.Services.MasqueradeAll })},
		{Name: "vip-ping", Arg: "when-ready|always|never", Def: "when-ready", Words: []string{"when-ready", "always", "never"}, Group: groupServices,
			Usage: "whether a VIP answers ping: when-ready with usable endpoints only, else host unreachable",
			Set:   word(func(c *config.Config) *config.VIPPing { return &c.Services.VIPPing })},
		{Name: "source-ranges-apply", Arg: "load-balancer|all", Def: "load-balancer", Words: []string{"load-balancer", "all"}, Group: groupServices,
			Usage: "where loadBalancerSourceRanges apply: to load balancer IPs, or to node ports and external IPs too",
			Set:   word(func(c *config.Config) *config.SourceRangesApply { return &c.Services.SourceRangesApply })},
		{Name: "source-set", Arg: "NAME=FILE", List: true, Shown: "none", Group: groupServices,
			Usage: "a set of client prefixes, one a line of the file, that Services may name; repeatable",
			Set:   list(config.ParseSourceSets, func(c *config.Config) *[]config.SourceSet { return &c.Services.SourceSets })},
		{Name: "service-names", Arg: "rfc1035|rfc1123", Def: "rfc1035", Words: []string{"rfc1035", "rfc1123"}, Group: groupServices,
			Usage: "rule for names of Services: rfc1035 requires a letter first, rfc1123 accepts a digit too",
			Set:   word(func(c *config.Config) *config.ServiceNames { return &c.Services.Names })},
		{Name: "node-port-space", Arg: "per-protocol|shared", Def: "per-protocol", Words: []string{"per-protocol", "shared"}, Group: groupServices,
			Usage: "whether two Services may have one node port for different protocols; shared: no, as in Kubernetes",
			Set:   word(func(c *config.Config) *config.NodePortSpace { return &c.Addresses.NodePortSpace })},
		{Name: "allocate", Arg: "auto|never", Def: "auto", Words: []string{"auto", "never"}, Group: groupRanges,
			Usage: "whether missing cluster IPs, node ports and load balancer IPs are allocated: never refuses Services that do not name theirs; see `svcctl admin pin`",
			Set:   word(func(c *config.Config) *config.Allocate { return &c.Addresses.Allocate })},
		{Name: "legacy-ip", Arg: "refuse|accept", Def: "refuse", Words: []string{"refuse", "accept"}, Group: groupServices,
			Usage: "addresses with leading zeros, as 172.30.0.041: accept reads them as decimal",
			Set:   word(func(c *config.Config) *config.LegacyIP { return &c.Services.LegacyIP })},
		{Name: "connection-log", Arg: "FILE|journal", Shown: "off", Group: groupServices, ServeOnly: true,
			Usage: "write a line for each ended connection of Services with the annotation svcctl.io/connection-log; implies `--traffic flows`",
			Set:   text(func(c *config.Config) *string { return &c.Services.ConnectionLog })},
		{Name: "traffic", Arg: "counters|flows|off", Def: "counters", Words: []string{"counters", "flows", "off"}, Group: groupServices,
			Usage: "what is counted for `svcctl top` and Prometheus: connections and refusals of Services; flows, connections and bytes of endpoints too",
			Set:   word(func(c *config.Config) *config.Traffic { return &c.Services.Traffic })},
	}
}

func dnsSettings() []Setting {
	return []Setting{
		{Name: "dns-listen", Arg: "HOST:PORT", List: true, Shown: "off", Group: groupDNS, ServeOnly: true,
			Usage: "address of the DNS server for Services, over UDP and TCP; repeatable",
			Set:   texts(func(c *config.Config) *[]string { return &c.DNS.Listen })},
		{Name: "cluster-domain", Arg: "DOMAIN", Def: config.DefaultClusterDomain, Group: groupDNS, ServeOnly: true,
			Usage: "the domain of these names: SERVICE.NAMESPACE.svc.DOMAIN",
			Set:   text(func(c *config.Config) *string { return &c.DNS.Domain })},
		{Name: "dns-upstream", Arg: "ADDR:PORT", List: true, Shown: "none", Group: groupDNS, ServeOnly: true,
			Usage: "resolver for other names, for clients on this box and in --cluster-cidr; repeatable, the best one first",
			Set:   list(config.ParseAddrPorts, func(c *config.Config) *[]netip.AddrPort { return &c.DNS.Upstreams })},
		{Name: "dns-client-namespaces", Arg: "CIDR=NAMESPACE", List: true, Shown: "none", Group: groupDNS, ServeOnly: true,
			Usage: "DNS clients that resolve Services of a namespace by their short names; repeatable",
			Set:   list(config.ParseClientNamespaces, func(c *config.Config) *[]config.ClientNamespace { return &c.DNS.ClientNamespaces })},
	}
}

func LogSettings() []Setting {
	return []Setting{
		{Name: "log-level", Arg: "LEVEL", Def: "info", Words: logLevels, Group: groupLog, ServeOnly: true,
			Usage: "lowest level that is logged: debug, info, warn or error",
			Set:   single(parseLogLevel, func(c *config.Config) *slog.Level { return &c.Log.Level })},
		{Name: "log-format", Arg: "text|json", Def: "text", Words: []string{"text", "json"}, Group: groupLog, ServeOnly: true,
			Usage: "format of log lines on stderr",
			Set:   word(func(c *config.Config) *config.LogFormat { return &c.Log.Format })},
	}
}

// Env returns the environment variable of a setting: SVCCTL_NODE_NAME.
func (s *Setting) Env() string {
	return "SVCCTL_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Key returns the key of a setting in the configuration file: nodeName. Abbreviations
// that are not the first word keep their capitals, as in Kubernetes: clusterCIDR.
func (s *Setting) Key() string {
	var b strings.Builder
	for i, part := range strings.Split(s.Name, "-") {
		switch {
		case i == 0:
			b.WriteString(part)
		case part == "ip" || part == "cidr":
			b.WriteString(strings.ToUpper(part))
		default:
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// Option is the flag of a setting.
func (s *Setting) Option() *cli.Option {
	o := &cli.Option{Name: s.Name, Arg: s.Arg, Usage: s.Usage, Def: s.Def, Env: s.Env(), Key: s.Key(), Group: s.Group, Words: s.Words, Repeats: s.List}
	if s.Shown != "" {
		o.Def = s.Shown
	}
	return o
}

// Split parts the values of a list setting at commas.
func (s *Setting) Split(text string) []string {
	if !s.List {
		return []string{text}
	}
	if strings.TrimSpace(text) == "" {
		return []string{}
	}
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// The ways a setting's text gets into its field.

func text(field func(*config.Config) *string) func(*config.Config, []string) error {
	return word(field)
}

func word[T ~string](field func(*config.Config) *T) func(*config.Config, []string) error {
	return func(c *config.Config, texts []string) error {
		*field(c) = T(texts[len(texts)-1])
		return nil
	}
}

func texts(field func(*config.Config) *[]string) func(*config.Config, []string) error {
	return func(c *config.Config, texts []string) error {
		*field(c) = texts
		return nil
	}
}

func onOff(field func(*config.Config) *bool) func(*config.Config, []string) error {
	return single(func(text string) (bool, error) {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return false, fmt.Errorf("%q is neither true nor false", text)
		}
		return on, nil
	}, field)
}

func prefixes(field func(*config.Config) *[]netip.Prefix) func(*config.Config, []string) error {
	return list(config.ParsePrefixes, field)
}

// list keeps the good entries of a list that has bad ones, so that they are judged too.
func list[T any](parse func([]string) ([]T, error), field func(*config.Config) *[]T) func(*config.Config, []string) error {
	return func(c *config.Config, texts []string) error {
		v, err := parse(texts)
		if err == nil || len(v) > 0 {
			*field(c) = v
		}
		return err
	}
}

func parsed[T any](parse func([]string) (T, error), field func(*config.Config) *T) func(*config.Config, []string) error {
	return func(c *config.Config, texts []string) error {
		v, err := parse(texts)
		if err == nil {
			*field(c) = v
		}
		return err
	}
}

func single[T any](parse func(string) (T, error), field func(*config.Config) *T) func(*config.Config, []string) error {
	return parsed(func(texts []string) (T, error) { return parse(texts[len(texts)-1]) }, field)
}

// logLevels are the words of --log-level.
var logLevels = []string{"debug", "info", "warn", "error"}

// parseLogLevel reads a level; slog's own forms, as INFO+2, are not among them.
func parseLogLevel(text string) (slog.Level, error) {
	var level slog.Level
	if !slices.Contains(logLevels, text) {
		return level, fmt.Errorf("%q is not a level: give one of %s", text, strings.Join(logLevels, ", "))
	}
	return level, level.UnmarshalText([]byte(text))
}
