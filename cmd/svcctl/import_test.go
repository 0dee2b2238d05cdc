package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestImport: what is imported has the frontends of the source in the ruleset of its plan.
func TestImport(t *testing.T) {
	const dir = "../../store/convert/testdata/"
	for _, tt := range []struct {
		args string
		want []string
		loss string
	}{
		{"keepalived nat.keepalived.conf", []string{"192.168.200.100 . tcp . 443", "192.168.201.101 . 443"}, "nat.keepalived.conf:8: warning: vrrp_instance VI_1 is the election of `svcctl announce --vrid 51`"},
		{"keepalived group.keepalived.conf", []string{"10.0.0.1 . tcp . 8080 . 0 : 192.168.200.1 . 1358", "10.0.0.2 . tcp . 80 . 1 : 192.168.200.2 . 1358",
			"10.10.200.5 . tcp . 80 . 0 : 192.168.200.1 . 1358", "10.10.10.2 . udp . 53 . 0 : 192.168.200.6 . 5353", "ae00::1 . tcp . 80 . 0 : ae00::10 . 25"},
			"group.keepalived.conf:29: warning: the virtual_server of fwmark 1 has no counterpart"},
		{"ipvs saved.ipvs", []string{"10.0.0.1 . tcp . 80 . 0 : 10.1.2.11 . 8080", "10.0.0.1 . udp . 53 . 0 : 10.1.2.21 . 53", "2001:db8::1 . tcp . 443"},
			"saved.ipvs:9: warning: the service of firewall mark 1"},
		{"haproxy site.haproxy.cfg", nil, "site.haproxy.cfg: 2 of 4 virtual servers imported; 2 need you\n"},
		{"keepalived vrrp.keepalived.conf", nil, "vrrp.keepalived.conf: 1 of 2 virtual servers imported; 1 needs you\n"},
	} {
		b := newBench()
		b.Env.Plan = appliance.Plan
		kind, file, _ := strings.Cut(tt.args, " ")
		if code := b.run("import", kind, dir+file); code != cli.ExitDone || !strings.Contains(b.err.String(), tt.loss) {
			t.Errorf("import %s: exit %d, stderr %s, want %q", tt.args, code, b.err.String(), tt.loss)
		}
		if tt.want == nil {
			continue // it needs a pool, or a Secret
		}
		b.In = strings.NewReader(b.out.String())
		if code := b.run("plan", "-f", "-"); code != cli.ExitDone {
			t.Errorf("the plan of %s: exit %d, stderr %s", tt.args, code, b.err.String())
		}
		for _, want := range tt.want {
			if !strings.Contains(b.out.String(), want) {
				t.Errorf("the plan of %s has no %s:\n%s", tt.args, want, b.out.String())
			}
		}
	}
}

// TestImportOfElectionsAlone: a keepalived.conf without virtual servers gives settings, and there is nothing to count.
func TestImportOfElectionsAlone(t *testing.T) {
	b := newBench()
	b.In = strings.NewReader("vrrp_instance A {\n  state MASTER\n  interface eth0\n  virtual_router_id 51\n  virtual_ipaddress {\n    192.0.2.1\n  }\n}\n")
	code := b.run("import", "keepalived", "-")
	if code != 0 || !strings.Contains(b.out.String(), "--vrid 51") || !strings.Contains(b.err.String(), "stdin:1: warning: ") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
	if strings.Contains(b.err.String(), "imported") {
		t.Errorf("stderr counts virtual servers: %q", b.err.String())
	}
}

// TestImportRefuses: what is not understood is told with its place, and nothing is printed.
func TestImportRefuses(t *testing.T) {
	for _, tt := range []struct {
		args, stdin string
		code        int
		want        string
	}{
		{"", "", cli.ExitUsage, "import takes a kind of file and a file"},
		{"haproxi -", "", cli.ExitUsage, `import from "haproxi": want one of cluster, haproxy, ipvs, keepalived, metallb, nftlb`},
		{"ipvs no-such-file", "", cli.ExitNo, "no such file"},
		{"ipvs -", "-A -t 192.0.2.1:80 -s rr\n-Z\n", cli.ExitNo, "stdin:2: \"-Z\" is no line"},
		{"ipvs -", "-A -f 1 -s rr\n", cli.ExitNo, "stdin describes no virtual server that has a counterpart"},
	} {
		b := newBench()
		b.In = strings.NewReader(tt.stdin)
		if code := b.run(append([]string{"import"}, strings.Fields(tt.args)...)...); code != tt.code || !strings.Contains(b.err.String(), tt.want) || b.out.Len() > 0 {
			t.Errorf("import %s: exit %d, stdout %q, stderr %q; want %q", tt.args, code, b.out.String(), b.err.String(), tt.want)
		}
	}
}
