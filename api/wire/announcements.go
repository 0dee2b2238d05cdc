package wire

import "time"

// Announcement is an address for which neighbors or routers are to send packets to this box.
type Announcement struct {
	Address string `json:"address"`
	// Services lists the Services that have the address, each as "namespace/name".
	Services []string `json:"services"`
	// Flags is set if the address lies in a pool that command-line flags define. It is then announced according to the flags of the announcer.
	Flags bool `json:"flags,omitempty"`
	// L2 lists the interfaces on which L2Advertisements announce the address; "*" means all. Via lists the names of the BGPAdvertisements that cover
	// the address.
	L2  []string `json:"l2,omitempty"`
	Via []string `json:"via,omitempty"`
	// Withheld is the reason not to announce the address; empty if it is to be announced.
	Withheld string `json:"withheld,omitempty"`
	// Uncovered is set when it is withheld because no advertisement covers it.
	Uncovered bool `json:"uncovered,omitempty"`
	// Nowhere is the reason why Places is empty although the address is not withheld.
	Nowhere string `json:"nowhere,omitempty"`
	// Places has the state of the address on each interface and at each BGP peer, as last reported by the announcer. It is empty if there are none,
	// or if no announcer is connected.
	Places []Place `json:"places,omitempty"`
}

// AnnounceConfig configures the announcer from MetalLB objects, in addition to its flags. It contains passwords: only the
// announcer gets it.
type AnnounceConfig struct {
	Peers          []PeerConfig    `json:"peers,omitempty"`
	Advertisements []Advertisement `json:"advertisements,omitempty"`
	// Interfaces lists the interfaces that L2Advertisements name; "*" means all. It is empty without L2Advertisements.
	Interfaces []string `json:"interfaces,omitempty"`
}

// PeerConfig configures a BGP peer from an object. Times are in nanoseconds; 0 means the default. It has more than
// 15 fields: one for each setting of a session.
type PeerConfig struct {
	Name        string        `json:"name"`
	Address     string        `json:"address,omitempty"` // "192.0.2.1:179"
	Interface   string        `json:"interface,omitempty"`
	Source      string        `json:"source,omitempty"`
	RouterID    string        `json:"routerID,omitempty"`
	LocalAS     uint32        `json:"localAS"`
	RemoteAS    uint32        `json:"remoteAS,omitempty"`
	Dynamic     string        `json:"dynamic,omitempty"`
	IPv4        bool          `json:"ipv4,omitempty"`
	IPv6        bool          `json:"ipv6,omitempty"`
	Hold        time.Duration `json:"hold,omitempty"` // -1: no hold timer
	Keepalive   time.Duration `json:"keepalive,omitempty"`
	Connect     time.Duration `json:"connect,omitempty"`
	Restart     time.Duration `json:"restart,omitempty"`
	Password    string        `json:"password,omitempty"`
	MultiHop    bool          `json:"multiHop,omitempty"`
	TTLSecurity int           `json:"ttlSecurity,omitempty"`
	BFD         *BFDConfig    `json:"bfd,omitempty"` // nil: no BFD
}

// BFDConfig configures the BFD session with a peer.
type BFDConfig struct {
	Transmit   time.Duration `json:"transmit"`
	Receive    time.Duration `json:"receive"`
	Multiplier int           `json:"multiplier"`
	Passive    bool          `json:"passive,omitempty"`
	MinTTL     int           `json:"minTTL,omitempty"`
}

// Advertisement configures the routes of addresses to BGP peers.
type Advertisement struct {
	Name  string   `json:"name"` // "metallb-system/lan"
	Peers []string `json:"peers"`
	// Length4 and Length6 are the prefix lengths of the IPv4 and IPv6 routes.
	Length4     int         `json:"length4"`
	Length6     int         `json:"length6"`
	LocalPref   uint32      `json:"localPref,omitempty"`
	MED         uint32      `json:"med,omitempty"`
	Prepend     int         `json:"prepend,omitempty"`
	Communities []uint32    `json:"communities,omitempty"`
	Large       [][3]uint32 `json:"large,omitempty"`
}

