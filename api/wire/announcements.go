package wire

import "time"

// Announcement is an address that clients are to be led to this box for.
type Announcement struct {
	Address string `json:"address"`
	// Services have it, each as "namespace/name".
	Services []string `json:"services"`
	// Withheld is why it is not to be announced; empty: it is.
	Withheld string `json:"withheld,omitempty"`
	// Nowhere is why it has no Places though it is not withheld.
	Nowhere string `json:"nowhere,omitempty"`
	// Places are where it is announced, as the announcer last said; none: nowhere, or there is
	// no announcer.
	Places []Place `json:"places,omitempty"`
}

// Place is the state of an address in one place where it can be announced.
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
	// Why is why not, in states unsent and damped.
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
	// Routes is how many it was sent and not withdrawn, Updates how many messages it was sent since
	// the announcer started.
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

// Announcements are all of them: the answer of /svcctl/v1/announcements.
type Announcements struct {
	// Ranges are the pools, as "192.0.2.16-192.0.2.31": nothing outside of them is announced.
	Ranges []string       `json:"ranges"`
	Items  []Announcement `json:"items"`
	// Announcer is the process that announces; nil: none is connected.
	Announcer *Announcer `json:"announcer,omitempty"`
	// Drained reports that this box is to announce nothing (`svcctl drain`).
	Drained bool `json:"drained,omitempty"`
	// Peers are those of the announcer, as it last said, and Group its election; nil: there is none.
	Peers []Peer `json:"peers,omitempty"`
	Group *Group `json:"group,omitempty"`
}

// Group is the election of a virtual router (VRRP) that the announcer takes part in.
type Group struct {
	VRID uint8 `json:"vrid"`
	// State is backup, active, leaving or out.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Priority is what the box advertises; 1 asks others to take over.
	Priority uint8 `json:"priority"`
	// Master is the address of the box that answers; empty: this one, or it is not known.
	Master string `json:"master,omitempty"`
	// Transitions counts changes of State since the announcer started.
	Transitions uint64 `json:"transitions"`
	// Differs is how the addresses of the box that answers differ from ours; nil: they do not.
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
// later ones have what changed. What is to be announced is in force then, and what is not any
// more is told before its rules go.
type AnnouncementsEvent struct {
	All *Announcements `json:"all,omitempty"`
	Set []Announcement `json:"set,omitempty"`
	// Gone are addresses that no Service has any more.
	Gone []string `json:"gone,omitempty"`
	// Drained says that the box is drained, or is no more; nil: as before.
	Drained *bool `json:"drained,omitempty"`
}

// AnnouncerReport is the announcer's report of its addresses: POST to
// /svcctl/v1/announcements/report. An address without places is announced nowhere.
type AnnouncerReport struct {
	// All says that what was reported before is over.
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

// AnnouncerCounters count questions of neighbors that were answered, announcements that were made,
// and times that another host had an address.
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
