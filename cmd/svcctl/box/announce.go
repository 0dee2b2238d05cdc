package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

// defaultAnnounceDir is the runtime directory of the announcer: RuntimeDirectory= of svcctl-announce.service.
const defaultAnnounceDir = "/run/svcctl-announce"

func AnnounceVerb() *cli.Verb {
	return &cli.Verb{
		Name: "announce",
		Options: slices.Concat([]*cli.Option{
			{Name: "l2", Arg: "INTERFACE|auto", Def: announce.Auto + " without --peer", Repeats: true, Group: cli.GroupHow,
				Usage: "interface to announce on, waited for if it is not there; auto: every one with an address in its network; repeatable"},
			{Name: "vrid", Arg: "NUMBER", Number: [2]int{1, 255}, Group: groupElection,
				Usage: "take part in the election of this virtual router, 1 to 255, by VRRPv3 on these interfaces"},
			{Name: "priority", Arg: "NUMBER", Def: "100", Number: [2]int{2, 254}, Group: groupElection, Usage: "of this box, 2 to 254: the highest wins"},
			{Name: "interval", Arg: "DURATION", Def: "100ms", Group: groupElection,
				Bounds: &cli.Bounds{Least: 10 * time.Millisecond, Most: vrrp.MaxInterval, Step: 10 * time.Millisecond, As: "100ms, from 10ms to 40.95s in steps of 10ms"},
				Usage:  "between advertisements, 10ms to 40.95s; a box counts as dead after three intervals"},
			{Name: "preempt", Group: groupElection, Usage: "take over from a healthy box of lower priority"},
			{Name: "gateway", Arg: "ADDRESS", Repeats: true, Group: groupElection,
				Usage: "the active box answers for this address too, the servers' router; repeatable"},
			{Name: "follow", Arg: "ADDRESS", Group: groupElection,
				Usage: "no election: answer while an interface of this box has the address, as with keepalived"},
			{Name: "state-dir", Arg: cli.ArgDir, Def: defaultAnnounceDir, Group: settings.GroupPlaces,
				Usage: "state for the next start; it must not survive a boot"},
		}, bgpOptions(), settings.Options("", "log-level", "log-format"), settings.SocketOptions()),
		Verbs: cli.Words(announceStatusVerb(), drainVerb(), undrainVerb()),
		Run:   runAnnounce,
	}
}

// runAnnounce runs the announcer until a signal stops it.
func runAnnounce(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	a := announce.Config{Socket: cfg.API.Socket, StateDir: v.Option("state-dir").Text(), L2: v.Option("l2").Texts}
	if len(a.L2) == 0 && !v.Option("peer").IsSet() {
		a.L2 = []string{announce.Auto}
	}
	for _, name := range a.L2 {
		if name == "" || len(name) >= maxInterfaceName || strings.ContainsAny(name, "/ \t\n") {
			return cli.Usagef("--l2 %q is no name of an interface: give one as `ip link` lists them, or auto", name)
		}
	}
	if !filepath.IsAbs(a.StateDir) {
		return cli.Usagef("--state-dir %q is no absolute path", a.StateDir)
	}
	if err := electionOf(v, &a); err != nil {
		return err
	}
	if len(a.L2) == 0 && (a.Election != nil || a.Follow.IsValid()) {
		return cli.Usagef("--vrid and --follow are about answers on segments, and with --peer there are none by default: give the interfaces with --l2")
	}
	if a.BGP, err = bgpOf(v); err != nil {
		return err
	}
	log := openLog(env, &cfg.Log)
	ctx, stop := untilSignal(ctx, env, log, "neighbors get no answer, and routers no route, until it is started again")
	defer stop()
	return env.Announce(ctx, a, log)
}

const groupElection = "Election of the active box"

// electionOf sets the fields of a from the flags about the election.
func electionOf(v *cli.Verb, a *announce.Config) error {
	if o := v.Option("follow"); o.IsSet() {
		addr, err := netip.ParseAddr(o.Text())
		if err != nil || addr.Zone() != "" {
			return cli.Usagef("--follow %q is no address", o.Text())
		}
		a.Follow = addr
	}
	if !v.Option("vrid").IsSet() {
		for _, name := range []string{"priority", "interval", "preempt", "gateway"} {
			if v.Option(name).IsSet() {
				return cli.Usagef("--%s is about an election: give it a --vrid", name)
			}
		}
		return nil
	}
	if a.Follow.IsValid() {
		return cli.Usagef("--follow leaves the election to another program, and --vrid holds one: leave one of them out")
	}
	for _, text := range v.Option("gateway").Texts {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || addr.Is4In6() || !addr.IsGlobalUnicast() {
			return cli.Usagef("--gateway %q is no address of a router: write one like 10.1.0.254 or 2001:db8::fe", text)
		}
		if !slices.Contains(a.Gateways, addr) {
			a.Gateways = append(a.Gateways, addr)
		}
	}
	a.Election = &vrrp.Config{VRID: uint8(v.Option("vrid").Int()), Priority: uint8(v.Option("priority").Int()),
		Interval: v.Option("interval").Duration(), Preempt: v.Option("preempt").On()}
	return nil
}

func announceStatusVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "announce status",
		Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormYAML, cli.FormJSON)}, settings.ConnectOptions()),
		Run:     runAnnouncements,
	}
}

// runAnnouncements prints the Service addresses that are announced.
func runAnnouncements(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	all, err := client.Call(ctx, env.Client(v), wire.GetAnnouncements, wire.None{})
	if err != nil {
		return err
	}
	return env.Output(v, all, func() string { return announcementsText(all, env.Packaged) })
}

// announcementsText formats the announcements of addresses as text with a table.
func announcementsText(all *wire.Announcements, packaged wire.Packaged) string {
	text := ""
	if all.Announcer == nil {
		text = "No announcer is connected, and neighbors do not find these addresses: run " + packaged.Announce() + ".\n\n"
	}
	if len(all.Ranges) == 0 {
		return "Nothing can be announced: there is no pool. Add " + packaged.Pool() + ", or an IPAddressPool.\n"
	}
	if all.Drained {
		text += "This box is drained: it announces nothing. `svcctl announce undrain` ends that.\n\n"
	}
	text += groupText(all.Group)
	if len(all.Items) == 0 {
		return text + "No Service has an address in " + strings.Join(all.Ranges, ", ") + ".\n" + peersText(all.Peers)
	}
	rows := [][]string{{"ADDRESS", "SERVICE", "BY", "STATE", "SINCE"}}
	for _, item := range all.Items {
		rows = append(rows, announcementRows(&item)...)
	}
	return text + new(output.Grid).Text(rows...) + peersText(all.Peers)
}

// announcementRows returns a row for each place where an address is announced. If there is none, it returns one row with the reason.
func announcementRows(item *wire.Announcement) (rows [][]string) {
	services := strings.Join(item.Services, ",")
	if item.Withheld != "" {
		return [][]string{{item.Address, services, "-", "withheld: " + item.Withheld, "-"}}
	}
	if len(item.Places) == 0 {
		return [][]string{{item.Address, services, "-", "not announced: " + item.Nowhere, "-"}}
	}
	for _, place := range item.Places {
		state := place.State
		switch {
		case place.With != "" && place.State == "standby":
			state += ": " + place.With + " answers"
		case place.With != "":
			state += " with " + place.With
		}
		if place.Why != "" {
			state += ": " + place.Why
		}
		rows = append(rows, []string{item.Address, services, place.By, state, sinceText(place.Since)})
	}
	return rows
}

