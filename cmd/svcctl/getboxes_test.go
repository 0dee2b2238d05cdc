package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// Test623_get_boxes_as_kubectl_has_it: with kinds of objects, by name, and in each form; what boxes cannot follow is refused with the
// way to say it.
func Test623_get_boxes_as_kubectl_has_it(t *testing.T) {
	since := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	gw1 := wire.FleetBox{Name: "gw1", Zone: "a", Version: "v1", State: wire.BoxOK, Accepted: 7, Programmed: 7, Since: since}
	gw2 := wire.FleetBox{Name: "gw2", Version: "v1", State: wire.BoxFailing, Accepted: 7, Programmed: 5, Problems: 2, Why: "CommitFailed", Since: since}
	gw3 := wire.FleetBox{Name: "gw3", Version: "v1", State: wire.BoxAway, Programmed: 6}
	f := wire.Fleet{Name: "pop1", State: wire.FleetFollowing, Revision: 7, Boxes: []wire.FleetBox{gw1, gw2, gw3}}
	b := newBox(t, func(c *api.Config) {
		c.Endpoints = append(c.Endpoints, api.Answer(wire.GetFleet, func(*http.Request, wire.None) (wire.Fleet, error) { return f, nil }))
	})
	b.file("web.yaml", webYAML)
	if code := b.run("apply", "-f", "web.yaml", "--wait=false"); code != 0 {
		t.Fatal(b.err.String())
	}
	const table = `(?s)^NAME +ZONE +VERSION +STATE +REVISION +PROBLEMS +SINCE\ngw1 +a +v1 +OK +7 +0 +2026-05-01 12:00:00 UTC\ngw2 +- +v1 +Failing +5 +2 .*\ngw3 +- +v1 +Away +6 +0 +-\n$`
	const no = "not OK: gw2 (Failing), gw3 (Away)"
	for _, test := range []struct {
		args string
		code int
		out  string // a regular expression
		err  string
	}{
		{"get boxes", cli.ExitNo, table, no},
		{"get box", cli.ExitNo, table, no},
		{"fleet boxes", cli.ExitNo, table, no},
		{"get boxes gw1", 0, `^NAME.*\ngw1 +a .*\n$`, ""},
		{"get box/gw1", 0, `^NAME.*\ngw1 +a .*\n$`, ""},
		{"get boxes gw3 gw1", cli.ExitNo, `^NAME.*\ngw3 .*\ngw1 .*\n$`, "not OK: gw3 (Away)"},
		{"get boxes gw9", cli.ExitNo, `^$`, `no box "gw9" has reported`},
		{"get boxes gw1 gw9", cli.ExitNo, `^NAME.*\ngw1 .*\n$`, `no box "gw9" has reported`},
		{"get boxes gw9 --ignore-not-found", 0, `^$`, ""},
		{"get boxes gw2 -o wide", cli.ExitNo, `^NAME.* SINCE +ACCEPTED +WHY\ngw2 .* 7 +CommitFailed\n$`, "gw2"},
		{"get boxes gw1 --no-headers", 0, `^gw1 .*\n$`, ""},
		{"get boxes gw1 --show-kind", 0, `\nbox/gw1 `, ""},
		{"get boxes -o name", cli.ExitNo, `^box/gw1\nbox/gw2\nbox/gw3\n$`, no},
		{"get boxes -o json", cli.ExitNo, `(?s)^\{\n  "name": "pop1".*"boxes": \[.*"gw3"`, no},
		{"get box gw1 -o json", 0, `(?s)^\{\n  "name": "gw1",\n  "zone": "a"`, ""},
		{"get boxes -o yaml", cli.ExitNo, `(?s)^name: pop1\n.*\nboxes:\n- name: gw1\n  zone: a\n.*- name: gw3\n`, no},
		{"get box gw1 -o yaml", 0, `(?s)^name: gw1\nzone: a\n`, ""},
		{"get boxes -o jsonpath={.boxes[*].name}", cli.ExitNo, `^gw1 gw2 gw3$`, no},
		{"get box gw1 -o jsonpath={.state}", 0, `^OK$`, ""},
		{"get boxes gw1 -o custom-columns=BOX:.name,HAS:.programmed", 0, `^BOX +HAS\ngw1 +7\n$`, ""},
		// With kinds of objects.
		{"get svc,boxes", cli.ExitNo, `(?s)^NAME +TYPE.*\nservice/web .*\n\nNAME +ZONE.*\nbox/gw1 .*\nbox/gw3 .*\n$`, no},
		{"get boxes,svc", cli.ExitNo, `(?s)^NAME +ZONE.*\nbox/gw1 .*\nbox/gw3 .*\n\nNAME +TYPE.*\nservice/web .*\n$`, no},
		{"get svc/web box/gw1", 0, `(?s)^NAME +TYPE.*\nservice/web .*\n\nNAME +ZONE.*\nbox/gw1 [^\n]*\n$`, ""},
		{"get svc,boxes -o name", cli.ExitNo, `^service/web\nbox/gw1\nbox/gw2\nbox/gw3\n$`, no},
		{"get svc,boxes -o wide -A", cli.ExitNo, `(?s)^NAMESPACE +NAME +TYPE.*\n\nNAME .* ACCEPTED +WHY\n`, no},
		{"get svc,boxes -o json", cli.ExitUsage, `^$`, "`svcctl get boxes -o json`"},
		{"get boxes,svc -o yaml", cli.ExitUsage, `^$`, "`svcctl get boxes -o yaml`"},
		{"get svc,boxs", cli.ExitUsage, `^$`, `there is no kind "boxs"`},
		// What only objects have.
		{"get boxes -w", cli.ExitUsage, `^$`, "watch svcctl get boxes"},
		{"get svc,boxes -w", cli.ExitUsage, `^$`, "watch svcctl get boxes"},
		{"get boxes -l a=b", cli.ExitUsage, `^$`, "they have no labels"},
		{"get boxes --field-selector metadata.name=gw1", cli.ExitUsage, `^$`, "no fields to select by"},
		{"get boxes --sort-by .name", cli.ExitUsage, `^$`, "they come by name"},
		{"get boxes --show-labels", cli.ExitUsage, `^$`, "svcctl get nodes --show-labels"},
		{"get boxes -L rack", cli.ExitUsage, `^$`, "svcctl get nodes -L"},
		{"get boxes -f web.yaml", cli.ExitUsage, `^$`, "not both"},
		{"get box/", cli.ExitUsage, `^$`, `"box/" is not of the form`},
		{"get boxes gw1/gw2", cli.ExitUsage, `^$`, "is no name"},
		{"get boxes -o go-template", cli.ExitUsage, `^$`, "want one of"},
		{"describe box gw1", cli.ExitUsage, `^$`, "svcctl describe node"},
	} {
		b.out.Reset()
		b.err.Reset()
		code := b.run(strings.Fields(test.args)...)
		out, said := b.out.String(), b.err.String()
		if code != test.code || !regexp.MustCompile(test.out).MatchString(out) || !strings.Contains(said, test.err) || (test.err == "") != (said == "") {
			t.Errorf("svcctl %s: exit %d, want %d:\n%s%s", test.args, code, test.code, out, said)
		}
	}
	// A column that only some boxes have values for is in the rows of all.
	gw4 := gw1
	gw4.Name, gw4.Core = "gw4", "gw1"
	f.Boxes = []wire.FleetBox{gw1, gw4}
	for args, want := range map[string]string{
		"get boxes gw4 gw1 -o wide": `^NAME.* SINCE +FOLLOWS +ACCEPTED +WHY\ngw4 .* UTC +gw1 +7 +-\ngw1 .* UTC +etcd +7 +-\n$`,
		"get boxes gw1 gw4":         `^NAME.* SINCE +FOLLOWS\ngw1 .* UTC +etcd\ngw4 .* UTC +gw1\n$`,
	} {
		b.out.Reset()
		if code := b.run(strings.Fields(args)...); code != 0 || !regexp.MustCompile(want).MatchString(b.out.String()) {
			t.Errorf("svcctl %s: exit %d:\n%s", args, code, b.out.String())
		}
	}
	f.Boxes = []wire.FleetBox{gw1}
	if b.out.Reset(); b.run("get", "boxes") != 0 {
		t.Errorf("with all boxes OK: %s", b.out.String())
	}
}
