package wire

import "time"

// Announcement is an address that clients are to be led to this box for.
type Announcement struct {
	Address string `json:"address"`
	// Services have it, each as "namespace/name".
	Services []string `json:"services"`
	// Withheld is why it is not to be announced; empty: it is.
	Withheld string `json:"withheld,omitempty"`
	// Places are where it is announced, as the announcer last said; none: nowhere, or there is
	// no announcer.
	Places []Place `json:"places,omitempty"`
}

// Place is what becomes of an address in one place where it can be announced.
type Place struct {
	// By is "l2 eth0".
	By string `json:"by"`
	// State is probing, announced, conflict or standby; or host, when the address is the host's,
	// which answers for it itself.
	State string `json:"state"`
	// With is the Ethernet address of the host that has it, in state conflict; the address of the box
	// that answers, if it is known, in state standby.
	With  string    `json:"with,omitempty"`
	Since time.Time `json:"since"`
}

// Announcements are all of them: the answer of /svcctl/v1/announcements.
type Announcements struct {
	// Ranges are the pools, as "192.0.2.16-192.0.2.31": nothing outside of them is announced.
	Ranges []string       `json:"ranges"`
	Items  []Announcement `json:"items"`
	// Announcer is the process that announces; nil: none is connected.
	Announcer *Announcer `json:"announcer,omitempty"`
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
}

// AnnouncerReport is what the announcer tells of its addresses: POST to
// /svcctl/v1/announcements/report. An address without places is announced nowhere.
type AnnouncerReport struct {
	// All says that what was reported before is over.
	All   bool               `json:"all,omitempty"`
	Items []AnnouncedAddress `json:"items"`
	// Problems are what keeps it from announcing, each a sentence with what to do.
	Problems []string `json:"problems,omitempty"`
	// Counters are since the announcer started.
	Counters AnnouncerCounters `json:"counters"`
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