func sinceText(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

// groupText formats the state of the election as a line; "" if there is no election.
func groupText(g *wire.Group) string {
	if g == nil {
		return ""
	}
	text := fmt.Sprintf("Virtual router %d: %s since %s, priority %d", g.VRID, g.State, sinceText(g.Since), g.Priority)
	if g.State == "active" && g.Interval != "" {
		text += ", adverts every " + g.Interval
	}
	if g.Master != "" {
		text += ", " + g.Master + " answers"
	}
	if g.Differs != nil {
		text += "; " + g.Differs.With + " announces other addresses, `svcctl status` names them"
	}
	return text + "\n\n"
}

// peersText formats the BGP peers as a table; "" if there are none.
func peersText(peers []wire.Peer) string {
	if len(peers) == 0 {
		return ""
	}
	rows := [][]string{{"PEER", "AT", "AS", "STATE", "SINCE", "ROUTES", "BFD", "LAST DOWN"}}
	for _, p := range peers {
		as, last := "-", "-"
		if p.AS != 0 {
			as = strconv.FormatUint(uint64(p.AS), 10)
		}
		if p.LastDown != "" {
			last = sinceText(p.DownAt) + ": " + p.LastDown
		}
		rows = append(rows, []string{p.Name, p.At, as, p.State, sinceText(p.Since), strconv.Itoa(p.Routes), cmp.Or(p.BFD, "-"), last})
	}
	return "\n" + new(output.Grid).Text(rows...)
}

const groupBGP = "BGP"

// bgpOptions returns the flags about BGP.
func bgpOptions() []*cli.Option {
	return []*cli.Option{
		{Name: "asn", Arg: "NUMBER", Group: groupBGP, Usage: "the autonomous system of this box"},
		{Name: "peer", Arg: "[NAME=]ASN@ADDRESS[%IF]", Repeats: true, Group: groupBGP,
			Usage: "router to announce to, with its AS, or internal, or external for any other; ASN@INTERFACE: the one router on that interface; repeatable"},
		{Name: "peer-password-file", Arg: cli.ArgFile, Group: groupBGP, Usage: "file with the password of TCP MD5 signatures (RFC 2385), for all peers"},
		{Name: "bfd", Arg: "INTERVAL[xMULTIPLIER]", Group: groupBGP,
			Usage: "watch the peers by BFD (RFC 5880), as 300ms or 100msx5: a peer is down after so many silent intervals, 3 by default"},
		{Name: "bfd-minimum-ttl", Arg: "NUMBER", Def: "1", Number: [2]int{1, 255}, Group: groupBGP,
			Usage: "with --multihop: drop BFD packets with a lower TTL, 1 to 255; BIRD sends with 64, FRR with 255"},
		{Name: "community", Arg: "COMMUNITY", Repeats: true, Group: groupBGP,
			Usage: "community of every route, as 64512:100, 64512:1:2 (large), no-export or no-advertise; repeatable"},
		{Name: "local-pref", Arg: "NUMBER", Number: [2]int{1, math.MaxUint32}, Group: groupBGP, Usage: "preference of every route to peers of our own AS (default: 100)"},
		{Name: "graceful-restart", Arg: "DURATION", Group: groupBGP,
			Bounds: &cli.Bounds{Least: time.Second, Most: 4095 * time.Second, Step: time.Second, As: "120s, from 1s to 4095s in whole seconds"},
			Usage:  "time for which peers keep the routes when this process dies, 1s to 4095s (RFC 4724)"},
		{Name: "ttl-security", Group: groupBGP, Usage: "accept only packets of peers one hop away (RFC 5082); they must send with a TTL of 255"},
		{Name: "multihop", Group: groupBGP, Usage: "peers may be several hops away"},
	}
}

// bgpOf returns the BGP configuration from the flags; nil if they specify no peer.
func bgpOf(v *cli.Verb) (*announce.BGP, error) {
	if !v.Option("peer").IsSet() {
		for _, o := range bgpOptions() {
			if v.Option(o.Name).IsSet() {
				return nil, cli.Usagef("--%s is about BGP: give it a --peer", o.Name)
			}
		}
		return nil, nil
	}
	asn, err := asNumber(v.Option("asn").Text())
	if err != nil {
		return nil, cli.Usagef("--asn %q: %w; --peer needs it", v.Option("asn").Text(), err)
	}
	all := bgp.Peer{LocalAS: asn, IPv4: true, IPv6: true, MultiHop: v.Option("multihop").On()}
	all.Timers.Restart = v.Option("graceful-restart").Duration()
	if v.Option("ttl-security").On() {
		if all.MultiHop {
			return nil, cli.Usagef("--ttl-security is about peers one hop away, and --multihop about others: leave one of them out")
		}
		all.TTLSecurity = 1
	}
	if o := v.Option("peer-password-file"); o.IsSet() {
		if all.Password, err = passwordOf(o.Text()); err != nil {
			return nil, cli.Usagef("--peer-password-file: %w", err)
		}
	}
	b := &announce.BGP{}
	names := map[string]bool{}
	for _, text := range v.Option("peer").Texts {
		p, err := peerOf(text, all)
		if err == nil {
			err = p.Check()
		}
		if err != nil {
			return nil, cli.Usagef("--peer %q: %w", text, err)
		}
		if names[p.Name] {
			return nil, cli.Usagef("--peer %q: there are two of the name %s: give them others, as tor-1=%s", text, p.Name, text)
		}
		names[p.Name] = true
		b.Peers = append(b.Peers, p)
	}
	if v.Option("bfd-minimum-ttl").IsSet() && !(v.Option("bfd").IsSet() && all.MultiHop) {
		return nil, cli.Usagef("--bfd-minimum-ttl is about BFD with peers several hops away: give it --bfd and --multihop; others have to send with 255")
	}
	if o := v.Option("bfd"); o.IsSet() {
		b.BFDMinTTL = v.Option("bfd-minimum-ttl").Int()
		if b.BFD, err = bfdOf(o.Text()); err != nil {
			return nil, cli.Usagef("--bfd %q: %w", o.Text(), err)
		}
	}
	return b, attributesOf(v, b)
}

func asNumber(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || n == 1<<32-1 {
		return 0, errors.New("an AS is a number from 1 to 4294967294")
	}
	return uint32(n), nil
}

// passwordOf returns the password in a file. It returns an error if users other than the file's owner and group have access to it.
func passwordOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("everybody may read %s: run `chmod 600 %s`", path, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(content), "\r\n")
	if password == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return password, nil
}

