package box

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// defaultAnnounceDir is RuntimeDirectory= of svcctl-announce.service.
const defaultAnnounceDir = "/run/svcctl-announce"

func AnnounceVerb() *cli.Verb {
	return &cli.Verb{
		Name: "announce",
		Options: slices.Concat([]*cli.Option{
			{Name: "l2", Arg: "INTERFACE|auto", Def: announce.Auto + " without --peer", Repeats: true, Group: cli.GroupHow,
				Usage: "interface to announce on, waited for if it is not there; auto: every one with an address in its network; repeatable"},
			{Name: "vrid", Arg: "NUMBER", Group: groupElection,
				Usage: "take part in the election of this virtual router, 1 to 255, by VRRPv3 on these interfaces"},
			{Name: "priority", Arg: "NUMBER", Def: "100", Group: groupElection, Usage: "of this box, 2 to 254: the highest wins"},
			{Name: "interval", Arg: "DURATION", Def: "100ms", Group: groupElection,
				Usage: "between advertisements, 10ms to 40s; a box counts as dead after three intervals"},
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

// runAnnounce announces until a signal stops it.
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
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, stop := stopOnSignal(ctx, signals, log, "neighbors get no answer, and routers no route, until it is started again", func(code int) {
		env.Log.Flush(LastWords)
		os.Exit(code)
	})
	defer stop()
	return env.Announce(ctx, a, log)
}

const groupElection = "Election of the active box"

// electionOf reads the flags of the election.
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
	vrid, err := strconv.ParseUint(v.Option("vrid").Text(), 10, 8)
	if err != nil || vrid == 0 {
		return cli.Usagef("--vrid %q is no number from 1 to 255", v.Option("vrid").Text())
	}
	priority, err := strconv.ParseUint(v.Option("priority").Text(), 10, 8)
	if err != nil || priority < 2 || priority > 254 {
		return cli.Usagef("--priority %q is no number from 2 to 254", v.Option("priority").Text())
	}
	const step = 10 * time.Millisecond
	interval, err := time.ParseDuration(v.Option("interval").Text())
	if err != nil || interval < step || interval > vrrp.MaxInterval || interval%step != 0 {
		return cli.Usagef("--interval %q is no duration from 10ms to 40.95s in steps of 10ms", v.Option("interval").Text())
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
	a.Election = &vrrp.Config{VRID: uint8(vrid), Priority: uint8(priority), Interval: interval, Preempt: v.Option("preempt").On()}
	return nil
}

func announceStatusVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "announce status",
		Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormYAML, cli.FormJSON)}, settings.ConnectOptions()),
		Run:     runAnnouncements,
	}
}

// runAnnouncements prints the announced addresses.
func runAnnouncements(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	all, err := client.Call(ctx, c, wire.GetAnnouncements, wire.None{})
	if err != nil {
		return err
	}
	return env.Output(v, all, func() string { return announcementsText(all, env.Packaged) })
}

// announcementsText is the table.
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

// announcementRows are a row for each place of an address.
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
	return at.UTC().Format("2006-01-02T15:04:05Z")
}

// groupText is a line about the election; "" without one.
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

// peersText is the table of routers; "" without any.
func peersText(peers []wire.Peer) string {
	if len(peers) == 0 {
		return ""
	}
	rows := [][]string{{"PEER", "AT", "AS", "STATE", "SINCE", "ROUTES", "BFD", "LAST DOWN"}}
	for _, p := range peers {
		as, bfd, last := "-", "-", "-"
		if p.AS != 0 {
			as = strconv.FormatUint(uint64(p.AS), 10)
		}
		if p.BFD != "" {
			bfd = p.BFD
		}
		if p.LastDown != "" {
			last = sinceText(p.DownAt) + ": " + p.LastDown
		}
		rows = append(rows, []string{p.Name, p.At, as, p.State, sinceText(p.Since), strconv.Itoa(p.Routes), bfd, last})
	}
	return "\n" + new(output.Grid).Text(rows...)
}
