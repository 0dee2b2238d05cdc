package config

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/store/object"
)

// Config holds the settings of the appliance. Its fields, and those of its groups, are the flags of
// `svcctl serve`; Default returns their defaults, Validate the errors in them. A Config is not
// changed once the appliance runs.
type Config struct {
	// Version is the version of the program, as v0.1.0. It is not a flag.
	Version string
	// ObjectPools has the address pools declared by objects, which change at run time. It is not a
	// flag.
	ObjectPools *ObjectPools

	// Manifests are the directories that are watched, read recursively (--manifests).
	Manifests []string
	// AllowMassRemoval lets go at once what vanishes from the manifests, however much that
	// is (--allow-mass-removal).
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

// Fleet configures the boxes that the objects are shared with: etcd, or the core boxes of a leaf.
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
	// LeafCACert is the file of the CA of leaves, which they may follow this box with, PEM; "": none may (--leaf-cacert). LeafWrites lets
	// their admins change objects (--leaf-writes).
	LeafCACert string
	LeafWrites bool
	// KeyFile has the keys by which the Secrets of the fleet are sealed, 32 bytes in base64 a line; the first one
	// seals, all open. "": the box accepts no Secrets (--fleet-key-file).
	KeyFile string
}

// Addresses configures the addresses and ports of Services, and their allocation.
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
	// InternalPools has the ranges of IPs of internal load balancers, which only clients inside
	// reach; empty: none are allocated (--load-balancer-internal-pool).
	InternalPools []AddrRange
	// InternalFrom are the clients inside, besides ClusterCIDRs (--load-balancer-internal-from).
	InternalFrom InternalFrom
	// ClusterIPClients selects the clients that reach cluster IPs (--cluster-ip-clients).
	ClusterIPClients ClusterIPClients
	// ExternalIPRanges are the externalIPs that are accepted, and set aside for Services as a
	// whole; empty: any address that has no other known use, and only the ports that Services
	// name (--external-ip-range).
	ExternalIPRanges ExternalIPRanges
	// EgressFrom are the prefixes of the hosts that may leave with an address of a Service; empty: none may (--egress-from).
	EgressFrom []netip.Prefix
	// Allocate enables the allocation of missing addresses and ports (--allocate).
	Allocate Allocate
}

// Services has the defaults and options of serving Services.
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
	// FastPath selects the Services whose established connections pass the rules by (--fast-path).
	FastPath FastPath
	// ConnectionLog is the file, or "journal", that gets a line for each connection that ends, of Services that ask
	// for it; empty: none is written (--connection-log).
	ConnectionLog string
	// HealthCheckSourcePorts are the source ports of health checks; the zero value leaves them to the
	// kernel (--health-check-source-ports).
	HealthCheckSourcePorts PortRange
	// RelayPorts are the two ports that relayed Services are redirected to on an address of the box: for
	// all endpoints, and for those of the box that a policy Local wants (--relay-ports).
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

// Log configures the program's log.
type Log struct {
	// Level is the least severe level that is logged (--log-level).
	Level slog.Level
	// Format is the form of a line (--log-format).
	Format LogFormat
	// Queue is the queue in front of the log: its losses are a metric, and it is flushed
	// before the process ends itself. Nil: the log is written directly. It is not a flag.
	Queue *logqueue.Queue
}

// Traffic is the amount that is counted of connections.
type Traffic string

const (
	TrafficCounters Traffic = "counters" // connections and refusals of each frontend, and refusals by reason
	TrafficFlows    Traffic = "flows"    // these, and what connections of each endpoint came to, from the kernel's messages of their ends
	TrafficOff      Traffic = "off"      // nothing
)

// ReadsFlows reports whether the messages of the kernel about connections are read.
func (s *Services) ReadsFlows() bool { return s.Traffic == TrafficFlows || s.ConnectionLog != "" }

// NodelessEndpoints is the locality of endpoints without a nodeName.
type NodelessEndpoints string

const (
	NodelessLocal  NodelessEndpoints = "local"
	NodelessRemote NodelessEndpoints = "remote" // as kube-proxy
)

// SNATMode selects the clients that are masqueraded beyond those that always are (hairpin).
type SNATMode string

const (
	// SNATAuto follows Kubernetes' rules, and masquerades clients on an endpoint's own
	// segment too, whose replies would bypass the box.
	SNATAuto SNATMode = "auto"
	// SNATNever leaves those clients' addresses as they are.
	SNATNever SNATMode = "never"
)

// ClusterIPClients selects the clients that reach cluster IPs.
type ClusterIPClients string

// Values of ClusterIPClients.
const (
	ClusterIPAll      ClusterIPClients = "all"      // as kube-proxy: any client with a route
	ClusterIPInternal ClusterIPClients = "internal" // the box, ClusterCIDRs and InternalFrom
)

// VIPPing is the answer to an ICMP echo request to a VIP.
type VIPPing string

const (
	VIPPingWhenReady VIPPing = "when-ready" // echo reply with usable endpoints, else host unreachable
	VIPPingAlways    VIPPing = "always"     // echo reply
	VIPPingNever     VIPPing = "never"      // none
)

// SourceRangesApply selects the frontends that a Service's loadBalancerSourceRanges restrict.
type SourceRangesApply string

const (
	SourceRangesLoadBalancer SourceRangesApply = "load-balancer" // on its load balancer IPs, as Kubernetes
	SourceRangesAll          SourceRangesApply = "all"           // on its node ports and external IPs too
)

// SourceSet is a named set of client prefixes and the file that has them, one a line.
type SourceSet struct{ Name, File string }

// ServiceNames is the rule that names of Services follow.
type ServiceNames string

const (
	ServiceNamesRFC1035 ServiceNames = "rfc1035" // a letter first
	ServiceNamesRFC1123 ServiceNames = "rfc1123" // a letter or a digit first
)

// NodePortSpace is one space of node ports for all protocols, or one for each.
type NodePortSpace string

const (
	NodePortPerProtocol NodePortSpace = "per-protocol" // 30053/TCP and 30053/UDP may belong to two Services
	NodePortShared      NodePortSpace = "shared"       // to one Service only, as Kubernetes
)

// Allocate is whether the appliance or the Services' authors choose cluster IPs, node ports and load balancer IPs.
type Allocate string

// The values of Allocate.
const (
	AllocateAuto  Allocate = "auto"  // the appliance, unless the Service names them
	AllocateNever Allocate = "never" // whoever writes the Service: one that does not name them is refused
)

// LegacyIP is the policy for addresses with leading zeros, as 172.30.0.041.
type LegacyIP string

const (
	LegacyIPRefuse LegacyIP = "refuse"
	LegacyIPAccept LegacyIP = "accept" // read as decimal
)

// LogFormat is the form of a log line.
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