var peerName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:%-]*[A-Za-z0-9])?$`)

// peerOf parses a peer: "[NAME=]ASN@ADDRESS[%IF]" or "[NAME=]ASN@INTERFACE". all has the settings common to all peers.
func peerOf(text string, all bgp.Peer) (announce.Peer, error) {
	p := announce.Peer{Peer: all}
	name, rest, named := strings.Cut(text, "=")
	if !named {
		rest = text
	}
	as, at, is := strings.Cut(rest, "@")
	if !is || at == "" {
		return p, errors.New("want ASN@ADDRESS or ASN@INTERFACE, as 64513@192.0.2.1")
	}
	switch as {
	case string(bgp.Internal), string(bgp.External):
		p.Dynamic = bgp.Dynamic(as)
	default:
		var err error
		if p.RemoteAS, err = asNumber(as); err != nil {
			return p, err
		}
	}
	switch addr, err := netip.ParseAddr(at); {
	case err == nil && addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		return p, fmt.Errorf("%s is on every interface: name one, as %s%%eth0", addr, addr)
	case err == nil && addr.Zone() != "" && !addr.IsLinkLocalUnicast():
		return p, fmt.Errorf("%s is no link-local address: leave out the interface", addr.WithZone(""))
	case err == nil && (addr.IsUnspecified() || addr.IsMulticast()):
		return p, fmt.Errorf("%s is no address of a router", addr)
	case err == nil:
		p.Addr = netip.AddrPortFrom(addr.Unmap(), bgp.Port)
	case strings.ContainsAny(at, ":/ \t\n%") || len(at) >= maxInterfaceName || looksLikeIPv4(at):
		return p, fmt.Errorf("%q is neither an address nor a name of an interface", at)
	default:
		p.Interface = at
	}
	if p.Name = name; !named {
		p.Name = p.Peer.String()
	}
	if !peerName.MatchString(p.Name) || len(p.Name) > 63 {
		return p, fmt.Errorf("the name %q is not of letters, digits, and . - _ in between, 63 at most", p.Name)
	}
	return p, nil
}

// looksLikeIPv4 reports whether a text consists of digits and dots, so that it was probably meant as an address.
func looksLikeIPv4(text string) bool { return strings.Trim(text, "0123456789.") == "" }

// bfdOf parses BFD timers: an interval with an optional multiplier, such as "300ms" or "300msx3".
func bfdOf(text string) (*bfd.Timers, error) {
	interval, times, multiplied := strings.Cut(text, "x")
	every, err := time.ParseDuration(interval)
	if err != nil || every <= 0 {
		return nil, errors.New("want an interval and how many of them, as 300ms or 100msx5")
	}
	t := &bfd.Timers{Transmit: every, Receive: every}
	if multiplied {
		if t.Multiplier, err = strconv.Atoi(times); err != nil || t.Multiplier < 1 {
			return nil, fmt.Errorf("%q is no number from 1 to 255", times)
		}
	}
	return t, t.Check()
}

// namedCommunities are the standard communities that can be given by name (RFC 1997, RFC 3765, RFC 7999).
var namedCommunities = map[string]uint32{
	"no-export": 0xffffff01, "no-advertise": 0xffffff02, "no-export-subconfed": 0xffffff03, "no-peer": 0xffffff04, "blackhole": 0xffff029a,
}

// attributesOf sets the path attributes of all routes from the flags.
func attributesOf(v *cli.Verb, b *announce.BGP) error {
	for _, text := range v.Option("community").Texts {
		if named, is := namedCommunities[text]; is {
			b.Attributes.Communities = append(b.Attributes.Communities, named)
			continue
		}
		form := text
		if strings.Count(text, ":") != 1 {
			form = "large:" + text
		}
		switch numbers, err := object.ParseCommunity(form); {
		case err != nil:
			return cli.Usagef("--community %q: want 64512:100 with numbers up to 65535, 64512:1:2 with numbers up to 4294967295, no-export, no-advertise, no-peer or blackhole", text)
		case len(numbers) == 2:
			b.Attributes.Communities = append(b.Attributes.Communities, numbers[0]<<16|numbers[1])
		default:
			b.Attributes.Large = append(b.Attributes.Large, bgp.LargeCommunity(numbers))
		}
	}
	if err := b.Attributes.Check(); err != nil {
		return cli.Usagef("--community: %w", err)
	}
	o := v.Option("local-pref")
	if !o.IsSet() {
		return nil
	}
	for _, p := range b.Peers {
		if p.Dynamic == bgp.Internal || p.RemoteAS == p.LocalAS {
			b.Attributes.LocalPref = uint32(o.Int())
			return nil
		}
	}
	return cli.Usagef("--local-pref is sent to peers of our own AS alone, and no --peer is one: leave it out")
}

// maxInterfaceName is IFNAMSIZ: the maximum length of an interface name including the terminating NUL.
const maxInterfaceName = 16
