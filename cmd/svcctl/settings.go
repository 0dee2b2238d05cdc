package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/store/object"
)

// setting is one field of config.Config or of a group of it: a flag, an environment variable and a
// key of the configuration file.
type setting struct {
	name  string // of the flag
	arg   string // what stands for the value in help; "" for a switch
	usage string
	def   string // the default; says the same as config.Default
	shown string // what help shows as the default instead of def
	group string
	words []string // the values it takes, when they are few
	// set reads the values given, one for a setting that is no list.
	set func(c *config.Config, texts []string) error
	// list settings take several values, parted by commas or given one by one.
	list bool
	// serveOnly settings mean nothing to `svcctl plan`.
	serveOnly bool
}

// The headings of help.
const (
	groupPlaces   = "Where things are"
	groupFleet    = "Many boxes"
	groupBox      = "Who this box is"
	groupRanges   = "Addresses and ports"
	groupServices = "How Services behave"
	groupDNS      = "Names"
	groupLog      = "Logging"
)

// settings returns all settings, in the order of help.
func settings() []setting {
	return slices.Concat(placeSettings(), fleetSettings(), leafSettings(), boxSettings(), rangeSettings(), serviceSettings(), dnsSettings(), logSettings())
}

func placeSettings() []setting {
	return []setting{
		{name: "manifests", arg: argDir, list: true, group: groupPlaces,
			usage: "directory of manifests (*.yaml, *.yml, *.json), read recursively and watched; repeatable; with --fleet as NAME=DIR, see `svcctl fleet source`",
			set:   texts(func(c *config.Config) *[]string { return &c.Manifests })},
		{name: "data-dir", arg: argDir, def: config.DefaultDataDir, group: groupPlaces, serveOnly: true,
			usage: "objects, allocations and the last good copy of every manifest",
			set:   text(func(c *config.Config) *string { return &c.DataDir })},
		{name: "data-key-file", arg: argFile, shown: "none", group: groupPlaces, serveOnly: true,
			usage: "encrypt the content of --data-dir by the key in this file, 32 bytes in base64, as a credential of systemd",
			set:   text(func(c *config.Config) *string { return &c.DataKeyFile })},
		{name: "socket", arg: argPath, def: config.DefaultSocket, group: groupPlaces, serveOnly: true,
			usage: "unix socket of the API; root has all rights, other users who can open it may read",
			set:   text(func(c *config.Config) *string { return &c.API.Socket })},
		{name: "socket-group", arg: "GROUP", shown: "none", group: groupPlaces, serveOnly: true,
			usage: "group whose members have all rights over the socket, as root has",
			set:   text(func(c *config.Config) *string { return &c.API.SocketGroup })},
		{name: "socket-readers", group: groupPlaces, shown: "false", serveOnly: true,
			usage: "let every user of this box read over the socket",
			set:   onOff(func(c *config.Config) *bool { return &c.API.SocketReaders })},
		{name: "listen", arg: "HOST:PORT", shown: "off", group: groupPlaces, serveOnly: true,
			usage: "serve the API there too, over TLS, for kubectl and other clients; see `svcctl admin kubeconfig`",
			set:   text(func(c *config.Config) *string { return &c.API.Listen })},
		{name: "tls-cert", arg: argFile, shown: "made by svcctl", group: groupPlaces, serveOnly: true,
			usage: "certificate for --listen, PEM, with those of its issuers after it; read again when it is replaced",
			set:   text(func(c *config.Config) *string { return &c.API.TLSCert })},
		{name: "tls-key", arg: argFile, shown: "made by svcctl", group: groupPlaces, serveOnly: true,
			usage: "key of --tls-cert, PEM",
			set:   text(func(c *config.Config) *string { return &c.API.TLSKey })},
		{name: "allow-mass-removal", group: groupPlaces, shown: "false", serveOnly: true,
			usage: "remove Services that vanish from the manifests at once, however many; see `svcctl confirm --removals`",
			set:   onOff(func(c *config.Config) *bool { return &c.AllowMassRemoval })},
		{name: "metrics-listen", arg: "HOST:PORT", shown: "off", group: groupPlaces, serveOnly: true,
			usage: "serve Prometheus /metrics, /healthz and /readyz there, in plain HTTP",
			set:   text(func(c *config.Config) *string { return &c.API.MetricsListen })},
	}
}

