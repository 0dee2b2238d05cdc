package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

const (
	// maxSocketPath is the longest path of a unix socket on Linux, in bytes (struct sockaddr_un has 108 with the terminating NUL).
	maxSocketPath = 107
	// minServiceRange is the smallest number of addresses in a range for cluster IPs that kube-apiserver accepts.
	minServiceRange = 8
	// minServiceBits6 is the shortest prefix length of an IPv6 range for cluster IPs that kube-apiserver accepts.
	minServiceBits6 = 64
)

// Error is one invalid setting of a Config.
type Error struct {
	Flag    string // without the dashes
	Value   string // in the syntax of the flag
	Problem string // the problem and the remedy
}

// Error returns text of the form `--zone "a b": problem: what to do`.
func (e *Error) Error() string { return fmt.Sprintf("--%s %q: %s", e.Flag, e.Value, e.Problem) }

// Validate checks all settings, and returns all errors joined; each is an *Error.
func (c *Config) Validate() error {
	var v validation
	c.validatePlaces(&v)
	c.validateFleet(&v)
	c.validateNames(&v)
	c.validateRanges(&v)
	c.validateModes(&v)
	c.validateSourceSets(&v)
	c.DNS.validate(&v)
	return errors.Join(v...)
}

// validation collects the errors of one call of Validate.
type validation []error

func (v *validation) add(flag, value, format string, args ...any) {
	*v = append(*v, &Error{Flag: flag, Value: value, Problem: fmt.Sprintf(format, args...)})
}

// refuse adds the same problem for each flag whose value is not empty.
func (v *validation) refuse(problem string, flags map[string]string) {
	for flag, value := range flags {
		if value != "" {
			v.add(flag, value, "%s", problem)
		}
	}
}

// validatePlaces checks the syntax of paths and listeners. It opens none of them.
func (c *Config) validatePlaces(v *validation) {
	dirs := c.ManifestDirs()
	for i, dir := range dirs {
		if dir == "" {
			v.add("manifests", dir, "no directory is named: leave it out, or name one")
			continue
		}
		for _, other := range dirs[:i] {
			if other != "" && (inside(dir, other) || inside(other, dir)) {
				v.add("manifests", dir, "every file of %s would be read twice: directories are read recursively, give the outer one only", other)
			}
		}
	}
	if c.DataDir == "" {
		v.add("data-dir", c.DataDir, "objects and allocations must be kept somewhere: name a directory, as %s", DefaultDataDir)
	}
	c.API.validate(v)
}

// isHostPort reports whether an address is host:port with a numeric port; the host may be empty.
func isHostPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	return err == nil
}

// validate checks the syntax of the listeners of the API. It opens none of them.
func (a *API) validate(v *validation) {
	switch {
	case a.Socket == "":
		v.add("socket", a.Socket, "the API needs a socket: name a path, as %s", DefaultSocket)
	case len(a.Socket) > maxSocketPath:
		v.add("socket", a.Socket, "the path has %d bytes, the kernel takes %d: give a shorter one", len(a.Socket), maxSocketPath)
	}
	if a.MetricsListen != "" && !isHostPort(a.MetricsListen) {
		v.add("metrics-listen", a.MetricsListen, "not a host and port: write it as 127.0.0.1:9753, or :9753 for every address")
	}
	if a.Listen != "" && !isHostPort(a.Listen) {
		v.add("listen", a.Listen, "not a host and port: write it as 127.0.0.1:6443, or :6443 for every address")
	}
	if a.Listen != "" && a.Listen == a.MetricsListen {
		v.add("listen", a.Listen, "is --metrics-listen too: give each a port of its own")
	}
	switch {
	case a.TLSCert == "" && a.TLSKey != "":
		v.add("tls-key", a.TLSKey, "is the key of no certificate: give --tls-cert too, or leave it out and one is made")
	case a.TLSCert != "" && a.TLSKey == "":
		v.add("tls-cert", a.TLSCert, "has no key: give --tls-key too, or leave it out and one is made")
	case a.TLSCert != "" && a.Listen == "":
		v.add("tls-cert", a.TLSCert, "is shown nowhere: give --listen too, as 127.0.0.1:6443")
	}
}

