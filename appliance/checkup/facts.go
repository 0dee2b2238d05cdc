package checkup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// Facts are settings and counters read from the host, in the network namespace of the reader.
type Facts struct {
	// Forward4 and Forward6 are the settings that forward packets (net.ipv4.ip_forward,
	// net.ipv6.conf.all.forwarding); Has4 and Has6 whether the host has an address of the family that is neither
	// loopback nor link-local. Has4 is only looked up where IPv4 is not forwarded: the kernel lists addresses among all routes.
	Forward4, Forward6, Has4, Has6 bool
	// Interfaces are the settings of each, those of "all" among them, by name.
	Interfaces []Interface
	Conntrack  Conntrack
	// BridgeCalls are the settings by which packets between the ports of a bridge pass the rules for routed ones
	// (module br_netfilter), of those that are on.
	BridgeCalls []string
	// Packaged is set by the caller of Read where systemd runs the units of the package.
	Packaged wire.Packaged
	// LegacyNAT reports whether rules of the old iptables are in use for NAT. LegacyHidden
	// is set when this is unknown: the kernel shows it to root alone.
	LegacyNAT, LegacyHidden bool
}

// Interface is one directory of net.ipv4.conf.
type Interface struct {
	Name          string
	RPFilter      int  // 0 off, 1 strict, 2 loose
	RouteLocalnet bool // 127.0.0.0/8 is reachable from outside
	ARPIgnore     int  // 0: an address of any interface is answered for
	ProxyARP      bool // ARP is answered for addresses that are routed elsewhere, by proxy_arp or proxy_arp_pvlan
}

// Conntrack is the connection tracking table. The counters are sums over all CPUs since
// the namespace was made.
type Conntrack struct {
	Known        bool // the table is there
	Entries, Max uint64
	InsertFailed uint64 // entries that could not be made
	Dropped      uint64 // packets dropped because the table was full
	EarlyDropped uint64 // entries given up so that others found room
	Loose        bool   // connections of TCP are taken up in mid-stream
	Liberal      bool   // segments outside of the window belong to their connection
}

// Read reads the facts from a proc file system. What a kernel does not have is left out;
// an error is about what should be there and cannot be read.
func Read(proc string) (Facts, error) {
	r := reader{proc: proc}
	f := Facts{
		Forward4: r.number("sys/net/ipv4/ip_forward") != 0,
		Forward6: r.number("sys/net/ipv6/conf/all/forwarding") != 0,
		Has6:     r.hasGlobal6(),
	}
	f.Has4 = f.Forward4 || r.hasAddress4()
	f.LegacyNAT, f.LegacyHidden = r.legacyNAT()
	conf := "sys/net/ipv4/conf"
	names, err := os.ReadDir(filepath.Join(proc, conf))
	r.note(err)
	for _, name := range names {
		if name.Name() == "default" { // of interfaces that are not there yet
			continue
		}
		dir := conf + "/" + name.Name()
		f.Interfaces = append(f.Interfaces, Interface{
			Name:          name.Name(),
			RPFilter:      int(r.number(dir + "/rp_filter")),
			RouteLocalnet: r.number(dir+"/route_localnet") != 0,
			ARPIgnore:     int(r.number(dir + "/arp_ignore")),
			ProxyARP:      r.number(dir+"/proxy_arp")+r.number(dir+"/proxy_arp_pvlan") != 0,
		})
	}
	for _, setting := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		if r.number("sys/net/bridge/"+setting) != 0 {
			f.BridgeCalls = append(f.BridgeCalls, "net.bridge."+setting)
		}
	}
	f.Conntrack = r.conntrack()
	return f, errors.Join(r.errs...)
}

// reader reads files of a proc file system and collects the errors.
type reader struct {
	proc string
	errs []error
}

func (r *reader) note(err error) {
	// An interface may go, and a kernel may lack a feature.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.errs = append(r.errs, fmt.Errorf("look at the host: %w", err))
	}
}

func (r *reader) text(path string) string {
	content, err := os.ReadFile(filepath.Join(r.proc, path))
	r.note(err)
	return strings.TrimSpace(string(content))
}

func (r *reader) number(path string) uint64 {
	text := r.text(path)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.note(fmt.Errorf("%s: %w", path, err))
	}
	return n
}

// legacyNAT reports whether the old iptables has a NAT table, or that this is hidden.
func (r *reader) legacyNAT() (has, hidden bool) {
	for _, name := range []string{"net/ip_tables_names", "net/ip6_tables_names"} {
		content, err := os.ReadFile(filepath.Join(r.proc, name))
		if errors.Is(err, fs.ErrPermission) {
			hidden = true
			continue
		}
		r.note(err)
		has = has || slices.Contains(strings.Fields(string(content)), "nat")
	}
	return has, hidden && !has
}

// hasAddress4 reports whether the host has an IPv4 address other than of loopback and link-local ones, which is taken for
// granted where the routes cannot be read. A line of fib_trie has the address ("|-- 192.0.2.1"), the one after it what
// it is ("/32 host LOCAL").
func (r *reader) hasAddress4() bool {
	routes, err := os.Open(filepath.Join(r.proc, "net/fib_trie"))
	if err != nil {
		r.note(err)
		return true
	}
	defer routes.Close()
	var addr netip.Addr
	lines := bufio.NewScanner(routes)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if text, is := strings.CutPrefix(line, "|-- "); is {
			addr, err = netip.ParseAddr(text)
			continue
		}
		if strings.HasSuffix(line, "host LOCAL") && err == nil && addr.Is4() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			return true
		}
	}
	r.note(lines.Err())
	return lines.Err() != nil
}

// hasGlobal6 reports whether an interface has an IPv6 address of global scope (the fourth
// column of if_inet6, which is 00 then).
func (r *reader) hasGlobal6() bool {
	for line := range strings.Lines(r.text("net/if_inet6")) {
		if fields := strings.Fields(line); len(fields) == 6 && fields[3] == "00" && fields[5] != "lo" {
			return true
		}
	}
	return false
}

func (r *reader) conntrack() Conntrack {
	max := r.number("sys/net/netfilter/nf_conntrack_max")
	if max == 0 {
		return Conntrack{}
	}
	c := Conntrack{Known: true, Max: max, Entries: r.number("sys/net/netfilter/nf_conntrack_count")}
	c.Loose = r.number("sys/net/netfilter/nf_conntrack_tcp_loose") != 0
	c.Liberal = r.number("sys/net/netfilter/nf_conntrack_tcp_be_liberal") != 0
	content, err := os.ReadFile(filepath.Join(r.proc, "net/stat/nf_conntrack"))
	r.note(err)
	c.countFrom(content)
	return c
}

// countFrom adds up the statistics: a line of names, then a line of hexadecimal numbers
// for each CPU.
func (c *Conntrack) countFrom(stat []byte) {
	lines := bufio.NewScanner(bytes.NewReader(stat))
	if !lines.Scan() {
		return
	}
	names := strings.Fields(lines.Text())
	for lines.Scan() {
		for i, field := range strings.Fields(lines.Text()) {
			n, err := strconv.ParseUint(field, 16, 64)
			if err != nil || i >= len(names) {
				continue
			}
			switch names[i] {
			case "insert_failed":
				c.InsertFailed += n
			case "drop":
				c.Dropped += n
			case "early_drop":
				c.EarlyDropped += n
			}
		}
	}
}
