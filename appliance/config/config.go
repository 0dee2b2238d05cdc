package config

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/store/object"
)

// Config is everything the appliance can be told. Its fields are the flags of
// `svcctl serve`; Default gives their defaults, Validate says what is wrong.
// A Config is not changed once the appliance runs.
// It has more than 15 fields: each is one flag, which is read, checked and documented by its own
// name. Blank lines separate the groups.
type Config struct {
	// Version is the version of the program, as v0.1.0. It is not a flag.
	Version string
	// LogQueue is the queue in front of the log: its losses are a metric, and it is flushed
	// before the process ends itself. Nil: the log is written directly. It is not a flag.
	LogQueue *logqueue.Queue
	// ObjectPools are the pools of objects, which come and go. It is not a flag.
	ObjectPools *ObjectPools

	// Manifests are the directories that are watched, read recursively (--manifests).
	Manifests []string
	// DataDir is where objects, allocations and last good copies are kept (--data-dir).
	DataDir string
	// DataKeyFile has the key that the data file is encrypted by (--data-key-file), 32 bytes in base64; "" leaves it
	// as it is.
	DataKeyFile string
	// Socket is the path of the API's unix socket (--socket).
	Socket string
	// SocketGroup is the group whose members may do everything over the socket, by name or
	// number; empty: none (--socket-group).
	SocketGroup string
	// SocketReaders lets every user of the box read over the socket (--socket-readers).
	SocketReaders bool
	// Listen is where the API is served over TLS, host:port; empty: nowhere (--listen).
	Listen string
	// TLSCert and TLSKey are the files of the certificate for Listen and of its key, PEM;
	// empty: the appliance makes a CA and a certificate itself (--tls-cert, --tls-key).
	TLSCert, TLSKey string
	// MetricsListen is where /metrics, /healthz and /readyz are served in plain
	// HTTP, host:port; empty: nowhere (--metrics-listen).
	MetricsListen string

	// Fleet names the fleet that this box belongs to, whose objects are in etcd; empty: none, and the
	// box has its own (--fleet).
	Fleet string
	// Etcd are the URLs of the members of etcd (--etcd).
	Etcd []string
	// EtcdCACert, EtcdCert and EtcdKey are PEM files: who signs etcd's certificates (empty: the
	// system's roots), and the box's own certificate with its key (--etcd-cacert, --etcd-cert, --etcd-key).
	EtcdCACert, EtcdCert, EtcdKey string
	// FleetKeyFile has the keys by which the fleet has its Secrets sealed, 32 bytes in base64 a line; the first one
	// seals, all open. "": the box takes no Secrets (--fleet-key-file).
	FleetKeyFile string

	// NodeName is who "local" is: the endpoints of this nodeName are on this box (--node-name).
	NodeName string
	// Zone is the box's topology zone; empty: none (--zone).
	Zone string

	// ServiceClusterIPRanges are where cluster IPs come from: one prefix, or one for each
	// family, the primary family first (--service-cluster-ip-range).
	ServiceClusterIPRanges []netip.Prefix
	// ServiceNodePortRange is where node ports come from (--service-node-port-range).
	ServiceNodePortRange PortRange
	// NodePortAddresses are the box's addresses that node ports answer on (--nodeport-addresses).
	NodePortAddresses NodePortAddresses
	// ClusterCIDRs are the internal sources: clients that are never masqueraded
	// towards VIPs and are exempt from the policy Local; empty: none (--cluster-cidr).
	ClusterCIDRs []netip.Prefix
	// AnnounceTable is the table of kernel routes to announced addresses, for a routing daemon (--announce-table);
	// 0: none.
	AnnounceTable int
	// LoadBalancerPools are where load balancer IPs come from; empty: none are
	// given (--load-balancer-pool).
	LoadBalancerPools []AddrRange
	// LoadBalancerInternalPools are where internal load balancers have their IPs from, which
	// only clients inside reach; empty: none are given (--load-balancer-internal-pool).
	LoadBalancerInternalPools []AddrRange
	// LoadBalancerInternalFrom are the clients inside, besides ClusterCIDRs
	// (--load-balancer-internal-from).
	LoadBalancerInternalFrom InternalFrom
	// ExternalIPRanges are the externalIPs that are accepted, and set aside for Services as a
	// whole; empty: any address of which nothing else is known here, and only the ports that
	// Services name (--external-ip-range).
	ExternalIPRanges ExternalIPRanges

	// NodelessEndpoints says what an endpoint without nodeName is for the policy
	// Local (--nodeless-endpoints).
	NodelessEndpoints NodelessEndpoints
	// Balance is the algorithm of Services that name none: a value of the annotation
	// svcctl.io/balance (--balance).
	Balance string
	// SNAT says which clients are masqueraded (--snat).
	SNAT SNATMode
	// MasqueradeAll masquerades every client of a cluster IP (--masquerade-all).
	MasqueradeAll bool
	// VIPPing says who answers a ping of a VIP (--vip-ping).
	VIPPing VIPPing
	// SourceRangesApply says where loadBalancerSourceRanges hold (--source-ranges-apply).
	SourceRangesApply SourceRangesApply
	// SourceSets are the named sets of client prefixes that Services may name, each with its
	// file (--source-set).
	SourceSets []SourceSet
	// ServiceNames is the rule for names of Services (--service-names).
	ServiceNames ServiceNames
	// NodePortSpace says whether protocols share one space of node ports (--node-port-space).
	NodePortSpace NodePortSpace
	// Allocate says who gives addresses and ports (--allocate).
	Allocate Allocate
	// LegacyIP says what becomes of addresses with leading zeros (--legacy-ip).
	LegacyIP LegacyIP
	// Traffic says what is counted of connections (--traffic).
	Traffic Traffic
	// ConnectionLog is where a line is written for each connection that ends, of Services that ask for it: a file, or
	// "journal"; empty: nowhere (--connection-log).
	ConnectionLog string

	// DNSListen are where names of Services are answered, over UDP and TCP, each as
	// host:port; empty: nowhere (--dns-listen).
	DNSListen []string
	// ClusterDomain is the domain that names of Services are in, without a dot at the
	// end (--cluster-domain).
	ClusterDomain string
	// DNSUpstreams are the resolvers for all other names; empty: they are refused
	// (--dns-upstream).
	DNSUpstreams []netip.AddrPort
	// DNSClientNamespaces says in which namespace DNS clients are (--dns-client-namespaces).
	DNSClientNamespaces []ClientNamespace

	// HealthCheckSourcePorts are the source ports of health checks; the zero value leaves them to the
	// kernel (--health-check-source-ports).
	HealthCheckSourcePorts PortRange

	// RelayPorts are the two ports that relayed Services are redirected to on an address of the box: for
	// all endpoints, and for those of the box that a policy Local wants (--relay-ports).
	RelayPorts PortRange

	// AllowMassRemoval lets go at once what vanishes from the manifests, however much that
	// is (--allow-mass-removal).
	AllowMassRemoval bool

	// LogLevel is the least severe level that is logged (--log-level).
	LogLevel slog.Level
	// LogFormat is the form of a log line (--log-format).
	LogFormat LogFormat
}

