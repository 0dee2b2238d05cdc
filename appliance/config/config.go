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
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Config holds the settings of the appliance. Its fields, and those of its groups, are the flags of `svcctl serve`. Default returns their
// defaults, Validate checks them. A Config is not changed once the appliance runs.
type Config struct {
	// Version is the version of the program, as v0.1.0. It is not a flag.
	Version string
	// ObjectPools has the address pools declared by objects, which change at run time. It is not a
	// flag.
	ObjectPools *ObjectPools

	// Manifests are the directories that are watched, read recursively (--manifests).
	Manifests []string
	// AllowMassRemoval removes at once what vanishes from the manifests, even if it is most of the Services (--allow-mass-removal).
	AllowMassRemoval bool
	// DataDir is the directory of objects, allocations and last good copies (--data-dir).
	DataDir string
	// DataKeyFile names the file of the key that encrypts the data file (--data-key-file), 32 bytes in base64; "":
	// it is not encrypted.
	DataKeyFile string

	// NodeName is the name of this box: endpoints with this nodeName are local (--node-name).
	NodeName string
	// Zone is the box's topology zone; empty: none (--zone).
	Zone string
	// AnnounceTable is the table of kernel routes to announced addresses, for a routing daemon (--announce-table);
	// 0: none.
	AnnounceTable int

	API       API
	Fleet     Fleet
	Addresses Addresses
	Services  Services
	DNS       DNS
	Log       Log
}

// API has the listeners of the API and the users of its socket.
type API struct {
	// Socket is the path of the unix socket (--socket).
	Socket string
	// SocketGroup is the group whose members may do everything over the socket, by name or
	// number; empty: none (--socket-group).
	SocketGroup string
	// SocketReaders lets every user of the box read over the socket (--socket-readers).
	SocketReaders bool
	// Listen is the address over TLS, host:port; empty: the API is not served over TLS (--listen).
	Listen string
	// TLSCert and TLSKey are the files of the certificate for Listen and of its key, PEM;
	// empty: the appliance makes a CA and a certificate itself (--tls-cert, --tls-key).
	TLSCert, TLSKey string
	// MetricsListen is the address of /metrics, /healthz and /readyz in plain HTTP, host:port;
	// empty: they are not served (--metrics-listen).
	MetricsListen string
}

// Fleet configures how objects are shared with other boxes: by etcd, or for a leaf by the API of core boxes.
type Fleet struct {
	// Name is the name of the fleet; empty: none, and the box has objects of its own (--fleet).
	Name string
	// Etcd lists the URLs of the members of etcd (--etcd).
	Etcd []string
	// CACert, Cert and Key are PEM files: the CA of etcd's certificates (empty: the system's
	// roots), and the box's own certificate with its key (--etcd-cacert, --etcd-cert, --etcd-key).
	CACert, Cert, Key string
	// Cores lists the URLs of the APIs of core boxes, for a leaf, which has no Etcd (--core). CoreCACert, CoreCert and CoreKey are PEM
	// files, as those above (--core-cacert, --core-cert, --core-key).
	Cores                         []string
	CoreCACert, CoreCert, CoreKey string
	// LeafCACert is the PEM file of the CA that signs the certificates of leaves; "": no leaf may follow this box (--leaf-cacert).
	// LeafWrites lets admins on leaves change objects (--leaf-writes).
	LeafCACert string
	LeafWrites bool
	// KeyFile has the keys by which the Secrets of the fleet are sealed, 32 bytes in base64 a line; the first one
	// seals, all open. "": the box accepts no Secrets (--fleet-key-file).
	KeyFile string
}

