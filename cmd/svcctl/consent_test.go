package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/wire"
)

// TestReleaseAsks names what is held, and lets it go after a yes or with --yes alone.
func TestReleaseAsks(t *testing.T) {
	f := &fake{}
	socket := serveFake(t, f)
	const question = "This removes 12 Services, and clients lose them (directory /m has no manifests any more (12 Services)); " +
		"this removes 1 address or port, and clients lose them (data directory /d was new). Go on? [y/N] "
	for _, tt := range []struct {
		tty    bool
		answer string
		args   string
		code   int
		err    string
	}{
		{false, "y\n", "", exitUsage, "svcctl: release: t" + strings.TrimSuffix(question[1:], ". Go on? [y/N] ") + "; repeat it with --yes\n"},
		{true, "n\n", "", exitNo, question + "svcctl: nothing was changed\n"},
		{true, "", "", exitNo, question + "svcctl: nothing was changed\n"},
		{true, "y\n", "", exitDone, question},
		{false, "", "--yes", exitDone, ""},
		{true, "", "-y", exitDone, ""},
	} {
		f.held = wire.Released{Services: 12, Frontends: 1}
		f.status = wellStatus()
		f.status.HeldRemovals, f.status.UnknownFrontends = 12, 1
		f.status.Problems = []wire.Problem{
			{Reason: "MassRemovalHeld", Severity: wire.SeverityError, Message: "directory /m has no manifests any more (12 Services); as that may be an accident, they stay in force: put the files back"},
			{Reason: "Conflict", Severity: wire.SeverityError, Message: "something else"},
			{Reason: "UnknownServicesHeld", Severity: wire.SeverityError, Message: "data directory /d was new; they stay in force as they are: put it back"},
		}
		b := newBench()
		b.stdinTTY, b.stdin = tt.tty, strings.NewReader(tt.answer)
		code := b.run(append([]string{"release", "--socket", socket}, strings.Fields(tt.args)...)...)
		if code != tt.code || b.err.String() != tt.err {
			t.Errorf("%+v: exit %d, stderr %q, want %q", tt, code, b.err.String(), tt.err)
		}
		if released := f.held.Services == 0; released != (tt.code == exitDone) {
			t.Errorf("%+v: released: %v", tt, released)
		}
	}
}

// TestAnnouncedAlone tells addresses of which this box is the only announcer from those that others may announce.
func TestAnnouncedAlone(t *testing.T) {
	item := func(address string, places ...string) wire.Announcement {
		a := wire.Announcement{Address: address}
		for _, place := range places {
			by, state, _ := strings.Cut(place, "=")
			a.Places = append(a.Places, wire.Place{By: by, State: state})
		}
		return a
	}
	items := []wire.Announcement{
		item("192.0.2.1", "l2 eth0=announced"), item("192.0.2.2", "l2 eth0=announced", "bgp tor=announced"), item("192.0.2.3", "bgp tor=sending"),
		item("192.0.2.4", "l2 eth0=standby"), item("192.0.2.5"), item("192.0.2.6", "l2 eth0=conflict", "bgp tor=down"), item("192.0.2.7", "l2 eth0=announced", "l2 eth1=conflict"),
	}
	alone, unknown := announcedAlone(&wire.Announcements{Items: items})
	if diff := cmp.Diff([][]string{{"192.0.2.1", "192.0.2.7"}, {"192.0.2.2", "192.0.2.3"}}, [][]string{alone, unknown}); diff != "" {
		t.Errorf("without an election (-want +got):\n%s", diff)
	}
	alone, unknown = announcedAlone(&wire.Announcements{Items: items, Group: &wire.Group{State: "active"}})
	if diff := cmp.Diff([][]string{nil, {"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.7"}}, [][]string{alone, unknown}); diff != "" {
		t.Errorf("in an election (-want +got):\n%s", diff)
	}
}