// Traffic says what is counted of connections.
type Traffic string

const (
	TrafficCounters Traffic = "counters" // connections and refusals of each frontend, and refusals by reason
	TrafficFlows    Traffic = "flows"    // these, and what connections of each endpoint came to, from the kernel's messages of their ends
	TrafficOff      Traffic = "off"      // nothing
)

// HearsFlows reports whether the kernel's messages about connections are listened to.
func (c *Config) HearsFlows() bool { return c.Traffic == TrafficFlows || c.ConnectionLog != "" }

// NodelessEndpoints is the locality of endpoints without a nodeName.
type NodelessEndpoints string

const (
	NodelessLocal  NodelessEndpoints = "local"
	NodelessRemote NodelessEndpoints = "remote" // as kube-proxy
)

// SNATMode says which clients are masqueraded beyond what is always needed (hairpin).
type SNATMode string

const (
	// SNATAuto follows Kubernetes' rules, and masquerades clients on an endpoint's own
	// segment too, whose replies would bypass the box.
	SNATAuto SNATMode = "auto"
	// SNATNever leaves those clients' addresses as they are.
	SNATNever SNATMode = "never"
)

// VIPPing is the answer to an ICMP echo request to a VIP.
type VIPPing string

const (
	VIPPingWhenReady VIPPing = "when-ready" // echo reply with usable endpoints, else host unreachable
	VIPPingAlways    VIPPing = "always"     // echo reply
	VIPPingNever     VIPPing = "never"      // none
)

// SourceRangesApply is where a Service's loadBalancerSourceRanges hold.
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

// NodePortSpace says who may hold the same node port.
type NodePortSpace string

const (
	NodePortPerProtocol NodePortSpace = "per-protocol" // 30053/TCP and 30053/UDP may belong to two Services
	NodePortShared      NodePortSpace = "shared"       // to one Service only, as Kubernetes
)

// Allocate says who gives Services their cluster IPs, node ports and load balancer IPs.
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

// Where things are when nothing else is said.
const (
	DefaultDataDir = "/var/lib/svcctl"
	DefaultSocket  = "/run/svcctl/svcctl.sock"
	// DefaultClusterDomain is the domain of most Kubernetes clusters.
	DefaultClusterDomain = "cluster.local"
)

// Default is the Config of `svcctl serve` without flags. NodeName is the
// host's name in lower case; it is empty, which Validate refuses, when the host has none.
func Default() Config {
	host, _ := os.Hostname() // the error has no more to say than the empty name
	return Config{
		DataDir:  DefaultDataDir,
		Socket:   DefaultSocket,
		NodeName: strings.ToLower(host),
		ServiceClusterIPRanges: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"),
			netip.MustParsePrefix("fd00:10:96::/112"),
		},
		ServiceNodePortRange: PortRange{First: 30000, Last: 32767},

		HealthCheckSourcePorts: PortRange{First: 61000, Last: 61255},
		RelayPorts:             PortRange{First: 10270, Last: 10271},
		NodelessEndpoints:      NodelessLocal,
		Balance:                object.BalanceRandom,
		SNAT:                   SNATAuto,
		VIPPing:                VIPPingWhenReady,
		SourceRangesApply:      SourceRangesLoadBalancer,
		ServiceNames:           ServiceNamesRFC1035,
		NodePortSpace:          NodePortPerProtocol,
		Allocate:               AllocateAuto,
		LegacyIP:               LegacyIPRefuse,
		Traffic:                TrafficCounters,
		ClusterDomain:          DefaultClusterDomain,
		LogLevel:               slog.LevelInfo,
		LogFormat:              LogText,
	}
}