// Addresses configures the ranges of addresses and ports of Services, and their allocation.
type Addresses struct {
	// ClusterIPRanges has the ranges of cluster IPs: one prefix, or one for each family, the
	// primary family first (--service-cluster-ip-range).
	ClusterIPRanges []netip.Prefix
	// NodePortRange is the range of node ports (--service-node-port-range).
	NodePortRange PortRange
	// NodePortAddresses are the box's addresses that node ports answer on (--nodeport-addresses).
	NodePortAddresses NodePortAddresses
	// NodePortSpace selects one space of node ports for all protocols, or one for each (--node-port-space).
	NodePortSpace NodePortSpace
	// ClusterCIDRs are the internal sources: clients that are never masqueraded
	// towards VIPs and are exempt from the policy Local; empty: none (--cluster-cidr).
	ClusterCIDRs []netip.Prefix
	// LoadBalancerPools has the ranges of load balancer IPs; empty: none are allocated
	// (--load-balancer-pool).
	LoadBalancerPools []AddrRange
	// InternalPools has the ranges of IPs of internal load balancers, which only InternalFrom and ClusterCIDRs reach; empty: none are
	// allocated (--load-balancer-internal-pool).
	InternalPools []AddrRange
	// InternalFrom are the clients that reach InternalPools, besides those in ClusterCIDRs (--load-balancer-internal-from).
	InternalFrom InternalFrom
	// ClusterIPClients selects the clients that reach cluster IPs (--cluster-ip-clients).
	ClusterIPClients ClusterIPClients
	// ExternalIPRanges are the externalIPs that are accepted, and set aside for Services as a
	// whole; empty: any address that has no other known use, and only the ports that Services
	// name (--external-ip-range).
	ExternalIPRanges ExternalIPRanges
	// EgressFrom are the prefixes of the hosts whose own connections may get an address of a Service as their source; empty: none
	// (--egress-from).
	EgressFrom []netip.Prefix
	// Allocate enables the allocation of missing addresses and ports (--allocate).
	Allocate Allocate
}

// Services has the defaults and options that apply to all Services.
type Services struct {
	// NodelessEndpoints counts endpoints without nodeName as local or not, for the policy Local (--nodeless-endpoints).
	NodelessEndpoints NodelessEndpoints
	// Balance is the algorithm of Services that name none: a value of the annotation
	// svcctl.io/balance (--balance).
	Balance string
	// SNAT selects the clients that are masqueraded (--snat).
	SNAT SNATMode
	// MasqueradeAll masquerades every client of a cluster IP (--masquerade-all).
	MasqueradeAll bool
	// VIPPing is the answer to a ping of a VIP (--vip-ping).
	VIPPing VIPPing
	// SourceRangesApply selects the addresses that loadBalancerSourceRanges protect (--source-ranges-apply).
	SourceRangesApply SourceRangesApply
	// SourceSets are the named sets of client prefixes that Services may name, each with its
	// file (--source-set).
	SourceSets []SourceSet
	// Names is the rule for names of Services (--service-names).
	Names ServiceNames
	// LegacyIP refuses or accepts addresses with leading zeros (--legacy-ip).
	LegacyIP LegacyIP
	// Traffic selects the counts of connections (--traffic).
	Traffic Traffic
	// FastPath selects the Services whose established connections bypass the rules (--fast-path).
	FastPath FastPath
	// ConnectionLog is the file, or "journal", that gets a line for each ended connection of the Services that ask for it; empty: no log is
	// written (--connection-log).
	ConnectionLog string
	// HealthCheckSourcePorts are the source ports of health checks; the zero value leaves them to the
	// kernel (--health-check-source-ports).
	HealthCheckSourcePorts PortRange
	// RelayPorts are the two ports that relayed Services are redirected to on an address of the box: for all endpoints, and for local ones
	// under the policy Local (--relay-ports).
	RelayPorts PortRange
}

// DNS configures the DNS server for the names of Services.
type DNS struct {
	// Listen lists the addresses of the server, over UDP and TCP, each as host:port; empty:
	// there is none (--dns-listen).
	Listen []string
	// Domain is the domain that names of Services are in, without a dot at the end
	// (--cluster-domain).
	Domain string
	// Upstreams are the resolvers for all other names; empty: they are refused (--dns-upstream).
	Upstreams []netip.AddrPort
	// ClientNamespaces maps prefixes of DNS clients to namespaces (--dns-client-namespaces).
	ClientNamespaces []ClientNamespace
}

