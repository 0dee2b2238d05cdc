package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Config holds the settings of the appliance. Its fields, and those of its groups, are set by the flags of `svcctl serve`. Default returns
// their defaults, Validate checks them. A Config does not change after the appliance has started.
type Config struct {
	// Version is the version of the program, as v0.1.0. It is not a flag.
	Version string
	// ObjectPools has the address pools declared by objects, which change at run time. It is not a
	// flag.
	ObjectPools *ObjectPools

	// Manifests lists the directories of manifests, which are watched recursively (--manifests).
	Manifests []string
	// AllowMassRemoval removes objects as soon as they vanish from the manifests, even if that removes most Services (--allow-mass-removal).
	AllowMassRemoval bool
	// DataDir is the directory of objects, allocations and the last valid copies of manifest files (--data-dir).
	DataDir string
	// DataKeyFile is the file of the key that encrypts the data file (--data-key-file), 32 bytes in base64; "" disables encryption.
	DataKeyFile string

	// NodeName is the name of this box: endpoints with this nodeName are local (--node-name).
	NodeName string
	// Zone is the topology zone of the box (--zone); empty if it has none.
	Zone string
	// AnnounceTable is the ID of the kernel routing table that gets routes to announced addresses, for a routing daemon (--announce-table); 0
	// disables it.
	AnnounceTable int

	API       API
	Fleet     Fleet
	Addresses Addresses
	Services  Services
	DNS       DNS
	Log       Log
}

// API configures the listeners of the API and the users of its socket.
type API struct {
	// Socket is the path of the unix socket (--socket).
	Socket string
	// SocketGroup is the name or number of the group whose members have full access through the socket (--socket-group); empty for none.
	SocketGroup string
	// SocketReaders gives every user of the box read access through the socket (--socket-readers).
	SocketReaders bool
	// Listen is the host:port on which the API is served over TLS (--listen); empty disables it.
	Listen string
	// TLSCert and TLSKey are the PEM files of the certificate for Listen and its key (--tls-cert, --tls-key). If they are empty, the appliance
	// creates a CA and a certificate.
	TLSCert, TLSKey string
	// MetricsListen is the host:port of /metrics, /healthz and /readyz over plain HTTP (--metrics-listen); empty disables them.
	MetricsListen string
}

// Fleet configures how objects are shared with other boxes: by etcd, or for a leaf by the API of core boxes.
type Fleet struct {
	// Name is the name of the fleet (--fleet); empty if the box is not in a fleet and keeps its own objects.
	Name string
	// Etcd lists the client URLs of the etcd members (--etcd).
	Etcd []string
	// CACert, Cert and Key are PEM files: the CA of etcd's certificates (empty: the system's
	// roots), and the box's own certificate with its key (--etcd-cacert, --etcd-cert, --etcd-key).
	CACert, Cert, Key string
	// Cores lists the API URLs of the core boxes, for a leaf, which has no Etcd (--core). CoreCACert, CoreCert and CoreKey are PEM files like
	// CACert, Cert and Key (--core-cacert, --core-cert, --core-key).
	Cores                         []string
	CoreCACert, CoreCert, CoreKey string
	// LeafCACert is the PEM file of the CA that signs the certificates of leaves (--leaf-cacert); if it is empty, no leaf can connect.
	// LeafWrites lets admins on leaves change objects (--leaf-writes).
	LeafCACert string
	LeafWrites bool
	// KeyFile is the file of the keys that encrypt the Secrets of the fleet (--fleet-key-file): 32 bytes in base64, one key a line. The first
	// key encrypts; all keys decrypt. If it is empty, the box accepts no Secrets.
	KeyFile string
}

