package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
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
		{false, "y\n", "", cli.ExitUsage, "svcctl: confirm: t" + strings.TrimSuffix(question[1:], ". Go on? [y/N] ") + "; repeat it with --yes\n"},
		{true, "n\n", "", cli.ExitNo, question + "svcctl: nothing was changed\n"},
		{true, "", "", cli.ExitNo, question + "svcctl: nothing was changed\n"},
		{true, "y\n", "", cli.ExitDone, question},
		{false, "", "--yes", cli.ExitDone, ""},
		{true, "", "-y", cli.ExitDone, ""},
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
		b.StdinTTY, b.In = tt.tty, strings.NewReader(tt.answer)
		code := b.run(append([]string{"confirm", "--removals", "--socket", socket}, strings.Fields(tt.args)...)...)
		if code != tt.code || b.err.String() != tt.err {
			t.Errorf("%+v: exit %d, stderr %q, want %q", tt, code, b.err.String(), tt.err)
		}
		if released := f.held.Services == 0; released != (tt.code == cli.ExitDone) {
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
		{false, "", "delete svc --all", cli.ExitUsage, "delete: this removes 1 Service; repeat it with --yes\n"},
		{false, "", "delete svc,endpointslices -l app=web", cli.ExitUsage, "this removes 1 Service and 1 other object; repeat it with --yes\n"},
		{true, "n\n", "delete svc --all", cli.ExitNo, "This removes 1 Service. Go on? [y/N] svcctl: nothing was changed\n"},
		{false, "", "delete svc --all --dry-run", cli.ExitDone, ""},
		{false, "", "delete ns shop", cli.ExitUsage, "delete: this removes 1 Service; repeat it with --yes\n"},
		{false, "", "delete ns shop nope", cli.ExitUsage, "this removes 1 Service;"},
		{true, "y\n", "delete svc --all", cli.ExitDone, "This removes 1 Service. Go on? [y/N] "},
		{false, "", "delete ns shop --yes --wait=false", cli.ExitDone, ""},
		{false, "", "delete svc -n default web", cli.ExitDone, ""},
	} {
		b.StdinTTY = false
		if code := b.run("apply", "-f", "web.yaml", "-f", "ns.yaml"); code != cli.ExitDone {
			t.Fatal(b.err.String())
		}
		b.StdinTTY, b.In = tt.tty, strings.NewReader(tt.answer)
		if code := b.run(strings.Fields(tt.args)...); code != tt.code || !strings.Contains(b.err.String(), tt.err) || tt.err == "" && strings.Contains(b.err.String(), "this removes") {
			t.Errorf("%+v: exit %d: %s%s", tt, code, b.out.String(), b.err.String())
		}
		if code := b.run("get", "svc", "web"); tt.code != cli.ExitDone && code != cli.ExitDone {
			t.Errorf("%+v: it removed the Service", tt)
		}
	}
}