// inside reports whether path is dir or lies below it. It compares names and follows no links.
func inside(path, dir string) bool {
	rel, err := filepath.Rel(filepath.Clean(dir), filepath.Clean(path))
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// validateNames checks the node name and the zone.
func (c *Config) validateNames(v *validation) {
	switch {
	case c.NodeName == "":
		v.add("node-name", c.NodeName, "the host has no name: give the nodeName that local endpoints carry")
	case len(object.NameProblems(c.NodeName)) > 0:
		v.add("node-name", c.NodeName, "not a name that a nodeName can have: use lower case letters, digits, '-' and '.', at most 253")
	}
	if len(object.LabelValueProblems(c.Zone)) > 0 {
		v.add("zone", c.Zone, "not a name that a zone can have: use letters, digits, '-', '_' and '.', at most 63")
	}
}

// validateRanges checks ranges and pools, and that they do not overlap.
func (c *Config) validateRanges(v *validation) {
	c.validateServiceRanges(v)
	if r := c.Services.HealthCheckSourcePorts; r != (PortRange{}) && (r.First == 0 || r.First > r.Last) {
		v.add("health-check-source-ports", r.String(), "not a range of ports from 1 to 65535: write the lower one first, as 61000-61255, or ephemeral")
	}
	if r := c.Services.RelayPorts; r.First == 0 || uint32(r.First)+1 != uint32(r.Last) {
		v.add("relay-ports", r.String(), "not two ports, one behind the other: write them as 10270-10271")
	}
	if r := c.Addresses.NodePortRange; r.First == 0 || r.First > r.Last {
		v.add("service-node-port-range", r.String(), "not a range of ports from 1 to 65535: write the lower one first, as 30000-32767")
	}
	for _, p := range c.Addresses.NodePortAddresses.Prefixes {
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			v.add("nodeport-addresses", p.String(), "node ports cannot answer at link-local addresses of IPv6, whose packets the kernel does not forward: name other addresses of the box")
		}
	}
	for _, p := range c.Addresses.EgressFrom {
		if p.Bits() == 0 {
			v.add("egress-from", p.String(), "leaves no destination outside of it, for which an address would be another one: give the ranges that your hosts are in")
		}
	}
	c.validatePools(v)
}

// validatePools checks the pools of load balancer IPs.
func (c *Config) validatePools(v *validation) {
	var before []nft.Range
	for _, pools := range []struct {
		flag string
		list []nft.Range
	}{{"load-balancer-pool", c.Addresses.LoadBalancerPools}, {"load-balancer-internal-pool", c.Addresses.InternalPools}} {
		for _, pool := range pools.list {
			if why := object.NotUnicast(pool.First, pool.Last); why != "" {
				v.add(pools.flag, pool.String(), "%s cannot be load balancer IPs: give a range of unicast addresses", why)
			}
			for _, p := range c.Addresses.ClusterIPRanges {
				if pool.Overlaps(nft.PrefixRange(p)) {
					v.add(pools.flag, pool.String(), "overlaps the range of cluster IPs, %s: give another pool, or another --service-cluster-ip-range", p)
				}
			}
			for _, other := range before {
				if pool.Overlaps(other) {
					v.add(pools.flag, pool.String(), "overlaps the pool %s: give every address once", other)
				}
			}
			before = append(before, pool)
		}
	}
	from := c.Addresses.InternalFrom
	if len(c.Addresses.InternalPools) > 0 && len(c.Addresses.ClusterCIDRs)+len(from.Prefixes)+len(from.Interfaces) == 0 {
		v.add("load-balancer-internal-pool", c.Addresses.InternalPools[0].String(),
			"no client is inside and could reach it: name the clients inside with --load-balancer-internal-from, as 10.0.0.0/8 or eth1, or with --cluster-cidr")
	}
}