// Addresses configures the ranges of addresses and ports of Services, and their allocation.
type Addresses struct {
	// ClusterIPRanges lists the ranges of cluster IPs: one prefix, or one for each family with the primary family first
	// (--service-cluster-ip-range).
	ClusterIPRanges []netip.Prefix
	// NodePortRange is the range of node ports (--service-node-port-range).
	NodePortRange PortRange
	// NodePortAddresses selects the addresses of the box on which node ports answer (--nodeport-addresses).
	NodePortAddresses NodePortAddresses
	// NodePortSpace selects whether all protocols share the node port numbers, or each has its own (--node-port-space).
	NodePortSpace NodePortSpace
	// ClusterCIDRs lists the prefixes of internal clients (--cluster-cidr); may be empty. Their connections to VIPs are never masqueraded, and
	// the policy Local does not apply to them.
	ClusterCIDRs []netip.Prefix
	// LoadBalancerPools lists the ranges of load balancer IPs (--load-balancer-pool); if it is empty, none are allocated.
	LoadBalancerPools []nft.Range
	// InternalPools lists the ranges of the IPs of internal load balancers, which only clients in InternalFrom and ClusterCIDRs can reach
	// (--load-balancer-internal-pool); if it is empty, none are allocated.
	InternalPools []nft.Range
	// InternalFrom selects the clients, in addition to ClusterCIDRs, that can reach InternalPools (--load-balancer-internal-from).
	InternalFrom InternalFrom
	// ClusterIPClients selects the clients that can reach cluster IPs (--cluster-ip-clients).
	ClusterIPClients ClusterIPClients
	// ExternalIPRanges lists the ranges of accepted externalIPs, which are reserved for Services as a whole (--external-ip-range). If it is
	// empty, an externalIP may be any address without another use, and only the ports of its Services are reserved.
	ExternalIPRanges ExternalIPRanges
	// EgressFrom lists the prefixes of the hosts that may use a Service's address as the source of their outgoing connections (--egress-from);
	// may be empty.
	EgressFrom []netip.Prefix
	// Allocate enables the allocation of missing addresses and ports (--allocate).
	Allocate Allocate
}

// Services has the defaults and options that apply to all Services.
type Services struct {
	// NodelessEndpoints selects whether endpoints without nodeName count as local for the policy Local (--nodeless-endpoints).
	NodelessEndpoints NodelessEndpoints
	// Balance is the default balancing algorithm, a value of the annotation svcctl.io/balance (--balance).
	Balance string
	// SNAT selects the clients that are masqueraded (--snat).
	SNAT SNATMode
	// MasqueradeAll masquerades every client of a cluster IP (--masquerade-all).
	MasqueradeAll bool
	// VIPPing selects when VIPs answer ICMP echo requests (--vip-ping).
	VIPPing VIPPing
	// SourceRangesApply selects the addresses that loadBalancerSourceRanges protect (--source-ranges-apply).
	SourceRangesApply SourceRangesApply
	// SourceSets lists named sets of client prefixes to which Services may refer, each with its file (--source-set).
	SourceSets []SourceSet
	// Names selects the valid syntax of Service names (--service-names).
	Names ServiceNames
	// LegacyIP selects whether addresses with leading zeros are accepted (--legacy-ip).
	LegacyIP LegacyIP
	// Traffic selects which connection counters are kept (--traffic).
	Traffic Traffic
	// FastPath selects the Services for which established connections use a flowtable and bypass the rules (--fast-path).
	FastPath FastPath
	// ConnectionLog is the file, or "journal", to which a line is written for each ended connection of the Services that request it
	// (--connection-log); empty disables the log.
	ConnectionLog string
	// HealthCheckSourcePorts is the range of source ports of health checks (--health-check-source-ports). If it is zero, the kernel chooses the
	// ports.
	HealthCheckSourcePorts PortRange
	// RelayPorts are the two ports of the box to which connections to relayed Services are redirected: the first for all endpoints, the second
	// for local endpoints only (policy Local) (--relay-ports).
	RelayPorts PortRange
}