// fleetSettings returns the settings of a box that shares its objects, and of the verbs that look
// at a fleet.
func fleetSettings() []setting {
	return []setting{
		{name: "fleet", arg: "NAME", shown: "none", group: groupFleet, serveOnly: true,
			usage: "share the objects with the other boxes of this fleet, in etcd; see `svcctl fleet`",
			set:   text(func(c *config.Config) *string { return &c.Fleet.Name })},
		{name: "etcd", arg: "URL[,URL]", list: true, shown: "none", group: groupFleet, serveOnly: true,
			usage: "members of etcd, as https://10.0.0.1:2379; repeatable",
			set:   texts(func(c *config.Config) *[]string { return &c.Fleet.Etcd })},
		{name: "etcd-cacert", arg: argFile, shown: "those of the system", group: groupFleet, serveOnly: true,
			usage: "CA of the certificates of etcd, PEM",
			set:   text(func(c *config.Config) *string { return &c.Fleet.CACert })},
		{name: "etcd-cert", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "certificate of this box for etcd, PEM; read again for each connection",
			set:   text(func(c *config.Config) *string { return &c.Fleet.Cert })},
		{name: "etcd-key", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "key of --etcd-cert, PEM",
			set:   text(func(c *config.Config) *string { return &c.Fleet.Key })},
		{name: "fleet-key-file", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "keys that all boxes of the fleet have, by which its Secrets are sealed and its tokens shared: 32 bytes in base64 a line, the first one seals; without it Secrets are refused",
			set:   text(func(c *config.Config) *string { return &c.Fleet.KeyFile })},
	}
}

// leafSettings returns the settings of a box that follows a box of its fleet, and of one that is followed.
func leafSettings() []setting {
	return []setting{
		{name: "core", arg: "URL[,URL]", list: true, shown: "none", group: groupFleet, serveOnly: true,
			usage: "be a leaf of the fleet: follow one of these boxes instead of etcd, as https://10.0.0.1:6443; repeatable",
			set:   texts(func(c *config.Config) *[]string { return &c.Fleet.Cores })},
		{name: "core-cacert", arg: argFile, shown: "those of the system", group: groupFleet, serveOnly: true,
			usage: "CA of the server certificates of --core boxes, PEM",
			set:   text(func(c *config.Config) *string { return &c.Fleet.CoreCACert })},
		{name: "core-cert", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "certificate of this leaf, PEM, with its --node-name as common name; read again for each connection",
			set:   text(func(c *config.Config) *string { return &c.Fleet.CoreCert })},
		{name: "core-key", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "key of --core-cert, PEM",
			set:   text(func(c *config.Config) *string { return &c.Fleet.CoreKey })},
		{name: "leaf-cacert", arg: argFile, shown: "none", group: groupFleet, serveOnly: true,
			usage: "allow leaves with certificates of this CA to follow this box over --listen, PEM; may include its revocation lists",
			set:   text(func(c *config.Config) *string { return &c.Fleet.LeafCACert })},
		{name: "leaf-writes", group: groupFleet, shown: "false", serveOnly: true,
			usage: "allow the admins of these leaves to change the objects of the fleet, through their leaf",
			set:   onOff(func(c *config.Config) *bool { return &c.Fleet.LeafWrites })},
	}
}

