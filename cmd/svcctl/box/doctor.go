package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

func DoctorVerb() *cli.Verb {
	return &cli.Verb{
		Name: "doctor",
		Options: slices.Concat([]*cli.Option{cli.OutputOption("table", "json", "yaml")}, settings.SocketOptions(),
			settings.Options(settings.GroupConnect, "manifests", "data-dir", "listen", "tls-cert", "tls-key")),
		Run: runDoctor,
	}
}

// diagnosis is the output of doctor.
type diagnosis struct {
	Findings []checkup.Finding `json:"findings"`
}

// runDoctor prints the findings. The exit code is 1 if one is an error.
func runDoctor(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	c := client.New(cfg.API.Socket)
	_, err = c.Version(ctx)
	serving := err == nil
	var more []checkup.Finding
	if setup, err := client.Call(ctx, c, wire.GetSetup, wire.None{}); err == nil {
		more = setupFindings(env, setup)
		// The settings of the running appliance precede the defaults.
		if !v.Option("data-dir").IsSet() {
			cfg.DataDir = setup.DataDir
		}
		if !v.Option("manifests").IsSet() {
			cfg.Manifests = setup.Manifests
		}
		if setup.Certificate != nil {
			cfg.API.TLSCert = "" // reported by its user
		}
	}
	d := diagnosis{Findings: append(env.Doctor(ctx, cfg, serving), more...)}
	if status, err := c.Status(ctx); err == nil {
		d.Findings = slices.Concat(d.Findings, heldFindings(status), fleetFindings(status.Fleet))
		if all, err := client.Call(ctx, c, wire.GetAnnouncements, wire.None{}); err == nil {
			d.Findings = append(d.Findings, announcingFindings(env, all, status.Problems, boxNetworks())...)
			vips := object.Texts(all.Items, func(a wire.Announcement) string { return a.Address })
			d.Findings = append(d.Findings, env.Uplinks(object.Addrs(vips)))
		}
	}
	if seen, err := twoLooks(ctx, c); err == nil { // what cannot be counted is no finding
		d.Findings = slices.Concat(d.Findings, refusalFindings(seen), accountingFindings(seen))
	}
	if seen, err := client.Call(ctx, c, wire.GetTraffic, wire.TrafficQuery{Sort: "unanswered", Limit: 3}); err == nil {
		d.Findings = append(d.Findings, silenceFindings(seen))
	}
	if err := env.Output(v, d, func() string { return doctorPage(d.Findings, env.Color) }); err != nil {
		return err
	}
	wrong := 0
	for _, f := range d.Findings {
		if f.Level == "error" {
			wrong++
		}
	}
	if wrong > 0 {
		return errors.New(output.Count(wrong, "thing") + " wrong with this box")
	}
	return nil
}

// twoLooks returns the Services that refuse the most packets per second. The rates are current only if the last two scans were no further apart than
// longest, so twoLooks repeats the request until they were.
func twoLooks(ctx context.Context, c *client.Client) (*wire.Traffic, error) {
	for {
		seen, err := client.Call(ctx, c, wire.GetTraffic, wire.TrafficQuery{Sort: "refused", Limit: 3})
		if err != nil || !seen.Counted || seen.Seconds > 0 && seen.Seconds <= longest.Seconds() {
			return seen, err
		}
		if err := client.Pause(ctx, lookPause); err != nil {
			return nil, err
		}
	}
}

// longest is the maximum time between two scans for their rates to count as current. The appliance scans at least that often for its own records.
const longest = 2 * time.Minute

// lookPause is the time between two requests. It exceeds the minimum time between two scans of the appliance.
const lookPause = 1100 * time.Millisecond

// reasonAdvice maps the reason for which packets are refused to advice for the user.
var reasonAdvice = map[string]string{
	"no-endpoint":        "`svcctl top -A --once --by refused` lists their Services, and `svcctl explain svc/NAME` has the reason",
	"no-such-port":       "clients use a port that no Service has: `svcctl trace` shows which",
	"not-allocated":      "clients use an address of a Service that is gone, or scan: `svcctl trace` shows which",
	"source-range":       "clients outside of loadBalancerSourceRanges try: `svcctl trace` shows which",
	"inside-only":        "clients outside try an internal load balancer: `svcctl trace` shows which",
	"rate-limit":         "a Service gets more new connections than svcctl.io/rate-limit lets through: `svcctl top` shows which; raise it, or add endpoints",
	"client-rate-limit":  "a client makes more new connections than svcctl.io/client-rate-limit lets through: `svcctl trace` shows which",
	"client-connections": "a client has more open connections than svcctl.io/client-connections allows: `svcctl top --connections` shows which",
	"stray":              "their connections were forgotten, or their packets go past this box one way: see whether routes lead both ways through it",
}