// DNS configures the DNS server for Service names.
type DNS struct {
	// Listen lists the host:port addresses on which the server answers over UDP and TCP (--dns-listen); empty disables it.
	Listen []string
	// Domain is the parent domain of Service names, without a trailing dot (--cluster-domain).
	Domain string
	// Upstreams lists the resolvers for all other names (--dns-upstream). If it is empty, queries for them are refused.
	Upstreams []netip.AddrPort
	// ClientNamespaces maps prefixes of DNS clients to namespaces (--dns-client-namespaces).
	ClientNamespaces []ClientNamespace
}

// Log configures the log of the program.
type Log struct {
	// Level is the minimum level that is logged (--log-level).
	Level slog.Level
	// Format is the format of log lines (--log-format).
	Format LogFormat
	// Queue buffers the log. Its losses are a metric, and it is flushed before the process exits on its own. If it is nil, the log is written
	// directly. It is not a flag.
	Queue *logqueue.Queue
}

// Traffic selects which connection counters are kept.
type Traffic string

const (
	TrafficCounters Traffic = "counters" // connections and refusals of each frontend, and refusals by reason
	TrafficFlows    Traffic = "flows"    // as TrafficCounters, and connections and bytes of each endpoint, from conntrack events
	TrafficOff      Traffic = "off"      // no counters
)

// ReadsFlows reports whether conntrack events of the kernel are read: for totals of connections or for the connection log.
func (s *Services) ReadsFlows() bool { return s.Traffic == TrafficFlows || s.ConnectionLog != "" }

// NodelessEndpoints selects whether endpoints without a nodeName count as local.
type NodelessEndpoints string

const (
	NodelessLocal  NodelessEndpoints = "local"
	NodelessRemote NodelessEndpoints = "remote" // as in kube-proxy
)

// SNATMode selects the clients that are masqueraded. Hairpin connections are masqueraded in every mode.
type SNATMode string

const (
	// SNATAuto follows Kubernetes' rules, and also masquerades clients on the same link as an endpoint, because replies to them would bypass
	// the box.
	SNATAuto SNATMode = "auto"
	// SNATNever keeps the source addresses of all other clients.
	SNATNever SNATMode = "never"
)

// ClusterIPClients selects the clients that can reach cluster IPs.
type ClusterIPClients string

// The values of ClusterIPClients.
const (
	ClusterIPAll      ClusterIPClients = "all"      // as in kube-proxy: any client with a route
	ClusterIPInternal ClusterIPClients = "internal" // the box itself, and clients in ClusterCIDRs and InternalFrom
)

// VIPPing selects when a VIP answers ICMP echo requests.
type VIPPing string

const (
	VIPPingWhenReady VIPPing = "when-ready" // echo reply if there are usable endpoints, otherwise host unreachable
	VIPPingAlways    VIPPing = "always"     // echo reply
	VIPPingNever     VIPPing = "never"      // no reply
)

// SourceRangesApply selects the frontends that a Service's loadBalancerSourceRanges restrict.
type SourceRangesApply string

const (
	SourceRangesLoadBalancer SourceRangesApply = "load-balancer" // load balancer IPs only, as in Kubernetes
	SourceRangesAll          SourceRangesApply = "all"           // node ports and external IPs as well
)

// SourceSet is a named set of client prefixes. File lists the prefixes, one a line.
type SourceSet struct{ Name, File string }

// ServiceNames selects the syntax that names of Services must follow.
type ServiceNames string

const (
	ServiceNamesRFC1035 ServiceNames = "rfc1035" // must begin with a letter
	ServiceNamesRFC1123 ServiceNames = "rfc1123" // must begin with a letter or a digit
)

// NodePortSpace selects whether a node port number is reserved for all protocols at once, or separately for each protocol.
type NodePortSpace string

const (
	NodePortPerProtocol NodePortSpace = "per-protocol" // 30053/TCP and 30053/UDP may belong to different Services
	NodePortShared      NodePortSpace = "shared"       // a port number belongs to one Service only, as in Kubernetes
)

// Allocate selects whether cluster IPs, node ports and load balancer IPs are allocated, or must be named in Services.
type Allocate string