// Log configures the log of the program.
type Log struct {
	// Level is the least severe level that is logged (--log-level).
	Level slog.Level
	// Format is the form of a line (--log-format).
	Format LogFormat
	// Queue is the queue in front of the log: its losses are a metric, and it is flushed
	// before the process ends itself. Nil: the log is written directly. It is not a flag.
	Queue *logqueue.Queue
}

// Traffic selects which counters of connections are kept.
type Traffic string

const (
	TrafficCounters Traffic = "counters" // connections and refusals of each frontend, and refusals by reason
	TrafficFlows    Traffic = "flows"    // these, and connections and bytes of each endpoint, from conntrack events
	TrafficOff      Traffic = "off"      // nothing
)

// ReadsFlows reports whether conntrack events of the kernel are read: for totals of connections or for the connection log.
func (s *Services) ReadsFlows() bool { return s.Traffic == TrafficFlows || s.ConnectionLog != "" }

// NodelessEndpoints selects whether endpoints without a nodeName count as local.
type NodelessEndpoints string

const (
	NodelessLocal  NodelessEndpoints = "local"
	NodelessRemote NodelessEndpoints = "remote" // as kube-proxy
)

// SNATMode selects the clients that are masqueraded in addition to those that always are (hairpin).
type SNATMode string

const (
	// SNATAuto follows Kubernetes' rules, and also masquerades clients on an endpoint's own link, whose replies would bypass the box.
	SNATAuto SNATMode = "auto"
	// SNATNever keeps the source addresses of those clients.
	SNATNever SNATMode = "never"
)

// ClusterIPClients selects the clients that cluster IPs answer.
type ClusterIPClients string

// The values of ClusterIPClients.
const (
	ClusterIPAll      ClusterIPClients = "all"      // as kube-proxy: any client with a route
	ClusterIPInternal ClusterIPClients = "internal" // the box, ClusterCIDRs and InternalFrom
)

// VIPPing selects when a VIP answers ICMP echo requests.
type VIPPing string

const (
	VIPPingWhenReady VIPPing = "when-ready" // echo reply with usable endpoints, else host unreachable
	VIPPingAlways    VIPPing = "always"     // echo reply
	VIPPingNever     VIPPing = "never"      // none
)

// SourceRangesApply selects the frontends that a Service's loadBalancerSourceRanges restrict.
type SourceRangesApply string

const (
	SourceRangesLoadBalancer SourceRangesApply = "load-balancer" // its load balancer IPs, as in Kubernetes
	SourceRangesAll          SourceRangesApply = "all"           // its node ports and external IPs too
)

// SourceSet is the name of a set of client prefixes, and the file with its prefixes, one a line.
type SourceSet struct{ Name, File string }

// ServiceNames selects the syntax that names of Services must follow.
type ServiceNames string

const (
	ServiceNamesRFC1035 ServiceNames = "rfc1035" // a letter first
	ServiceNamesRFC1123 ServiceNames = "rfc1123" // a letter or a digit first
)

// NodePortSpace selects whether a node port is reserved for all protocols at once, or for each protocol apart.
type NodePortSpace string

const (
	NodePortPerProtocol NodePortSpace = "per-protocol" // 30053/TCP and 30053/UDP may belong to different Services
	NodePortShared      NodePortSpace = "shared"       // a port number belongs to one Service only, as in Kubernetes
)

// Allocate selects whether cluster IPs, node ports and load balancer IPs are allocated, or must be named in Services.
type Allocate string

// The values of Allocate.
const (
	AllocateAuto  Allocate = "auto"  // allocated by the appliance, unless the Service names them
	AllocateNever Allocate = "never" // named in the Service, which is refused without them
)

// LegacyIP selects whether addresses with leading zeros are accepted, as 172.30.0.041.
type LegacyIP string

