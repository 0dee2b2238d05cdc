package store

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/object"
)

// The node ports that Kubernetes gives when nothing else is said.
const (
	defaultNodePortFirst = 30000
	defaultNodePortLast  = 32767
)

// LoadBalancerClass in spec.loadBalancerClass means this product; so does no class. Load balancers
// of any other class are left to other products.
const LoadBalancerClass = "svcctl.io/load-balancer"

// IngressAnnotation holds load balancer IPs that a Service asks for, beside the one in
// spec.loadBalancerIP, with commas between them.
const IngressAnnotation = annotation.LoadBalancerIPs

// SharingAnnotation holds a key: load balancers with equal keys may have one IP, as long
// as no two of them serve the same port.
const SharingAnnotation = annotation.SharingKey

// Rules judge the annotations of an object by itself. They wait for nothing.
type Rules interface {
	Remarks(o object.Object) []annotation.Remark
}

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Config configures a Store. Only ClusterIPRanges has no default.
type Config struct {
	// ClusterIPRanges has the ranges of cluster IPs: one prefix, or one for each family, the
	// primary family first.
	ClusterIPRanges []netip.Prefix
	// NodePorts is the range of node ports and health-check node ports; zero means 30000-32767.
	NodePorts PortRange
	// NodePortSpace is one space of node ports for all protocols, or one for each.
	NodePortSpace alloc.Space
	// Pools has the ranges of load balancer IPs, the preferred ones first; empty: none are
	// allocated.
	Pools []alloc.Pool
	// Objects has the options of validation.
	Objects object.Options
	// Rules judge what Validate does not; nil: nothing.
	Rules Rules
	// Pinned refuses Services that do not name all addresses and ports that they would be given, so that machines
	// which share nothing but the documents agree.
	Pinned bool
	// LegacyIPs accepts addresses with leading zeros in files and reads them as decimal.
	LegacyIPs bool
	// Box names this machine among those that share the store: the steps of a rollout say what it programs.
	Box string
	// Program names the version of the program to the last bit: what another one has found about a
	// file is not believed. "" believes nothing (see LastGood.Seal).
	Program string
	// Clock is the time of day, for creation timestamps and the first revision; nil
	// means time.Now. Nothing else depends on it.
	Clock func() time.Time
	// Clocks reads the clocks by which this machine ends a trial of several machines; nil means deadline.Now.
	Clocks func() deadline.Reading
	// NewUID makes the uid of a new object; nil means a random UUID.
	NewUID func() string
}

func (c Config) withDefaults() Config {
	if c.NodePorts == (PortRange{}) {
		c.NodePorts = PortRange{defaultNodePortFirst, defaultNodePortLast}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Clocks == nil {
		c.Clocks = deadline.Now
	}
	if c.NewUID == nil {
		c.NewUID = randomUID
	}
	return c
}

// randomUID is a random UUID (RFC 9562, version 4).
func randomUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