// The values of Allocate.
const (
	AllocateAuto  Allocate = "auto"  // allocated by the appliance, unless the Service specifies them
	AllocateNever Allocate = "never" // the Service must specify them, and is refused otherwise
)

// LegacyIP selects whether IPv4 addresses with leading zeros, such as 172.30.0.041, are accepted.
type LegacyIP string

const (
	LegacyIPRefuse LegacyIP = "refuse"
	LegacyIPAccept LegacyIP = "accept" // octets with leading zeros are read as decimal
)

// LogFormat is the format of log lines.
type LogFormat string

const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// Defaults that are used by documentation and tests.
const (
	DefaultDataDir = "/var/lib/svcctl"
	DefaultSocket  = "/run/svcctl/svcctl.sock"
	// DefaultClusterDomain is the domain of most Kubernetes clusters.
	DefaultClusterDomain = "cluster.local"
)

// Default returns the Config of `svcctl serve` without flags. NodeName is the host's name in lower
// case; it is empty, which Validate refuses, when the host has none.
func Default() Config {
	host, _ := os.Hostname() // the error has no more to say than the empty name
	return Config{
		DataDir:  DefaultDataDir,
		API:      API{Socket: DefaultSocket},
		NodeName: strings.ToLower(host),
		Addresses: Addresses{
			ClusterIPRanges: []netip.Prefix{
				netip.MustParsePrefix("10.96.0.0/16"),
				netip.MustParsePrefix("fd00:10:96::/112"),
			},
			NodePortRange:    PortRange{First: 30000, Last: 32767},
			NodePortSpace:    NodePortPerProtocol,
			ClusterIPClients: ClusterIPAll,
			Allocate:         AllocateAuto,
		},
		Services: Services{
			HealthCheckSourcePorts: PortRange{First: 61000, Last: 61255},
			RelayPorts:             PortRange{First: 10270, Last: 10271},
			NodelessEndpoints:      NodelessLocal,
			Balance:                object.BalanceRandom,
			SNAT:                   SNATAuto,
			VIPPing:                VIPPingWhenReady,
			SourceRangesApply:      SourceRangesLoadBalancer,
			Names:                  ServiceNamesRFC1035,
			LegacyIP:               LegacyIPRefuse,
			Traffic:                TrafficCounters, FastPath: FastPathOff,
		},
		DNS: DNS{Domain: DefaultClusterDomain},
		Log: Log{Level: slog.LevelInfo, Format: LogText},
	}
}

