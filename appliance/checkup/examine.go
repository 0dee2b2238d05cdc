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
	"regexp"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// Level is the severity of a Finding.
type Level string

// The values of Level.
const (
	OK      Level = "ok"
	Warning Level = "warning" // may be intended, or may become an error soon
	Error   Level = "error"   // something does not work because of the finding
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"` // subject of the check in one word, such as "forwarding"
	Level   Level  `json:"level"`
	Message string `json:"message"`          // what was found
	Advice  string `json:"advice,omitempty"` // remedy; empty at level OK
}

// Well returns a finding of level OK.
func Well(check, message string) Finding { return Finding{Check: check, Level: OK, Message: message} }

// Doubt returns a finding of level Warning.
func Doubt(check, message, advice string) Finding { return Finding{check, Warning, message, advice} }

// Fault returns a finding of level Error.
func Fault(check, message, advice string) Finding { return Finding{check, Error, message, advice} }

// String returns the message and the advice on one line.
func (f Finding) String() string {
	return strings.TrimSuffix(f.Message+": "+f.Advice, ": ")
}

// conntrackAlarm is the fill level of the conntrack table, in percent, above which Examine warns.
const conntrackAlarm = 80

// Examine returns one finding for each check of the facts, including those at level OK.
func Examine(f *Facts) []Finding {
	return []Finding{f.forwarding(), f.rpFilter(), f.routeLocalnet(), f.conntrack(), f.legacyNAT()}
}

// Unforwarded describes why a host does not forward IPv4 packets if is4 is set, otherwise IPv6 packets, according to the files under proc (such as
// /proc). It returns "" if the host forwards them or if the files cannot be read.
func Unforwarded(proc string, is4 bool) string {
	r := reader{proc: proc}
	if r.forwards(is4) || len(r.errs) > 0 {
		return ""
	}
	return (&Facts{Has4: is4, Has6: !is4, Packaged: Packaged()}).forwarding().String()
}

func (f *Facts) forwarding() Finding {
	const check = "forwarding"
	var off, families []string
	if !f.Forward4 && f.Has4 {
		off, families = append(off, "net.ipv4.ip_forward"), append(families, "IPv4")
	}
	if !f.Forward6 && f.Has6 {
		off, families = append(off, "net.ipv6.conf.all.forwarding"), append(families, "IPv6")
	}
	if len(off) == 0 {
		switch {
		case !f.Has4 && f.Has6:
			return Well(check, "the box forwards IPv6 packets, and has no IPv4 address")
		case f.Has4 && !f.Has6:
			return Well(check, "the box forwards IPv4 packets, and has no global IPv6 address")
		}
		return Well(check, "the box forwards packets")
	}
	verb := " is"
	if len(off) > 1 {
		verb = " are"
	}
	message := fmt.Sprintf("%s%s 0, so the box serves only itself over %s", strings.Join(off, " and "), verb, strings.Join(families, " and "))
	return Fault(check, message, f.Packaged.Sysctl("1", off...))
}

// rpFilter checks the reverse path filters of interfaces. The effective value is the larger of the interface's value and that of "all";
// loose (2) is larger than strict (1) (ip-sysctl of the kernel).
func (f *Facts) rpFilter() Finding {
	all := 0
	for _, i := range f.Interfaces {
		if i.Name == "all" {
			all = i.RPFilter
		}
	}
	var strict []string
	for _, i := range f.Interfaces {
		if i.Name != "all" && i.Name != "lo" && max(all, i.RPFilter) == 1 {
			strict = append(strict, i.Name)
		}
	}
	if len(strict) == 0 {
		return Well("rp_filter", "no interface has a strict reverse path filter")
	}
	return Doubt("rp_filter", "interfaces with a strict reverse path filter: "+strings.Join(strict, ", "),
		"packets that come in by another interface than replies leave by are dropped silently; if there are such, set net.ipv4.conf.all.rp_filter=2")
}

func (f *Facts) routeLocalnet() Finding {
	var open []string
	for _, i := range f.Interfaces {
		if i.RouteLocalnet {
			open = append(open, i.Name)
		}
	}
	if len(open) == 0 {
		return Well("route_localnet", "loopback addresses are reachable from the box alone")
	}
	return Fault("route_localnet", "net.ipv4.conf.*.route_localnet is 1 for "+strings.Join(open, ", ")+
		": neighbors can reach what listens on 127.0.0.1 only", "set it to 0; svcctl does not need it")
}