const (
	LegacyIPRefuse LegacyIP = "refuse"
	LegacyIPAccept LegacyIP = "accept" // read as decimal
)

// LogFormat is the format of log lines.
type LogFormat string

const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// Defaults that documentation and tests refer to.
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
	if !labelPattern().MatchString(c.Fleet.Name) {
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
		case !labelPattern().MatchString(source.Name):
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

// isServer reports whether a text is a URL of one of the schemes with a host, and without path, query and user.
func isServer(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host != "" && u.Path == "" && u.RawQuery == "" && u.User == nil
}

// IsLeaf reports whether the box is a leaf: it follows core boxes and has no connection to etcd.
func (c *Config) IsLeaf() bool { return len(c.Fleet.Cores) > 0 }

// ManifestSource is a directory of manifests.
type ManifestSource struct {
	Name string // in a fleet; otherwise ""
	Dir  string
}

// ManifestSources returns the watched directories. In a fleet each has the name of NAME=DIR.
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

// SourcePath returns the name of a manifest file that is the same on all boxes of a fleet: "NAME:PATH", the source and the path in its
// directory. It returns "" for a file outside of the directories, or without a fleet.
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

// NodeOwner returns the owner that the Node of this box is stored with. In a fleet each box has an owner of its own.
func (c *Config) NodeOwner() string {
	if c.Fleet.Name == "" {
		return control.NodeOwner
	}
	return control.NodeOwner + "/" + c.NodeName
}

// FleetSettings returns, as JSON, the settings that must be equal on all boxes of a fleet, since values are allocated and documents are
// validated by them.
func (c *Config) FleetSettings() (json.RawMessage, error) {
	return json.Marshal(fleetSettings{
		texts(c.Addresses.ClusterIPRanges), fmt.Sprintf("%d-%d", c.Addresses.NodePortRange.First, c.Addresses.NodePortRange.Last), string(c.Addresses.NodePortSpace),
		texts(c.Addresses.LoadBalancerPools), texts(c.Addresses.InternalPools), string(c.Services.Names), c.Addresses.Allocate == AllocateNever,
	})
}

// fleetSettings are the settings that must be equal on all boxes of a fleet. The tag flag has the flag that messages name.
type fleetSettings struct {
	ClusterIPs    []string `json:"serviceClusterIPRange" flag:"service-cluster-ip-range"`
	NodePorts     string   `json:"serviceNodePortRange" flag:"service-node-port-range"`
	Space         string   `json:"nodePortSpace" flag:"node-port-space"`
	Pools         []string `json:"loadBalancerPool,omitempty" flag:"load-balancer-pool"`
	InternalPools []string `json:"loadBalancerInternalPool,omitempty" flag:"load-balancer-internal-pool"`
	ServiceNames  string   `json:"serviceNames" flag:"service-names"`
	Pinned        bool     `json:"pinned,omitempty" flag:"allocate never"`
}

// FleetFlags returns the flag of each field in FleetSettings, by the name of the field and without dashes.
func FleetFlags() map[string]string {
	flags := map[string]string{}
	for field := range reflect.TypeFor[fleetSettings]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flags[name] = field.Tag.Get("flag")
	}
	return flags
}

func texts[T fmt.Stringer](list []T) (all []string) {
	for _, one := range list {
		all = append(all, one.String())
	}
	return all
}

// EtcdTLS returns the TLS configuration for connections to etcd. The box's certificate is read again for each connection, so that it can be
// replaced; the CA is read once.
func (f *Fleet) EtcdTLS() (*tls.Config, error) { return clientTLS("etcd", f.CACert, f.Cert, f.Key) }

// CoreTLS returns the TLS configuration for connections to core boxes, as EtcdTLS does.
func (f *Fleet) CoreTLS() (*tls.Config, error) {
	return clientTLS("core", f.CoreCACert, f.CoreCert, f.CoreKey)
}

// clientTLS returns a TLS configuration with the CA and the certificate of these files. flags is the prefix of the flags that errors name,
// as "etcd" in --etcd-cacert.
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