// validateServiceRanges checks the ranges for cluster IPs.
func (c *Config) validateServiceRanges(v *validation) {
	const flag = "service-cluster-ip-range"
	if len(c.Addresses.ClusterIPRanges) == 0 {
		v.add(flag, "", "cluster IPs must come from somewhere: give a CIDR, or one for each family, as 10.96.0.0/16,fd00:10:96::/112")
	}
	seen := map[int]netip.Prefix{}
	for _, p := range c.Addresses.ClusterIPRanges {
		if other, ok := seen[p.Addr().BitLen()]; ok {
			v.add(flag, p.String(), "there is already one of this family, %s: give at most one for each", other)
		}
		seen[p.Addr().BitLen()] = p
		if hostBits := p.Addr().BitLen() - p.Bits(); hostBits < 63 && 1<<hostBits < minServiceRange {
			v.add(flag, p.String(), "holds %d addresses, at least %d are needed: give a shorter prefix, as /%d",
				1<<hostBits, minServiceRange, p.Addr().BitLen()-3)
		}
		if p.Addr().Is6() && p.Bits() < minServiceBits6 {
			v.add(flag, p.String(), "is larger than can be allocated from: give a longer prefix, as /%d", minServiceBits6)
		}
		if why := object.NotUnicast(p.Masked().Addr(), nft.PrefixRange(p).Last); why != "" {
			v.add(flag, p.String(), "%s cannot be cluster IPs: give a range of unicast addresses", why)
		}
	}
}

// validateModes checks the settings that accept only certain words.
func (c *Config) validateModes(v *validation) {
	oneOf(v, "nodeless-endpoints", c.Services.NodelessEndpoints, NodelessLocal, NodelessRemote)
	if _, err := object.ParseBalance(c.Services.Balance); err != nil {
		oneOf(v, "balance", c.Services.Balance, object.BalanceNames()...)
	}
	oneOf(v, "snat", c.Services.SNAT, SNATAuto, SNATNever)
	oneOf(v, "vip-ping", c.Services.VIPPing, VIPPingWhenReady, VIPPingAlways, VIPPingNever)
	oneOf(v, "source-ranges-apply", c.Services.SourceRangesApply, SourceRangesLoadBalancer, SourceRangesAll)
	oneOf(v, "service-names", c.Services.Names, ServiceNamesRFC1035, ServiceNamesRFC1123)
	oneOf(v, "node-port-space", c.Addresses.NodePortSpace, NodePortPerProtocol, NodePortShared)
	oneOf(v, "cluster-ip-clients", c.Addresses.ClusterIPClients, ClusterIPAll, ClusterIPInternal)
	oneOf(v, "allocate", c.Addresses.Allocate, AllocateAuto, AllocateNever)
	oneOf(v, "legacy-ip", c.Services.LegacyIP, LegacyIPRefuse, LegacyIPAccept)
	oneOf(v, "fast-path", c.Services.FastPath, FastPathOff, FastPathServices, FastPathAll)
	oneOf(v, "traffic", c.Services.Traffic, TrafficCounters, TrafficFlows, TrafficOff)
	if c.Services.ConnectionLog != "" && c.Services.ConnectionLog != "journal" && !filepath.IsAbs(c.Services.ConnectionLog) {
		v.add("connection-log", c.Services.ConnectionLog, "want an absolute path, or journal")
	}
	oneOf(v, "log-format", c.Log.Format, LogText, LogJSON)
}

// validateSourceSets checks source sets. Their names become parts of the names of nft chains and sets.
func (c *Config) validateSourceSets(v *validation) {
	for i, s := range c.Services.SourceSets {
		text := s.Name + "=" + s.File
		if s.Name == "" || len(s.Name) > nft.MaxSourceSetName || len(object.LabelValueProblems(s.Name)) > 0 {
			v.add("source-set", text, "a name has up to %d letters and digits, and between them -, _ and .: give another one", nft.MaxSourceSetName)
		}
		if s.File == "" {
			v.add("source-set", text, "no file is named: write NAME=FILE")
		}
		if slices.ContainsFunc(c.Services.SourceSets[:i], func(o SourceSet) bool { return o.Name == s.Name }) {
			v.add("source-set", text, "the name is given twice: each set has one file")
		}
	}
}

// oneOf adds a problem when value is not one of words.
func oneOf[T ~string](v *validation, flag string, value T, words ...T) {
	if slices.Contains(words, value) {
		return
	}
	choices := object.Texts(words, func(w T) string { return string(w) })
	v.add(flag, string(value), "not a choice: give one of %s", strings.Join(choices, ", "))
}
