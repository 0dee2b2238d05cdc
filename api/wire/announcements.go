package wire

import "time"

// Announcement is an address for which neighbors or routers are to send packets to this box.
type Announcement struct {
	Address string `json:"address"`
	// Services have it, each as "namespace/name".
	Services []string `json:"services"`
	// Flags is set when the address lies in a pool given by flags; it is announced according to the flags of the announcer.
	Flags bool `json:"flags,omitempty"`
	// L2 are the interfaces that L2Advertisements have it announced on, "*" for all; Via the names of the
	// BGPAdvertisements that it is announced by.
	L2  []string `json:"l2,omitempty"`
	Via []string `json:"via,omitempty"`
	// Withheld is why it is not to be announced; empty: it is.
	Withheld string `json:"withheld,omitempty"`
	// Uncovered is set when it is withheld because no advertisement covers it.
	Uncovered bool `json:"uncovered,omitempty"`
	// Nowhere is why it has no Places though it is not withheld.
	Nowhere string `json:"nowhere,omitempty"`
	// Places lists the places where it is announced, as the announcer last said; none: nowhere, or
	// there is no announcer.
	Places []Place `json:"places,omitempty"`
}

// AnnounceConfig configures the announcer, in addition to its flags, by objects of the kinds of MetalLB. It has passwords,
// and is for the announcer alone.
type AnnounceConfig struct {
	Peers          []PeerConfig    `json:"peers,omitempty"`
	Advertisements []Advertisement `json:"advertisements,omitempty"`
	// Interfaces lists the interfaces that L2Advertisements name, "*" for all; none: there is no
	// L2Advertisement.
	Interfaces []string `json:"interfaces,omitempty"`
}

// PeerConfig is a BGP peer of an object; times are in nanoseconds, and 0 is the default. It has more than
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
	Hold        time.Duration `json:"hold,omitempty"` // -1: none
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
	// Length4 and Length6 are the lengths of the prefixes.
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
	// By is "l2 eth0", or "bgp tor-1".
	By string `json:"by"`
	// State is probing, announced, conflict or standby; or host, when the address is the host's,
	// which answers for it itself. Of BGP it is announced; down without a session; sending before
	// the session has all routes; unsent, when the session takes no routes of the family; damped, when it came
	// and went; or leaving and then drained, on a box that is drained.
	State string `json:"state"`
	// With is the Ethernet address of the host that has it, in state conflict; the address of the box
	// that answers, if it is known, in state standby.
	With string `json:"with,omitempty"`
	// Why is the reason, in the states unsent and damped.
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Peer is a router that the announcer has a BGP session with, or should have.
type Peer struct {
	Name string `json:"name"`
	// At is its address or interface, AS its number; 0: any that the flag allows.
	At string `json:"at"`
	AS uint32 `json:"as,omitempty"`
	// State is one of RFC 4271, as "Established".
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Routes counts the routes that it was sent and that were not withdrawn, Updates the messages
	// since the announcer started.
	Routes  int    `json:"routes"`
	Updates uint64 `json:"updates,omitempty"`
	// BFD is the state of the BFD session (RFC 5880), as "Up"; empty without BFD, and before the first
	// BGP session.
	BFD string `json:"bfd,omitempty"`
	// LastDown is why the session ended or could not begin the last time, and DownAt when.
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
	// Peers has the peers of the announcer, as it last said, and Group its election, nil if there is
	// none.
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
	// Master is the address of the box that answers; empty: this one, or it is not known.
	Master string `json:"master,omitempty"`
	// Transitions counts changes of State since the announcer started.
	Transitions uint64 `json:"transitions"`
	// Differs has the differences of the addresses of the box that answers from ours; nil: there
	// are none.
	Differs *GroupDifference `json:"differs,omitempty"`
}

// GroupDifference has addresses that only one of two boxes announces, or would. Boxes list the lowest 20 of
// the segment's family to each other: without any in Theirs and Ours others differ.
type GroupDifference struct {
	With   string    `json:"with"`
	Since  time.Time `json:"since"`
	Theirs []string  `json:"theirs,omitempty"`
	Ours   []string  `json:"ours,omitempty"`
}

// Announcer is the process that announces.
type Announcer struct {
	Since time.Time `json:"since"`
}

// AnnouncementsEvent is one frame of the watch of /svcctl/v1/announcements. The first one has All;
// later ones have what changed. An address is in force before it is announced, and is withdrawn before its
// rules are removed.
type AnnouncementsEvent struct {
	All *Announcements `json:"all,omitempty"`
	Set []Announcement `json:"set,omitempty"`
	// Gone are addresses that no Service has any more.
	Gone []string `json:"gone,omitempty"`
	// Config has the settings of objects; nil: as before. It comes with All, for the announcer alone.
	Config *AnnounceConfig `json:"config,omitempty"`
	// Drained is the drain state of the box; nil: unchanged.
	Drained *bool `json:"drained,omitempty"`
}

// AnnouncerReport is the announcer's report of its addresses: POST to
// /svcctl/v1/announcements/report. An address without places is announced nowhere.
type AnnouncerReport struct {
	// All is set when Items replaces everything reported before.
	All   bool               `json:"all,omitempty"`
	Items []AnnouncedAddress `json:"items"`
	// Problems keep it from announcing; each is a sentence with what to do.
	Problems []string `json:"problems,omitempty"`
	// Segments are the interfaces that it announces on, with their networks: "eth0 (192.0.2.1/24)".
	Segments []string `json:"segments,omitempty"`
	// Counters are since the announcer started.
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