// validateFleet checks the settings that belong to --fleet.
func (c *Config) validateFleet(v *validation) {
	if c.Fleet.Name == "" {
		const unused = "it has no effect without --fleet: name the fleet, or leave it out"
		if c.Fleet.LeafWrites {
			v.add("leaf-writes", "true", unused)
		}
		v.refuse(unused, map[string]string{
			"etcd-cacert": c.Fleet.CACert, "etcd-cert": c.Fleet.Cert, "etcd-key": c.Fleet.Key, "fleet-key-file": c.Fleet.KeyFile,
			"core-cacert": c.Fleet.CoreCACert, "core-cert": c.Fleet.CoreCert, "core-key": c.Fleet.CoreKey, "leaf-cacert": c.Fleet.LeafCACert,
			"etcd": cmp.Or(c.Fleet.Etcd...), "core": cmp.Or(c.Fleet.Cores...),
		})
		return
	}
	if len(object.DNSLabelProblems(c.Fleet.Name)) > 0 {
		v.add("fleet", c.Fleet.Name, "it is no name of a fleet: take small letters, digits and dashes, at most 63")
	}
	if c.Fleet.LeafWrites && c.Fleet.LeafCACert == "" {
		v.add("leaf-writes", "true", "it has no effect without --leaf-cacert: name the CA of the leaves, or leave it out")
	}
	if len(c.Fleet.Cores) > 0 {
		c.validateLeaf(v)
		return
	}
	v.refuse("it has no effect without --core: name the core boxes, or leave it out",
		map[string]string{"core-cacert": c.Fleet.CoreCACert, "core-cert": c.Fleet.CoreCert, "core-key": c.Fleet.CoreKey})
	if c.Fleet.LeafCACert != "" && c.API.Listen == "" {
		v.add("leaf-cacert", c.Fleet.LeafCACert, "leaves follow this box over TLS: give --listen too, as :6443")
	}
	if len(c.Fleet.Etcd) == 0 {
		v.add("etcd", "", "a fleet keeps its objects in etcd: name its members, as https://etcd1:2379,https://etcd2:2379; a leaf names boxes that follow etcd with --core")
	}
	for _, endpoint := range c.Fleet.Etcd {
		if !isServer(endpoint, "http", "https") {
			v.add("etcd", endpoint, "it is no URL of a member of etcd: write https://HOST:2379, without a path")
		}
	}
	if (c.Fleet.Cert == "") != (c.Fleet.Key == "") {
		v.add("etcd-cert", c.Fleet.Cert, "--etcd-cert and --etcd-key belong together: give both")
	}
	named := map[string]bool{}
	for i, source := range c.ManifestSources() {
		switch {
		case len(object.DNSLabelProblems(source.Name)) > 0:
			v.add("manifests", c.Manifests[i], "in a fleet a directory has a name, which is the same on each box that reads it: write it as NAME=DIR, with small letters, digits and dashes in NAME")
		case strings.Contains(source.Dir, ",rollout="):
			v.add("manifests", c.Manifests[i], "the files of a source come to all boxes at once: write NAME=DIR, and have a pipeline run `svcctl apply --rollout` for what is to come in steps")
		case named[source.Name]:
			v.add("manifests", c.Manifests[i], "two directories of this box are named %s: give one of them another name", source.Name)
		}
		named[source.Name] = true
	}
}

// validateLeaf checks the settings of a leaf, and those that it must not have.
func (c *Config) validateLeaf(v *validation) {
	v.refuse("a box with --core is a leaf: it has no connection to etcd, and no box follows it: leave it out, or leave out --core", map[string]string{
		"etcd-cacert": c.Fleet.CACert, "etcd-cert": c.Fleet.Cert, "etcd-key": c.Fleet.Key, "leaf-cacert": c.Fleet.LeafCACert, "etcd": strings.Join(c.Fleet.Etcd, ","),
	})
	for _, core := range c.Fleet.Cores {
		if !isServer(core, "https") {
			v.add("core", core, "it is no URL of the API of a box: write https://HOST:6443, without a path")
		}
	}
	if c.Fleet.CoreCert == "" || c.Fleet.CoreKey == "" {
		v.add("core-cert", c.Fleet.CoreCert, "core boxes identify a leaf by its certificate: give --core-cert and --core-key, of the CA that they have in --leaf-cacert, with the --node-name as common name")
	}
	if len(c.Manifests) > 0 {
		v.add("manifests", c.Manifests[0], "a leaf reads no files for its fleet: give the directory to a core box, or run `svcctl apply`")
	}
}

// isServer reports whether text is a URL with one of the schemes and a host, but without path, query or user.
func isServer(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host != "" && u.Path == "" && u.RawQuery == "" && u.User == nil
}

// IsLeaf reports whether the box is a leaf: it gets its objects from core boxes and has no connection to etcd.
func (c *Config) IsLeaf() bool { return len(c.Fleet.Cores) > 0 }

// ManifestSource is a directory of manifests.
type ManifestSource struct {
	Name string // NAME of --manifests NAME=DIR in a fleet; otherwise ""
	Dir  string
}

// ManifestSources returns the watched directories. In a fleet each has the NAME given as NAME=DIR.
func (c *Config) ManifestSources() []ManifestSource {
	all := make([]ManifestSource, len(c.Manifests))
	for i, text := range c.Manifests {
		if c.Fleet.Name == "" {
			all[i].Dir = text
		} else if name, dir, named := strings.Cut(text, "="); named {
			all[i] = ManifestSource{name, dir}
		} else {
			all[i].Dir = text
		}
	}
	return all
}

