package nft

// The sets and maps of a table. A set exists while it has elements, and so does the rule that looks
// into it: no packet pays for a feature that no Service uses.
const (
	setServices         = "services"                 // VIP frontend : verdict
	setInsideServices   = "inside-services"          // the same, of frontends that ask who the client is
	setOutsideServices  = "outside-services"         // the same for outside clients, where they get another route
	setBackends         = "backends"                 // frontend . slot : endpoint, cluster pools
	setLocalBackends    = "local-backends"           // frontend . slot : endpoint, local pools
	setNodePorts        = "nodeports"                // node port : verdict
	setInsideNodePorts  = "inside-nodeports"         // the same, of node ports that ask who the client is
	setOutsideNodePorts = "outside-nodeports"        // the same for outside clients
	setNPBackends       = "nodeport-backends"        // node port . slot : endpoint, cluster pools
	setLocalNPBackends  = "local-nodeport-backends"  // node port . slot : endpoint, local pools
	setVIPs             = "vips"                     // the addresses that Services are reached by
	setOwned            = "owned"                    // ranges of addresses that are for Services alone
	setIdleVIPs         = "idle-vips"                // those of them without an endpoint
	setNPAddresses      = "nodeport-addresses"       // the addresses on which node ports answer
	setInternalSources  = "internal-sources"         // prefixes of inside clients, where they are too many for a rule
	setOriginal         = "original-addresses"       // original address : verdict in postrouting
	setSourceNAT        = "source-nat"               // original frontend : verdict in postrouting
	setNPSourceNAT      = "nodeport-source-nat"      // original node port : verdict in postrouting
	setAnswers          = "answers"                  // original frontend : verdict for an endpoint's first answer
	setNPAnswers        = "nodeport-answers"         // original node port : verdict for an endpoint's first answer
	setRefresh          = "refresh"                  // original frontend : verdict for every answer, of affinity that is refreshed
	setNPRefresh        = "nodeport-refresh"         // the same of original node ports
	setNewcomers        = "newcomers"                // clients that no affinity map had, for a moment
	setHairpin          = "hairpin"                  // endpoint . the same endpoint
	setSameInterface    = "same-interface"           // interface . the same interface
	setOnLink           = "on-link"                  // interface . addresses of its segment
	setRestricted       = "restricted"               // frontends with source ranges
	setAllowed          = "allowed-sources"          // frontend . who may connect
	setNPRestricted     = "restricted-nodeports"     // node ports with source ranges
	setNPAllowed        = "allowed-nodeport-sources" // node port . who may connect
	setInsideOnly       = "inside-only"              // addresses that only clients inside reach
	setNPInsideOnly     = "inside-only-nodeports"    // node ports that only clients inside reach
	setInsideSources    = "inside-sources"           // prefixes of these clients
	setInsideInterfaces = "inside-interfaces"        // interfaces behind which they all are
	setTables           = "tables"                   // frontend . slot : endpoint, of weights and hashes, cluster pools
	setLocalTables      = "local-tables"             // the same, local pools
	setNPTables         = "nodeport-tables"          // node port . slot : endpoint, cluster pools
	setLocalNPTables    = "local-nodeport-tables"    // the same, local pools
)

// The chains that many elements or rules go to.
const (
	chainRefuse      = "refuse"
	chainVIP         = "vip"
	chainInside      = "inside"
	chainNodePort    = "nodeport"
	chainByClient    = "by-client"
	chainNPByClient  = "nodeport-by-client"
	chainSourceNAT   = "source-nat"
	chainNPSourceNAT = "nodeport-source-nat"
	chainSameInterf  = "same-interface"
	chainHairpin     = "hairpin"
	chainMasqAlways  = "masquerade-always"
	chainMasqOutside = "masquerade-outside"
	chainMasqSelf    = "masquerade-self"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainAnswer      = "answer"
	chainOwnAnswers  = "own-answers"
	chainRefresh     = "refresh"
	chainRefused     = "refused"
	chainPick        = "pick-"
	prefixRemember   = "remember"
	prefixNewcomer   = "newcomer"
)

// Names of limits, in limits.go.
const (
	setLimitedBy          = "limited-by"                // VIP frontend : jump to its limits
	setNPLimitedBy        = "nodeport-limited-by"       // node port : the same
	setLimited            = "limited-services"          // VIP frontend : where it leads under its limits
	setLimitedOutside     = "limited-outside-services"  // the same for outside clients
	setNPLimited          = "limited-nodeports"         // node port : where it leads
	setNPLimitedOutside   = "limited-outside-nodeports" // the same for outside clients
	chainLimited          = "limited"                   // those of elements that lead to the maps
	chainLimitedOutside   = "limited-outside"           //
	chainNPLimited        = "nodeport-limited"          //
	chainNPLimitedOutside = "nodeport-limited-outside"  //
	chainRefuseClient     = "refuse-client"             // refuses a client of too many connections
	prefixLimits          = "limits"                    // with the limits and an ID: the chain that asks
	prefixClientRates     = "client-rates-"             // with the limit and an ID: the clients of late, each with its rate
	prefixClientConns     = "client-connections-"       // with the limit and an ID: the clients, each with its connections
)

// Names of idle timeouts, in idle.go.
const (
	setOwnIdle   = "idle-timeouts"          // original frontend : verdict, of endpoints that are the box itself
	setNPOwnIdle = "nodeport-idle-timeouts" // the same of original node ports

	chainInput    = "input"
	prefixIdle    = "idle-"
	prefixOnlySYN = "only-syn/"
	qualifierIdle = "-idle-"
	idleMap       = "/only" // behind a timeout: the chain that does nothing else
)

// Names of strays, in strays.go.
const (
	setOpenNodePorts = "open-nodeports" // the node ports
	setOpenPorts     = "open-ports"     // frontends that take their port alone of an address

	chainInvalid = "invalid"
	chainStray   = "stray"
)

// Names of adopted connections, in adopt.go.
const (
	setAdopted = "adopted" // endpoint : frontend
	chainAdopt = "adopt"
)

// Names of ranges of ports, in portrange.go.
const (
	setPortRanges     = "port-ranges"      // VIP frontend, a range of ports : verdict
	setOpenPortRanges = "open-port-ranges" // ranges that take their ports alone of an address
	setRangeSourceNAT = "range-source-nat" // original frontend, a range of ports : verdict in postrouting

	chainRange        = "range"          // with the qualifier of a pool and an ID: the chain and the map of its endpoints
	chainRangeClients = "range-clients-" // with a number and an ID: the chain that asks who the client is
	suffixAdmitted    = "-in"            // behind the number: those whom source sets have let in
	setRangeSources   = "range-sources-" // with a number and an ID: the set of who may connect
)

// Names of source sets and of the chains that ask who may connect, in sourceset.go.
const (
	prefixSourceSet   = "source-set/"
	prefixAdmit       = "admit/"
	prefixAdmitRanges = "admit-ranges/"
	qualifierNodePort = "nodeport-"
)

// The names of chains that draw a slot of a table: behind the qualifier of the pool,
// before the size.
const (
	chainWeigh  = "weigh-"
	chainHash   = "hash-"
	chainSource = "source-"
)

// chainRefusePort refuses what no frontend of a VIP took, where that is counted.
const chainRefusePort = "refuse-port"