func (f *Facts) conntrack() Finding {
	c := f.Conntrack
	switch {
	case !c.Known:
		return Doubt("conntrack", "connections are not tracked yet",
			"they are while svcctl runs; if not, load the module nf_conntrack (`modprobe nf_conntrack`)")
	case c.Entries*100 >= c.Max*conntrackAlarm:
		fill := fmt.Sprintf("more than %d %% full", conntrackAlarm)
		if c.Entries*100 >= c.Max*99 {
			fill = "full"
		}
		return Fault("conntrack", fmt.Sprintf("the connection tracking table is %s (net.netfilter.nf_conntrack_max is %d); new connections fail when it is full",
			fill, c.Max), "raise net.netfilter.nf_conntrack_max, or find out which clients open so many connections (`conntrack -L`)")
	}
	return Well("conntrack", fmt.Sprintf("%d of %d entries are in use", c.Entries, c.Max))
}

func (f *Facts) legacyNAT() Finding {
	switch {
	case f.LegacyHidden:
		return Well("iptables", "only root can see whether the old iptables has NAT rules")
	case !f.LegacyNAT:
		return Well("iptables", "no NAT rules of the old iptables")
	}
	return Doubt("iptables", "the old iptables (not nftables) has a NAT table too",
		"the first of the two with a matching rule translates a connection; give their rules different addresses, or move to iptables-nft")
}

// dockerBridge matches the names that Docker gives to its bridges.
var dockerBridge = regexp.MustCompile(`^(docker[0-9]+|br-[0-9a-f]{12})$`)

// ExamineDocker returns a finding about Docker bridges among the given interface names, since endpoints may be in containers of this box.
// Docker 28 and later drop packets from other hosts to unpublished ports (moby/moby#48724). Docker's rules cannot be detected because they
// are in chains without a hook.
func ExamineDocker(bridges []string) Finding {
	const check = "docker"
	for _, name := range bridges {
		if dockerBridge.MatchString(name) {
			return Well(check, "the box has networks of Docker ("+name+"), which from version 28 on drops what other hosts send to container ports that are not published: "+
				"for endpoints there, create the network with `-o com.docker.network.bridge.gateway_mode_ipv4=nat-unprotected`, or publish the port and use `docker:LABEL?published`")
		}
	}
	return Well(check, "no network of Docker is on the box")
}

// ExamineBridges returns a finding about endpoints behind bridges of this box, such as containers and virtual machines. With br_netfilter a
// packet translated to an endpoint behind the same bridge goes straight to the endpoint's port and bypasses routing. A client that is
// balanced to itself is therefore not masqueraded (br_nf_pre_routing_finish of net/bridge/br_netfilter_hooks.c).
func ExamineBridges(f *Facts, bridges []string) Finding {
	const check = "bridges"
	if len(f.BridgeCalls) == 0 || len(bridges) == 0 {
		return Well(check, "packets between the ports of a bridge are left to the bridge")
	}
	verb := " is 1"
	if len(f.BridgeCalls) > 1 {
		verb = " are 1"
	}
	return Doubt(check, strings.Join(f.BridgeCalls, " and ")+verb+": an endpoint behind "+strings.Join(bridges, " or ")+
		" that is balanced to itself gets no answer, and one that is balanced to a neighbor there is not masqueraded",
		"if endpoints there are clients of their own Services, "+f.Packaged.Sysctl("0", f.BridgeCalls...)+"; "+
			"a filter between the ports of a bridge by iptables needs 1")
}

// ExamineAnnouncing returns a finding about the ARP settings of interfaces, for boxes that announce addresses by ARP.
func ExamineAnnouncing(f *Facts) Finding {
	const check = "arp"
	var proxies, ignoring []string
	for _, i := range f.Interfaces {
		if i.ProxyARP {
			proxies = append(proxies, i.Name)
		}
		if i.ARPIgnore > 0 && i.Name != "lo" {
			ignoring = append(ignoring, i.Name)
		}
	}
	switch {
	case len(proxies) > 0:
		return Doubt(check, "the kernel answers ARP for others (proxy_arp, proxy_arp_pvlan) on "+strings.Join(proxies, ", "),
			"a box that stands by may answer for addresses of Services, beside the one that was elected: set both to 0 on the interfaces of --l2")
	case len(ignoring) > 0:
		return Doubt(check, "arp_ignore is set on "+strings.Join(ignoring, ", "),
			"an address of a Service that another interface of this box has, state `host` of `svcctl announce status`, gets no answers to ARP: set it to 0, or take the address off that interface")
	}
	return Well(check, "the kernel answers ARP for addresses of this box alone")
}

