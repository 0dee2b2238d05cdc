package box

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// Doctor lists the obstacles to announcing, with the next step, and nothing without a pool.
func TestAnnouncingFindings(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	announcer := &wire.Announcer{Since: time.Now()}
	onLink, away := "192.0.2.100-192.0.2.110", "198.51.100.0-198.51.100.15"
	announced := []wire.Announcement{{Address: "192.0.2.100", Places: []wire.Place{{By: "l2 eth0", State: "announced"}}}, {Address: "192.0.2.101", Withheld: "no ready endpoint"}}
	problem := func(reason, severity, message string) []wire.Problem {
		return []wire.Problem{{Object: "Service default/web", Reason: "FieldValueInvalid", Message: "of somebody else; no", Severity: wire.SeverityError}, {Reason: reason, Severity: severity, Message: message}}
	}
	for name, tt := range map[string]struct {
		all      wire.Announcements
		problems []wire.Problem
		want     string // level and message; "": no finding
		advice   string
	}{
		"no pool": {wire.Announcements{}, nil, "", ""},
		"well":    {wire.Announcements{Ranges: []string{onLink}, Items: announced, Announcer: announcer}, nil, "ok 1 of 2 addresses are announced", ""},
		"standing by": {wire.Announcements{Ranges: []string{onLink}, Announcer: announcer, Items: []wire.Announcement{{Address: "192.0.2.100", Places: []wire.Place{{By: "l2 eth0", State: "standby", With: "192.0.2.2"}}}}}, nil,
			"ok 0 of 1 addresses are announced; for 1 another box answers, and this one stands by", ""},
		"whole network":    {wire.Announcements{Ranges: []string{"2001:db7::-2001:db9::"}, Announcer: announcer}, nil, "ok 0 of 0 addresses", ""},
		"nobody announces": {wire.Announcements{Ranges: []string{away, onLink}}, nil, "warning no announcer is connected, and pools", "run `svcctl announce`"},
		"routed":           {wire.Announcements{Ranges: []string{away}}, nil, "ok no announcer is connected; routers", ""},
		"on no segment":    {wire.Announcements{Ranges: []string{onLink, away}, Announcer: announcer}, nil, "warning pools lie in no network of this box, and no BGP peer gets routes to them: " + away, "--peer"},
		"by BGP":           {wire.Announcements{Ranges: []string{away}, Announcer: announcer, Peers: []wire.Peer{{Name: "tor", State: wire.Established}}}, nil, "ok 0 of 0 addresses", ""},
		"drained":          {wire.Announcements{Ranges: []string{onLink}, Announcer: announcer, Drained: true}, nil, "warning this box is drained", "undrain"},
		"peer down":        {wire.Announcements{Ranges: []string{onLink}, Announcer: announcer}, problem("PeerDown", "warning", "no BGP session with tor: refused; compare the AS"), "warning no BGP session with tor: refused", "compare the AS"},
		"conflict":         {wire.Announcements{Ranges: []string{onLink}, Announcer: announcer}, problem("AddressConflict", wire.SeverityError, "192.0.2.100 is not announced; take it away"), "error 192.0.2.100 is not announced", "take it away"},
		"no right": {wire.Announcements{Ranges: []string{onLink}, Announcer: announcer}, problem("Announcer", "warning", "nothing is announced on eth0 for now: not permitted; give `svcctl announce` CAP_NET_RAW"),
			"warning nothing is announced on eth0", "CAP_NET_RAW"},
	} {
		found := announcingFindings(&cli.Env{}, &tt.all, tt.problems, networks)
		if tt.want == "" {
			if len(found) != 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || !strings.HasPrefix(string(found[0].Level)+" "+found[0].Message, tt.want) || !strings.Contains(found[0].Advice, tt.advice) || (found[0].Advice == "") != (tt.advice == "") {
			t.Errorf("%s: %+v, want %q, %q", name, found, tt.want, tt.advice)
		}
	}
}
