package reconcile

import (
	"log/slog"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// Options configure a Loop. Only New and the Loop read them, and none changes afterwards.
type Options struct {
	Accepted
	Controllers
	Target
	Parts     []Part
	Publisher *Publisher
	Watchdog  *Watchdog
	Log       *slog.Logger
	// Clock returns the time; nil: time.Now.
	Clock func() time.Time
	// Clocks reads the clocks by which trials end; nil: deadline.Now.
	Clocks func() deadline.Reading
	// OnReady is called once, when the first step has succeeded.
	OnReady func()
}

// Accepted are the objects of the Loop, and how files become objects.
type Accepted struct {
	Store *store.Store
	// InForce returns the objects that are planned; when it is nil or returns nil, those of Store.
	InForce func() *store.Store
	// Watching is set when there are manifest directories: nothing is applied before they were read.
	Watching bool
	// Files stores what the directories have, in place of Store: Sync does not wait, After calls done when the last
	// argument of Sync is stored. nil: the loop does it.
	Files    Files
	Removals *RemovalGuard
	// DataDir is named in problems.
	DataDir string
}

// Controllers run in each step.
type Controllers struct {
	// Cluster runs as soon as anything is known, Endpoints once everything was read.
	Cluster   interface{ Sync(*node.Facts) error }
	Endpoints Endpoints
	// Pools follows the objects with the pools of load balancer IPs. It runs after Cluster; Services that depend on
	// the host are planned again when it reports a change. nil: there are none.
	Pools Pools
}

// Target is the box and its kernel.
type Target struct {
	Kernel  Kernel
	Orphans *Orphans // nil: there are none
	// Host derives from the facts of the host what to plan for.
	Host      func(*node.Facts) Host
	Addresses Addresses
	// HostProblems returns the conflicts of the host's networks with the configuration.
	HostProblems func(*node.Facts) []manifest.Problem
	// NodePorts is the range of node ports: programs that listen in it are looked up together.
	NodePorts PortRange
	// Listening returns the listening sockets of programs at some ports; nil: those of this host.
	Listening func(*sockets.Ports) ([]sockets.Socket, error)
	// HoldSentinel keeps established connections translated through a foreign flush
	// (kernel.Conn.HoldSentinel).
	HoldSentinel func() error
}

// Files stores the files of directories beside the loop.
type Files interface {
	Sync(*watch.Snapshot) error
	After(done func())
}

// Endpoints is the controller of generated EndpointSlices.
type Endpoints interface {
	Sync() error
	Problems() []resolve.Problem
}

// Pools follows the objects that say where load balancer IPs come from.
type Pools interface {
	Sync() (changed bool, err error)
}

// Answerer is a Part that plans depend on.
type Answerer interface {
	// Meet provides what a Service, "namespace/name", needs of this Part, and adds the states. It is called while Services
	// are planned, before clients are sent there, and from several goroutines at once.
	Meet(service string, d *resolve.Demand, o *resolve.Observed)
}

// Opener is an Answerer whose Meet opens something, or keeps a copy of objects.
type Opener interface {
	Answerer
	// Foresee returns an Answerer for objects that are not stored. It changes nothing: it answers as if everything could be opened.
	Foresee(objs Objects) Answerer
	// Close ends what was opened or kept for a need that no Service has any more. The loop calls it.
	Close(resolve.Need)
}

// Tuner is a Part that sets the weights of a port's endpoints by what happens. It is called from several goroutines at once.
type Tuner interface {
	// Tune sets Weights, Tables and Starting of a port that is balanced by open connections, or has a slow start (0: none).
	Tune(p *nft.ServicePort, slowStart time.Duration)
}

// Inputs are the channels the loop listens to.
type Inputs struct {
	Snapshots <-chan *watch.Snapshot
	Facts     <-chan node.Facts
	Changes   <-chan kernel.Change
	Barriers  <-chan chan struct{}      // closed once all snapshots before it are in the store
	Releases  <-chan chan wire.Released // get what was held and was let go
	Findings  <-chan []checkup.Finding
	Trials    <-chan TrialAsk
	Foresees  <-chan ForeseeAsk // Done must have room for the answer
}