func boxSettings() []setting {
	return []setting{
		{name: "node-name", arg: "NAME", shown: "the host name", group: groupBox,
			usage: "endpoints with this nodeName are local",
			set:   text(func(c *config.Config) *string { return &c.NodeName })},
		{name: "zone", arg: "NAME", shown: "none", group: groupBox,
			usage: "topology zone of this box, for endpoints with zone hints",
			set:   text(func(c *config.Config) *string { return &c.Zone })},
		{name: "nodeport-addresses", arg: "LIST", list: true, group: groupBox,
			shown: "every local one, but loopback, link-local ones and VIPs",
			usage: "addresses that node ports answer on: CIDRs, or `primary` for the one the default route uses",
			set:   parsed(config.ParseNodePortAddresses, func(c *config.Config) *config.NodePortAddresses { return &c.Addresses.NodePortAddresses })},
	}
}

func rangeSettings() []setting {
	return []setting{
		{name: "service-cluster-ip-range", arg: "CIDR[,CIDR]", list: true, def: "10.96.0.0/16,fd00:10:96::/112", group: groupRanges,
			usage: "ranges of cluster IPs, at most one for each family, the primary family first",
			set:   prefixes(func(c *config.Config) *[]netip.Prefix { return &c.Addresses.ClusterIPRanges })},
		{name: "service-node-port-range", arg: "A-B", def: "30000-32767", group: groupRanges,
			usage: "range of node ports",
			set:   single(config.ParsePortRange, func(c *config.Config) *config.PortRange { return &c.Addresses.NodePortRange })},
		{name: "cluster-cidr", arg: "CIDR[,CIDR]", list: true, shown: "none", group: groupRanges,
			usage: "internal sources: never masqueraded towards VIPs, exempt from the policy Local",
			set:   prefixes(func(c *config.Config) *[]netip.Prefix { return &c.Addresses.ClusterCIDRs })},
		{name: "announce-table", arg: "NUMBER", def: "0", shown: "none", serveOnly: true, group: groupRanges,
			usage: "keep routes to announced addresses in this routing table, for a BIRD or FRR on the box to announce",
			set:   single(config.ParseTable, func(c *config.Config) *int { return &c.AnnounceTable })},
		{name: "load-balancer-pool", arg: "CIDR|A-B", list: true, shown: "none", group: groupRanges,
			usage: "addresses for Services of type LoadBalancer; repeatable",
			set:   list(config.ParseAddrRanges, func(c *config.Config) *[]config.AddrRange { return &c.Addresses.LoadBalancerPools })},
		{name: "load-balancer-internal-pool", arg: "CIDR|A-B", list: true, shown: "none", group: groupRanges,
			usage: "addresses for internal load balancers, which only internal clients reach; repeatable",
			set:   list(config.ParseAddrRanges, func(c *config.Config) *[]config.AddrRange { return &c.Addresses.InternalPools })},
		{name: "load-balancer-internal-from", arg: "CIDR|INTERFACE", list: true, shown: "--cluster-cidr alone", group: groupRanges,
			usage: "internal clients, besides --cluster-cidr: by prefix, or by the interface that they arrive on; repeatable",
			set:   parsed(config.ParseInternalFrom, func(c *config.Config) *config.InternalFrom { return &c.Addresses.InternalFrom })},
		{name: "cluster-ip-clients", arg: "all|internal", def: "all", words: []string{"all", "internal"}, group: groupRanges,
			usage: "clients that reach cluster IPs: all with a route, or internal clients only",
			set:   word(func(c *config.Config) *config.ClusterIPClients { return &c.Addresses.ClusterIPClients })},
		{name: "external-ip-range", arg: "CIDR|none", list: true, group: groupRanges,
			shown: "any without another use, and of it the named ports only",
			usage: "externalIPs that are accepted, with all their ports, or `none`; repeatable",
			set:   parsed(config.ParseExternalIPRanges, func(c *config.Config) *config.ExternalIPRanges { return &c.Addresses.ExternalIPRanges })},
	}
}