// ExamineAdopting returns a finding about conntrack settings, for boxes whose connections are to survive a takeover by another box
// (svcctl.io/adopt-connections, svcctl.io/egress).
func ExamineAdopting(f *Facts) Finding {
	const check = "takeover"
	switch {
	case f.Conntrack.Known && !f.Conntrack.Loose:
		return Fault(check, "net.netfilter.nf_conntrack_tcp_loose is 0: no connection continues when this box takes over, even with svcctl.io/adopt-connections or svcctl.io/egress",
			f.Packaged.Sysctl("1", "net.netfilter.nf_conntrack_tcp_loose"))
	case f.Conntrack.Known && !f.Conntrack.Liberal:
		return Doubt(check, "net.netfilter.nf_conntrack_tcp_be_liberal is 0: when addresses come back to this box without a boot, connections end of which it has old entries",
			f.Packaged.Sysctl("1", "net.netfilter.nf_conntrack_tcp_be_liberal"))
	}
	return Well(check, "connections are taken up in mid-stream")
}

// Certificate is the value of Finding.Check for the certificate of the API.
const Certificate = "certificate"

// Packaged reports whether svcctl runs under systemd here: systemd started this process, or the unit of the package is installed.
func Packaged() wire.Packaged {
	if os.Getenv("INVOCATION_ID") != "" { // systemd.exec(5)
		return true
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	return wire.Packaged(slices.ContainsFunc([]string{"/etc", "/usr/local/lib", "/usr/lib", "/lib"}, func(dir string) bool {
		_, err := os.Stat(dir + "/systemd/system/svcctl.service")
		return err == nil
	}))
}

// Facts holds settings and counters of the host, read in the network namespace of the caller.
type Facts struct {
	// Forward4 and Forward6 are the settings that enable forwarding (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding). Has4 and Has6 report
	// whether the host has an address of the family that is neither loopback nor link-local. Has4 is set without a check if Forward4 is set,
	// because the kernel lists addresses only among all routes.
	Forward4, Forward6, Has4, Has6 bool
	// Interfaces holds the settings of each interface and of "all", sorted by name.
	Interfaces []Interface
	Conntrack  Conntrack
	// BridgeCalls lists the enabled settings of br_netfilter that pass frames between the ports of a bridge through the rules for routed
	// packets.
	BridgeCalls []string
	// Packaged is set by the caller of Read if systemd runs the units of the package.
	Packaged wire.Packaged
	// LegacyNAT reports whether legacy iptables has a NAT table. LegacyHidden reports that this is unknown, because only root can read it.
	LegacyNAT, LegacyHidden bool
}

// Interface has the settings of one directory of net.ipv4.conf.
type Interface struct {
	Name          string
	RPFilter      int  // 0 off, 1 strict, 2 loose
	RouteLocalnet bool // 127.0.0.0/8 is reachable from outside
	ARPIgnore     int  // arp_ignore; 0 answers ARP for an address of any interface
	ProxyARP      bool // answers ARP for addresses that are routed elsewhere (proxy_arp or proxy_arp_pvlan)
}

// Conntrack holds settings and counters of the connection tracking table. Counters are summed over all CPUs since the network namespace was
// created.
type Conntrack struct {
	Known        bool // the kernel has a conntrack table
	Entries, Max uint64
	InsertFailed uint64 // entries that could not be inserted
	Dropped      uint64 // packets dropped because the table was full
	EarlyDropped uint64 // entries evicted to make room for others
	Loose        bool   // picks up TCP connections in mid-stream (nf_conntrack_tcp_loose)
	Liberal      bool   // accepts TCP segments outside of the window (nf_conntrack_tcp_be_liberal)
}

// Read reads the facts from the proc file system at proc. It skips files that the kernel does not have, and joins all other errors.
func Read(proc string) (Facts, error) {
	r := reader{proc: proc}
	f := Facts{Forward4: r.forwards(true), Forward6: r.forwards(false), Has6: r.hasGlobal6()}
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

func (r *reader) forwards(is4 bool) bool {
	return r.number(map[bool]string{true: "sys/net/ipv4/ip_forward", false: "sys/net/ipv6/conf/all/forwarding"}[is4]) != 0
}

// legacyNAT reports whether legacy iptables (not nf_tables) has a NAT table, and whether that could not be read for lack of privileges.
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

// hasAddress4 reports whether the host has an IPv4 address that is neither loopback nor link-local; true if the routes cannot be read. In
// fib_trie a line holds the address ("|-- 192.0.2.1") and the next one its type ("/32 host LOCAL").
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

// hasGlobal6 reports whether an interface other than lo has an IPv6 address of global scope (00 in the fourth column of if_inet6).
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

// countFrom adds up the counters of /proc/net/stat/nf_conntrack: a line of names, then a line of hexadecimal numbers for each CPU.
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