// ManifestDirs returns the watched directories, without the names of their sources.
func (c *Config) ManifestDirs() []string {
	return object.Texts(c.ManifestSources(), func(s ManifestSource) string { return s.Dir })
}

// SourcePath returns a name for a manifest file that is the same on all boxes of a fleet: "NAME:PATH", with the source and the path
// relative to its directory. It returns "" if the file is outside of the directories or there is no fleet.
func (c *Config) SourcePath(path string) string {
	for _, s := range c.ManifestSources() {
		dir, err := filepath.Abs(s.Dir)
		if err != nil {
			continue
		}
		if relative, within := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/"); within && s.Name != "" {
			return store.SourcePath(s.Name, relative)
		}
	}
	return ""
}

// NodeOwner returns the owner under which the Node of this box is stored. In a fleet it contains the name of the box.
func (c *Config) NodeOwner() string {
	if c.Fleet.Name == "" {
		return control.NodeOwner
	}
	return control.NodeOwner + "/" + c.NodeName
}

// FleetSettings returns, as JSON, the settings that must be equal on all boxes of a fleet, because allocation and validation depend on
// them.
func (c *Config) FleetSettings() (json.RawMessage, error) {
	return json.Marshal(fleetSettings{
		object.Texts(c.Addresses.ClusterIPRanges, netip.Prefix.String), c.Addresses.NodePortRange.String(), string(c.Addresses.NodePortSpace),
		object.Texts(c.Addresses.LoadBalancerPools, nft.Range.String), object.Texts(c.Addresses.InternalPools, nft.Range.String),
		string(c.Services.Names), c.Addresses.Allocate == AllocateNever,
	})
}

// fleetSettings holds the settings that must be equal on all boxes of a fleet. The struct tag "flag" is the flag that error messages name.
type fleetSettings struct {
	ClusterIPs    []string `json:"serviceClusterIPRange" flag:"service-cluster-ip-range"`
	NodePorts     string   `json:"serviceNodePortRange" flag:"service-node-port-range"`
	Space         string   `json:"nodePortSpace" flag:"node-port-space"`
	Pools         []string `json:"loadBalancerPool,omitempty" flag:"load-balancer-pool"`
	InternalPools []string `json:"loadBalancerInternalPool,omitempty" flag:"load-balancer-internal-pool"`
	ServiceNames  string   `json:"serviceNames" flag:"service-names"`
	Pinned        bool     `json:"pinned,omitempty" flag:"allocate never"`
}

// FleetFlags returns the flag, without dashes, for each JSON field of FleetSettings.
func FleetFlags() map[string]string {
	flags := map[string]string{}
	for field := range reflect.TypeFor[fleetSettings]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flags[name] = field.Tag.Get("flag")
	}
	return flags
}

// EtcdTLS returns the TLS configuration for connections to etcd. The box's certificate is read again for each connection, so that it can be
// replaced; the CA is read once.
func (f *Fleet) EtcdTLS() (*tls.Config, error) { return clientTLS("etcd", f.CACert, f.Cert, f.Key) }

// CoreTLS returns the TLS configuration for connections to core boxes. It is like EtcdTLS.
func (f *Fleet) CoreTLS() (*tls.Config, error) {
	return clientTLS("core", f.CoreCACert, f.CoreCert, f.CoreKey)
}

// clientTLS returns a TLS configuration with the given CA, certificate and key files. flags is the prefix of the flags in error messages,
// such as "etcd" in --etcd-cacert.
func clientTLS(flags, ca, cert, key string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read --%s-cacert: %w", flags, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--%s-cacert %s has no certificate in PEM", flags, ca)
		}
	}
	if cert == "" {
		return t, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read --%s-cert and --%s-key: %w", flags, flags, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return t, nil
}