func serviceSettings() []setting {
	return []setting{
		{name: "health-check-source-ports", arg: "A-B|ephemeral", def: "61000-61255", group: groupServices, serveOnly: true,
			usage: "source ports of health checks, outside of net.ipv4.ip_local_port_range, or `ephemeral`",
			set:   single(config.ParseSourcePorts, func(c *config.Config) *config.PortRange { return &c.Services.HealthCheckSourcePorts })},
		{name: "relay-ports", arg: "A-B", def: "10270-10271", group: groupServices,
			usage: "two ports of this box that the kernel redirects clients of relayed Services to; the firewall of the box has to let them in",
			set:   single(config.ParsePortRange, func(c *config.Config) *config.PortRange { return &c.Services.RelayPorts })},
		{name: "nodeless-endpoints", arg: "local|remote", def: "local", words: []string{"local", "remote"}, group: groupServices,
			usage: "locality of an endpoint without nodeName, for the policy Local",
			set:   word(func(c *config.Config) *config.NodelessEndpoints { return &c.Services.NodelessEndpoints })},
		{name: "balance", arg: "ALGORITHM", def: object.BalanceRandom, words: object.BalanceNames(), group: groupServices,
			usage: "algorithm of Services without the annotation svcctl.io/balance",
			set:   text(func(c *config.Config) *string { return &c.Services.Balance })},
		{name: "snat", arg: "auto|never", def: "auto", words: []string{"auto", "never"}, group: groupServices,
			usage: "which clients are masqueraded: auto, as Kubernetes does and those whose replies would bypass this box",
			set:   word(func(c *config.Config) *config.SNATMode { return &c.Services.SNAT })},
		{name: "masquerade-all", group: groupServices, shown: "false",
			usage: "masquerade every client of a cluster IP",
			set:   onOff(func(c *config.Config) *bool { return &c.Services.MasqueradeAll })},
		{name: "vip-ping", arg: "when-ready|always|never", def: "when-ready", words: []string{"when-ready", "always", "never"}, group: groupServices,
			usage: "whether a VIP answers ping: when-ready with usable endpoints only, else host unreachable",
			set:   word(func(c *config.Config) *config.VIPPing { return &c.Services.VIPPing })},
		{name: "source-ranges-apply", arg: "load-balancer|all", def: "load-balancer", words: []string{"load-balancer", "all"}, group: groupServices,
			usage: "where loadBalancerSourceRanges apply: to load balancer IPs, or to node ports and external IPs too",
			set:   word(func(c *config.Config) *config.SourceRangesApply { return &c.Services.SourceRangesApply })},
		{name: "source-set", arg: "NAME=FILE", list: true, shown: "none", group: groupServices,
			usage: "a set of client prefixes, one a line of the file, that Services may name; repeatable",
			set:   list(config.ParseSourceSets, func(c *config.Config) *[]config.SourceSet { return &c.Services.SourceSets })},
		{name: "service-names", arg: "rfc1035|rfc1123", def: "rfc1035", words: []string{"rfc1035", "rfc1123"}, group: groupServices,
			usage: "rule for names of Services: rfc1035 requires a letter first, rfc1123 accepts a digit too",
			set:   word(func(c *config.Config) *config.ServiceNames { return &c.Services.Names })},
		{name: "node-port-space", arg: "per-protocol|shared", def: "per-protocol", words: []string{"per-protocol", "shared"}, group: groupServices,
			usage: "whether two Services may have one node port for different protocols; shared: no, as in Kubernetes",
			set:   word(func(c *config.Config) *config.NodePortSpace { return &c.Addresses.NodePortSpace })},
		{name: "allocate", arg: "auto|never", def: "auto", words: []string{"auto", "never"}, group: groupRanges,
			usage: "whether missing cluster IPs, node ports and load balancer IPs are allocated: never refuses Services that do not name theirs; see `svcctl admin pin`",
			set:   word(func(c *config.Config) *config.Allocate { return &c.Addresses.Allocate })},
		{name: "legacy-ip", arg: "refuse|accept", def: "refuse", words: []string{"refuse", "accept"}, group: groupServices,
			usage: "addresses with leading zeros, as 172.30.0.041: accept reads them as decimal",
			set:   word(func(c *config.Config) *config.LegacyIP { return &c.Services.LegacyIP })},
		{name: "connection-log", arg: "FILE|journal", shown: "off", group: groupServices, serveOnly: true,
			usage: "write a line for each ended connection of Services with the annotation svcctl.io/connection-log; implies `--traffic flows`",
			set:   text(func(c *config.Config) *string { return &c.Services.ConnectionLog })},
		{name: "traffic", arg: "counters|flows|off", def: "counters", words: []string{"counters", "flows", "off"}, group: groupServices,
			usage: "what is counted for `svcctl top` and Prometheus: connections and refusals of Services; flows, connections and bytes of endpoints too",
			set:   word(func(c *config.Config) *config.Traffic { return &c.Services.Traffic })},
	}
}