// refusalFindings returns findings about clients whose packets are currently refused.
func refusalFindings(seen *wire.Traffic) []checkup.Finding {
	const check = "refusals"
	if !seen.Counted {
		return nil
	}
	var findings []checkup.Finding
	for i := range seen.Ports {
		if p := &seen.Ports[i]; p.RefusedRate != nil && *p.RefusedRate > 0 {
			findings = append(findings, checkup.Finding{Check: check, Level: "warning",
				Message: fmt.Sprintf("Service %s refuses %s packets a second, as it has no endpoint", output.ServicePort(p.Namespace, p.Service, p.Port), output.Rate(p.RefusedRate)),
				Advice:  fmt.Sprintf("`svcctl explain svc/%s -n %s` has the reason", p.Service, p.Namespace)})
		}
	}
	var total uint64
	for _, n := range seen.Refusals {
		total += n
	}
	for _, reason := range slices.Sorted(maps.Keys(seen.RefusalRates)) {
		if rate := seen.RefusalRates[reason]; rate >= 1 && reason != "no-endpoint" {
			findings = append(findings, checkup.Finding{Check: check, Level: "warning",
				Message: fmt.Sprintf("%s packets a second are refused or dropped: %s", output.Rate(&rate), reason), Advice: reasonAdvice[reason]})
		}
	}
	if findings == nil {
		findings = []checkup.Finding{{Check: check, Level: "ok", Message: fmt.Sprintf("no client is refused (%d packets were, in all)", total)}}
	}
	return findings
}

// silenceFindings returns findings about endpoints that do not answer clients.
func silenceFindings(seen *wire.Traffic) checkup.Finding {
	f := checkup.Finding{Check: "endpoints", Level: "ok", Message: "no Service has more connections without an answer than with one"}
	var silent []string
	for i := range seen.Ports {
		if p := &seen.Ports[i]; p.Unanswered > p.Open {
			silent = append(silent, fmt.Sprintf("%s (%d unanswered, %d open)", output.ServicePort(p.Namespace, p.Service, p.Port), p.Unanswered, p.Open))
		}
	}
	if len(silent) > 0 {
		f.Level, f.Message = "warning", "endpoints leave connections without an answer: "+strings.Join(silent, ", ")
		f.Advice = "`svcctl top -A --once --endpoints --by unanswered` names them: check that they listen, and that their answers come back through this box"
	}
	return f
}

// accountingFindings returns a finding if the kernel does not count bytes.
func accountingFindings(seen *wire.Traffic) []checkup.Finding {
	if seen.NoBytes == "" {
		return nil
	}
	return []checkup.Finding{{Check: "accounting", Level: "ok", Message: "bytes of connections are not counted, because " + seen.NoBytes}}
}

// heldFindings returns findings about objects that stay in force although no file declares them any more, because their removal must be confirmed.
func heldFindings(s *wire.Status) (findings []checkup.Finding) {
	for _, p := range s.Problems {
		switch p.Reason {
		case "UnknownServicesHeld", "MassRemovalHeld":
			message, advice, _ := strings.Cut(p.Message, "; they stay in force as they are: ")
			if advice == "" {
				message, advice, _ = strings.Cut(p.Message, "; as that may be an accident, they stay in force: ")
			}
			findings = append(findings, checkup.Finding{Check: "held", Level: "error", Message: message, Advice: advice})
		}
	}
	return findings
}

// fleetFindings returns a finding if the box is not in sync with its fleet.
func fleetFindings(f *wire.Fleet) []checkup.Finding {
	if f == nil || f.State == wire.FleetFollowing {
		return nil
	}
	return []checkup.Finding{{Check: "fleet", Level: "error", Message: fmt.Sprintf("the state in fleet %s is %s: %s", f.Name, f.State, f.Why),
		Advice: "remove the cause; the box continues on its own then. `svcctl fleet status` shows etcd from here"}}
}

// setupFindings returns findings about the API certificate, and about Service addresses for which nothing answers ARP or neighbor discovery.
func setupFindings(env *cli.Env, s *wire.Setup) (findings []checkup.Finding) {
	if c := s.Certificate; c != nil {
		f := checkup.Finding{Check: "certificate", Level: "ok", Message: fmt.Sprintf("the certificate of the API, %s, is valid until %s", c.File, c.Expires.UTC().Format(time.RFC3339))}
		switch {
		case c.Bad:
			f.Level, f.Message, f.Advice = "error", c.Problem, c.Advice
		case c.Problem != "":
			f.Level, f.Message, f.Advice = "warning", c.Problem, c.Advice
		}
		findings = append(findings, f)
	}
	for i, u := range s.Unanswered {
		f := checkup.Finding{Check: "neighbors", Level: "warning", Message: diagnose.UnansweredText(u), Advice: diagnose.AnswerAdvice(u, env.Packaged)}
		if len(u.Services) > 0 {
			f.Message += " (Service " + strings.Join(u.Services, ", ") + ")"
		}
		if i == len(s.Unanswered)-1 && s.MoreUnanswered > 0 {
			f.Message += fmt.Sprintf("; so do %d more addresses", s.MoreUnanswered)
		}
		findings = append(findings, f)
	}
	return findings
}