// Place is the state of an address on one interface or at one BGP peer where it can be announced.
type Place struct {
	// By is the kind and name of the place: "l2 eth0" or "bgp tor-1".
	By string `json:"by"`
	// State on an interface is probing, announced, conflict, standby (another box answers), or host (the host itself has the address and answers for
	// it). At a BGP peer it is announced, down (no session), sending (not all routes are sent yet), unsent (the session does not support the address
	// family), or damped (the address came and went too often). On a drained box it is leaving and then drained.
	State string `json:"state"`
	// With, in state conflict, is the Ethernet address of the other host that has the address; in state standby, the address
	// of the box that answers, if it is known.
	With string `json:"with,omitempty"`
	// Why is the reason, in the states unsent and damped.
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Peer is a router that the announcer has a BGP session with, or should have.
type Peer struct {
	Name string `json:"name"`
	// At is the address or interface of the peer. AS is its AS number; 0 if the configuration allows several and the session has not yet determined
	// it.
	At string `json:"at"`
	AS uint32 `json:"as,omitempty"`
	// State is the state of the BGP session (RFC 4271), as "Established".
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Routes is the number of routes that are advertised to the peer. Updates is the number of UPDATE messages sent since the announcer started.
	Routes  int    `json:"routes"`
	Updates uint64 `json:"updates,omitempty"`
	// BFD is the state of the BFD session (RFC 5880), as "Up"; empty without BFD, and before the first
	// BGP session.
	BFD string `json:"bfd,omitempty"`
	// LastDown is why the session last ended or failed to start. DownAt is when that happened.
	LastDown string    `json:"lastDown,omitempty"`
	DownAt   time.Time `json:"downAt,omitzero"`
}

// Established is the State of a Peer that routes are sent to.
const Established = "Established"

// Announcements is the answer of /svcctl/v1/announcements.
type Announcements struct {
	// Ranges are the pools, as "192.0.2.16-192.0.2.31": nothing outside of them is announced.
	Ranges []string       `json:"ranges"`
	Items  []Announcement `json:"items"`
	// Announcer is the process that announces, nil if none is connected.
	Announcer *Announcer `json:"announcer,omitempty"`
	// Drained reports that this box is to announce nothing (`svcctl announce drain`).
	Drained bool `json:"drained,omitempty"`
	// Peers has the BGP peers of the announcer, as it last reported them. Group is its VRRP election, nil
	// if there is none.
	Peers []Peer `json:"peers,omitempty"`
	Group *Group `json:"group,omitempty"`
}

// Group is the election of a virtual router (VRRP) that the announcer takes part in.
type Group struct {
	VRID uint8 `json:"vrid"`
	// State is backup, active, leaving or out.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Priority is the advertised priority; 1 asks others to take over.
	Priority uint8 `json:"priority"`
	// Interval is the advertised interval, as "100ms": longer than the configured one when the box is late with adverts.
	Interval string `json:"interval,omitempty"`
	// Master is the address of the active box; empty if that is this box or unknown.
	Master string `json:"master,omitempty"`
	// Transitions counts changes of State since the announcer started.
	Transitions uint64 `json:"transitions"`
	// Differs describes how the addresses of the active box differ from those of this box; nil if they do not.
	Differs *GroupDifference `json:"differs,omitempty"`
}

// GroupDifference holds the addresses that only one of two boxes announces, or would announce. An advert lists at most the lowest 20 addresses of its
// IP family. If Theirs and Ours are both empty, the difference is among the addresses that are not listed.
type GroupDifference struct {
	With   string    `json:"with"`
	Since  time.Time `json:"since"`
	Theirs []string  `json:"theirs,omitempty"`
	Ours   []string  `json:"ours,omitempty"`
}

// Announcer is the process that announces addresses, svcctl announce.
type Announcer struct {
	Since time.Time `json:"since"`
}

// AnnouncementsEvent is one event of a watch of /svcctl/v1/announcements. The first has All, later ones only what changed. An address is announced
// only after its rules are in the kernel, and is withdrawn before its rules are removed.
type AnnouncementsEvent struct {
	All *Announcements `json:"all,omitempty"`
	Set []Announcement `json:"set,omitempty"`
	// Gone are addresses that no Service has any more.
	Gone []string `json:"gone,omitempty"`
	// Config is the configuration from MetalLB objects; nil if unchanged. Only the announcer gets it, and always together with All.
	Config *AnnounceConfig `json:"config,omitempty"`
	// Drained is whether the box is drained; nil if unchanged.
	Drained *bool `json:"drained,omitempty"`
}

// AnnouncerReport is the announcer's report of its addresses, the body of POST /svcctl/v1/announcements/report. An address without places is not
// announced anywhere.
type AnnouncerReport struct {
	// All is set when Items replaces everything reported before.
	All   bool               `json:"all,omitempty"`
	Items []AnnouncedAddress `json:"items"`
	// Problems lists what keeps the announcer from announcing, each a sentence with the remedy.
	Problems []string `json:"problems,omitempty"`
	// Segments are the interfaces on which addresses are announced, with their networks: "eth0 (192.0.2.1/24)".
	Segments []string `json:"segments,omitempty"`
	// Counters count events since the announcer started.
	Counters AnnouncerCounters `json:"counters"`
	Peers    []Peer            `json:"peers,omitempty"`
	Group    *Group            `json:"group,omitempty"`
}

// AnnouncerCounters count ARP and NDP requests that were answered, announcements that were sent, and conflicts with another host that has
// an address.
type AnnouncerCounters struct {
	Answers       uint64 `json:"answers"`
	Announcements uint64 `json:"announcements"`
	Conflicts     uint64 `json:"conflicts"`
}

// AnnouncedAddress is the state of one address.
type AnnouncedAddress struct {
	Address string  `json:"address"`
	Places  []Place `json:"places"`
}