func dnsSettings() []setting {
	return []setting{
		{name: "dns-listen", arg: "HOST:PORT", list: true, shown: "off", group: groupDNS, serveOnly: true,
			usage: "address of the DNS server for Services, over UDP and TCP; repeatable",
			set:   texts(func(c *config.Config) *[]string { return &c.DNS.Listen })},
		{name: "cluster-domain", arg: "DOMAIN", def: config.DefaultClusterDomain, group: groupDNS, serveOnly: true,
			usage: "the domain of these names: SERVICE.NAMESPACE.svc.DOMAIN",
			set:   text(func(c *config.Config) *string { return &c.DNS.Domain })},
		{name: "dns-upstream", arg: "ADDR:PORT", list: true, shown: "none", group: groupDNS, serveOnly: true,
			usage: "resolver for other names, for clients on this box and in --cluster-cidr; repeatable, the best one first",
			set:   list(config.ParseAddrPorts, func(c *config.Config) *[]netip.AddrPort { return &c.DNS.Upstreams })},
		{name: "dns-client-namespaces", arg: "CIDR=NAMESPACE", list: true, shown: "none", group: groupDNS, serveOnly: true,
			usage: "DNS clients that resolve Services of a namespace by their short names; repeatable",
			set:   list(config.ParseClientNamespaces, func(c *config.Config) *[]config.ClientNamespace { return &c.DNS.ClientNamespaces })},
	}
}

func logSettings() []setting {
	return []setting{
		{name: "log-level", arg: "LEVEL", def: "info", words: logLevels, group: groupLog, serveOnly: true,
			usage: "lowest level that is logged: debug, info, warn or error",
			set:   single(parseLogLevel, func(c *config.Config) *slog.Level { return &c.Log.Level })},
		{name: "log-format", arg: "text|json", def: "text", words: []string{"text", "json"}, group: groupLog, serveOnly: true,
			usage: "format of log lines on stderr",
			set:   word(func(c *config.Config) *config.LogFormat { return &c.Log.Format })},
	}
}

// env is the environment variable of a setting: SVCCTL_NODE_NAME.
func (s *setting) env() string {
	return "SVCCTL_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// key is the key of a setting in the configuration file: nodeName. Abbreviations
// that are not the first word keep their capitals, as in Kubernetes: clusterCIDR.
func (s *setting) key() string {
	var b strings.Builder
	for i, part := range strings.Split(s.name, "-") {
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

// option is the flag of a setting.
func (s *setting) option() *option {
	o := &option{name: s.name, arg: s.arg, usage: s.usage, def: s.def, env: s.env(), key: s.key(), group: s.group, words: s.words, repeats: s.list}
	if s.shown != "" {
		o.def = s.shown
	}
	return o
}

// split parts the values of a list setting at commas.
func (s *setting) split(text string) []string {
	if !s.list {
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
