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
		{false, "y\n", "", exitUsage, "svcctl: confirm: t" + strings.TrimSuffix(question[1:], ". Go on? [y/N] ") + "; repeat it with --yes\n"},
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
		code := b.run(append([]string{"confirm", "--removals", "--socket", socket}, strings.Fields(tt.args)...)...)
		if code != tt.code || b.err.String() != tt.err {
			t.Errorf("%+v: exit %d, stderr %q, want %q", tt, code, b.err.String(), tt.err)
		}
		if released := f.held.Services == 0; released != (tt.code == exitDone) {
			t.Errorf("%+v: released: %v", tt, released)
		}
	}
}

// TestDeleteAsks names what --all, a selector or a Namespace takes along; objects that are named go without a question.
func TestDeleteAsks(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\nspec: {ports: [{port: 80}]}\n")
	for _, tt := range []struct {
		tty    bool
		answer string
		args   string
		code   int
		err    string // a part of it
	}{
		{false, "", "delete svc --all", exitUsage, "delete: this removes 1 Service; repeat it with --yes\n"},
		{false, "", "delete svc,endpointslices -l app=web", exitUsage, "this removes 1 Service and 1 other object; repeat it with --yes\n"},
		{true, "n\n", "delete svc --all", exitNo, "This removes 1 Service. Go on? [y/N] svcctl: nothing was changed\n"},
		{false, "", "delete svc --all --dry-run", exitDone, ""},
		{false, "", "delete ns shop", exitUsage, "delete: this removes 1 Service; repeat it with --yes\n"},
		{false, "", "delete ns shop nope", exitUsage, "this removes 1 Service;"},
		{true, "y\n", "delete svc --all", exitDone, "This removes 1 Service. Go on? [y/N] "},
		{false, "", "delete ns shop --yes --wait=false", exitDone, ""},
		{false, "", "delete svc -n default web", exitDone, ""},
	} {
		b.stdinTTY = false
		if code := b.run("apply", "-f", "web.yaml", "-f", "ns.yaml"); code != exitDone {
			t.Fatal(b.err.String())
		}
		b.stdinTTY, b.stdin = tt.tty, strings.NewReader(tt.answer)
		if code := b.run(strings.Fields(tt.args)...); code != tt.code || !strings.Contains(b.err.String(), tt.err) || tt.err == "" && strings.Contains(b.err.String(), "this removes") {
			t.Errorf("%+v: exit %d: %s%s", tt, code, b.out.String(), b.err.String())
		}
		if code := b.run("get", "svc", "web"); tt.code != exitDone && code != exitDone {
			t.Errorf("%+v: it removed the Service", tt)
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