// doctorPage formats the findings as text, each followed by its advice.
func doctorPage(findings []checkup.Finding, color bool) string {
	p := &output.Page{Color: color}
	level, check := 0, 0 // the widths of the columns
	for _, f := range findings {
		level, check = max(level, len(f.Level)), max(check, len(f.Check))
	}
	for _, f := range findings {
		code := map[string]string{"ok": output.Green, "warning": output.Yellow, "error": output.Red}[string(f.Level)]
		left := output.Pad(string(f.Level), level+3)[len(f.Level):] + output.Pad(f.Check, check+3)
		indent := output.Pad("", level+check+6)
		p.WriteString(p.Paint(code, string(f.Level)) + left + strings.Join(cli.Lines(errors.New(f.Message)), "\n"+indent) + "\n")
		if f.Advice != "" {
			p.WriteString("        ->" + strings.TrimPrefix(output.Wrap(f.Advice, "           ", output.HelpWidth), "          "))
		}
	}
	return p.String()
}

// boxNetworks returns the networks of the box's interfaces, without loopback and link-local ones.
func boxNetworks() (networks []netip.Prefix) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}

// announcingReasons maps the reasons of problems about announcements to whether such a finding is an error.
var announcingReasons = map[string]bool{
	"AddressConflict": true, "BadConfiguration": true, "GroupDisagrees": false, "PeerDown": false, "Announcer": false, "AnnouncerMissing": false,
}

// announcingFindings returns the findings about announcing Service addresses: problems of the announcer, BGP peers without a session, and pools
// without a route to them.
func announcingFindings(env *cli.Env, all *wire.Announcements, problems []wire.Problem, networks []netip.Prefix) (findings []checkup.Finding) {
	const check = "announcing"
	if len(all.Ranges) == 0 {
		return nil
	}
	for i := range problems {
		problem := &problems[i]
		if isError, is := announcingReasons[problem.Reason]; is {
			message, advice, _ := strings.Cut(problem.Message, "; ")
			advice = cmp.Or(advice, "`svcctl announce status` has details")
			f := checkup.Finding{Check: check, Level: "warning", Message: message, Advice: advice}
			if isError && problem.Severity == wire.SeverityError {
				f.Level = "error"
			}
			if problem.Object != "" {
				f.Message = problem.Object + ": " + f.Message
			}
			findings = append(findings, f)
		}
	}
	var away []string
	for _, text := range all.Ranges {
		if !touches(text, networks) {
			away = append(away, text)
		}
	}
	in := func(state string) (n int) {
		for i := range all.Items {
			if slices.ContainsFunc(all.Items[i].Places, func(p wire.Place) bool { return p.State == state }) {
				n++
			}
		}
		return n
	}
	switch {
	case all.Drained:
		findings = append(findings, checkup.Finding{Check: check, Level: "warning", Message: "this box is drained: it announces nothing", Advice: "`svcctl announce undrain` when it is to take part again"})
	case all.Announcer == nil && len(away) < len(all.Ranges):
		findings = append(findings, checkup.Finding{Check: check, Level: "warning", Message: "no announcer is connected, and pools lie in networks of this box",
			Advice: "run " + env.Packaged.Announce() + ": nothing else answers neighbors for their addresses, unless an interface has them"})
	case all.Announcer != nil && len(away) > 0 && len(all.Peers) == 0:
		findings = append(findings, checkup.Finding{Check: check, Level: "warning", Message: "pools lie in no network of this box, and no BGP peer gets routes to them: " + strings.Join(away, ", "),
			Advice: "add a BGPPeer, or --peer " + env.Packaged.AnnounceFlags() + "; or give the routers routes to this box"})
	case len(findings) == 0 && all.Announcer == nil:
		findings = append(findings, checkup.Finding{Check: check, Level: "ok", Message: "no announcer is connected; routers have routes to the pools, or clients do not reach them"})
	case len(findings) == 0:
		message := fmt.Sprintf("%d of %d addresses are announced", in("announced"), len(all.Items))
		if n := in("standby"); n > 0 {
			message += fmt.Sprintf("; for %d another box answers, and this one stands by", n)
		}
		findings = append(findings, checkup.Finding{Check: check, Level: "ok", Message: message})
	}
	return findings
}

// touches reports whether an address range, such as "192.0.2.16-192.0.2.31", overlaps one of the networks.
func touches(text string, networks []netip.Prefix) bool {
	first, last, err := object.ParseAddressRange(text)
	return err != nil || slices.ContainsFunc(networks, func(p netip.Prefix) bool { // an answer that is not understood is no finding
		return object.InAddressRange(p.Addr(), text) || p.Contains(first) || p.Contains(last)
	})
}
