package checkup

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// proc writes files of a proc file system.
func proc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// well are the files of a host that all is well with.
func well() map[string]string {
	return map[string]string{
		"sys/net/ipv4/ip_forward":                "1\n",
		"sys/net/ipv6/conf/all/forwarding":       "1\n",
		"sys/net/ipv4/conf/all/rp_filter":        "2\n",
		"sys/net/ipv4/conf/all/route_localnet":   "0\n",
		"sys/net/ipv4/conf/eth0/rp_filter":       "1\n",
		"sys/net/ipv4/conf/eth0/route_localnet":  "0\n",
		"sys/net/netfilter/nf_conntrack_max":     "1000\n",
		"sys/net/netfilter/nf_conntrack_count":   "799\n",
		"net/stat/nf_conntrack":                  "entries clashres insert_failed drop early_drop\n00000001 0 0000000a 00000010 00000001\n00000001 0 00000001 00000001 00000000\n",
		"net/if_inet6":                           "fe800000000000000000000000000001 02 40 20 80     eth0\n20010db8000000000000000000000001 02 40 00 80     eth0\n",
		"sys/net/ipv4/conf/default/rp_filter":    "1\n",
		"sys/net/ipv4/conf/default/route_localn": "1\n",
	}
}

// trie is net/fib_trie of a host with some addresses, and a neighbor with another one.
func trie(addrs ...string) string {
	text := "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 198.51.100.9\n        /32 link UNICAST\nLocal:\n  +-- 0.0.0.0/0 3 0 5\n"
	for _, addr := range addrs {
		text += "     |-- " + addr + "\n        /32 host LOCAL\n"
	}
	return text
}

func TestRead(t *testing.T) {
	got, err := Read(proc(t, well()))
	want := Facts{
		Forward4: true, Forward6: true, Has4: true, Has6: true,
		Interfaces: []Interface{{Name: "all", RPFilter: 2}, {Name: "eth0", RPFilter: 1}},
		Conntrack:  Conntrack{Known: true, Entries: 799, Max: 1000, InsertFailed: 11, Dropped: 17, EarlyDropped: 1},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Read gives %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := Read(t.TempDir()); err != nil {
		t.Errorf("a kernel without any of it: %v", err)
	}
	if _, err := Read(proc(t, map[string]string{"sys/net/ipv4/ip_forward": "maybe"})); err == nil || !strings.Contains(err.Error(), "ip_forward") {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := Read("/proc"); err != nil {
		t.Errorf("this host: %v", err)
	}
}

func TestExamine(t *testing.T) {
	for name, test := range map[string]struct {
		change map[string]string
		check  string
		level  Level
		text   string
	}{
		"well":                         {nil, "", OK, ""},
		"K21: no forwarding":           {map[string]string{"sys/net/ipv4/ip_forward": "0"}, "forwarding", Error, "sysctl -w net.ipv4.ip_forward=1`"},
		"K21: no IPv6 forwarding":      {map[string]string{"sys/net/ipv6/conf/all/forwarding": "0"}, "forwarding", Error, "net.ipv6.conf.all.forwarding"},
		"no forwarding at all":         {map[string]string{"sys/net/ipv4/ip_forward": "0", "sys/net/ipv6/conf/all/forwarding": "0"}, "forwarding", Error, "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"},
		"a box without IPv6":           {map[string]string{"sys/net/ipv6/conf/all/forwarding": "0", "net/if_inet6": ""}, "", OK, ""},
		"a box without IPv4":           {map[string]string{"sys/net/ipv4/ip_forward": "0", "net/fib_trie": ""}, "", OK, ""},
		"with loopback alone":          {map[string]string{"sys/net/ipv4/ip_forward": "0", "net/fib_trie": trie("127.0.0.1")}, "", OK, ""},
		"IPv6 alone, not forwarded":    {map[string]string{"sys/net/ipv4/ip_forward": "0", "net/fib_trie": trie("127.0.0.1"), "sys/net/ipv6/conf/all/forwarding": "0"}, "forwarding", Error, "net.ipv6.conf.all.forwarding is 0, so the box serves only itself over IPv6: run `sysctl -w net.ipv6.conf.all.forwarding=1`"},
		"an IPv4 address":              {map[string]string{"sys/net/ipv4/ip_forward": "0", "net/fib_trie": trie("127.0.0.1", "192.0.2.1")}, "forwarding", Error, "net.ipv4.ip_forward is 0, so the box serves only itself over IPv4: run `sysctl -w net.ipv4.ip_forward=1`"},
		"K21: strict filter":           {map[string]string{"sys/net/ipv4/conf/all/rp_filter": "0"}, "rp_filter", Warning, "filter: eth0"},
		"no filter":                    {map[string]string{"sys/net/ipv4/conf/all/rp_filter": "0", "sys/net/ipv4/conf/eth0/rp_filter": "0"}, "", OK, ""},
		"K21: reachable loopback":      {map[string]string{"sys/net/ipv4/conf/eth0/route_localnet": "1"}, "route_localnet", Error, "for eth0"},
		"K15: filling conntrack table": {map[string]string{"sys/net/netfilter/nf_conntrack_count": "800"}, "conntrack", Error, "more than 80 % full"},
		"K15: full conntrack table":    {map[string]string{"sys/net/netfilter/nf_conntrack_count": "995"}, "conntrack", Error, "table is full"},
		"no conntrack":                 {map[string]string{"sys/net/netfilter/nf_conntrack_max": "0"}, "conntrack", Warning, "modprobe nf_conntrack"},
		"old iptables":                 {map[string]string{"net/ip_tables_names": "filter\nnat\n"}, "iptables", Warning, "iptables-nft"},
		"old iptables without NAT":     {map[string]string{"net/ip_tables_names": "filter\nmangle\n"}, "", OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := well()
			for path, content := range test.change {
				files[path] = content
			}
			facts, err := Read(proc(t, files))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range Examine(&facts) {
				want := OK
				if f.Check == test.check {
					want = test.level
				}
				if f.Level != want || (f.Level != OK) != (f.Advice != "") || f.Message == "" || !strings.Contains(f.String(), f.Advice) {
					t.Errorf("%+v, want level %s", f, want)
				}
				if f.Check == test.check && !strings.Contains(f.String(), test.text) {
					t.Errorf("%s does not say %q", f, test.text)
				}
			}
		})
	}
}

// Bridges matter where rules are asked at their ports, and only those with an address lead to Services.
func TestExamineBridges(t *testing.T) {
	for name, test := range map[string]struct {
		change  map[string]string
		bridges []string
		level   Level
		text    string
	}{
		"no module":     {nil, []string{"br0"}, OK, "are left to the bridge"},
		"off":           {map[string]string{"sys/net/bridge/bridge-nf-call-iptables": "0", "sys/net/bridge/bridge-nf-call-ip6tables": "0"}, []string{"br0"}, OK, ""},
		"on, no bridge": {map[string]string{"sys/net/bridge/bridge-nf-call-iptables": "1"}, nil, OK, ""},
		"on": {map[string]string{"sys/net/bridge/bridge-nf-call-iptables": "1", "sys/net/bridge/bridge-nf-call-ip6tables": "1"}, []string{"br0", "docker0"}, Warning,
			"net.bridge.bridge-nf-call-iptables and net.bridge.bridge-nf-call-ip6tables are 1: an endpoint behind br0 or docker0 that is balanced to itself gets no answer"},
		"IPv6 alone": {map[string]string{"sys/net/bridge/bridge-nf-call-iptables": "0", "sys/net/bridge/bridge-nf-call-ip6tables": "1"}, []string{"br0"}, Warning,
			"run `sysctl -w net.bridge.bridge-nf-call-ip6tables=0`"},
	} {
		files := well()
		for path, content := range test.change {
			files[path] = content
		}
		facts, err := Read(proc(t, files))
		if err != nil {
			t.Fatal(err)
		}
		if f := ExamineBridges(&facts, test.bridges); f.Level != test.level || !strings.Contains(f.String(), test.text) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestExamineDocker(t *testing.T) {
	for bridge, want := range map[string]string{
		"docker0": "nat-unprotected", "br-0123456789ab": "(br-0123456789ab)", "br0": "no network of Docker", "br-lan": "no network of Docker", "virbr0": "no network of Docker",
	} {
		if f := ExamineDocker([]string{"br1", bridge}); f.Level != OK || !strings.Contains(f.String(), want) {
			t.Errorf("%s: %s", bridge, f)
		}
	}
}

// TestHidden proves that what the kernel tells root alone is no fault of the host.
func TestHidden(t *testing.T) {
	if os.Getuid() != 0 { // root reads everything
		dir := proc(t, map[string]string{"net/ip_tables_names": "nat\n"})
		if err := os.Chmod(filepath.Join(dir, "net/ip_tables_names"), 0); err != nil {
			t.Fatal(err)
		}
		if f, err := Read(dir); err != nil || !f.LegacyHidden {
			t.Errorf("Read gives %+v, %v", f, err)
		}
	}
	for _, f := range Examine(&Facts{Forward4: true, LegacyHidden: true}) {
		if f.Check == "iptables" && (f.Level != OK || !strings.Contains(f.Message, "only root can see")) {
			t.Errorf("hidden: %+v", f)
		}
	}
}

// What matters to announcements and takeovers is looked at where there are any.
func TestExamineAnnouncing(t *testing.T) {
	for name, test := range map[string]struct {
		change map[string]string
		arp    Level
		over   Level
		text   string
	}{
		"well":       {nil, OK, OK, ""},
		"proxy":      {map[string]string{"sys/net/ipv4/conf/eth0/proxy_arp": "1"}, Warning, OK, "on eth0"},
		"pvlan":      {map[string]string{"sys/net/ipv4/conf/all/proxy_arp_pvlan": "1"}, Warning, OK, "on all"},
		"arp_ignore": {map[string]string{"sys/net/ipv4/conf/eth0/arp_ignore": "1"}, Warning, OK, "arp_ignore is set on eth0"},
		"not loose":  {map[string]string{"sys/net/netfilter/nf_conntrack_tcp_loose": "0"}, OK, Error, "nf_conntrack_tcp_loose=1"},
		"strict":     {map[string]string{"sys/net/netfilter/nf_conntrack_tcp_be_liberal": "0"}, OK, Warning, "nf_conntrack_tcp_be_liberal=1"},
	} {
		files := well()
		files["sys/net/netfilter/nf_conntrack_tcp_loose"], files["sys/net/netfilter/nf_conntrack_tcp_be_liberal"] = "1", "1"
		for path, content := range test.change {
			files[path] = content
		}
		facts, err := Read(proc(t, files))
		if err != nil {
			t.Fatal(err)
		}
		arp, over := ExamineAnnouncing(&facts), ExamineAdopting(&facts)
		if arp.Level != test.arp || over.Level != test.over || !strings.Contains(arp.String()+over.String(), test.text) {
			t.Errorf("%s: %+v %+v", name, arp, over)
		}
	}
}

// Where systemd runs svcctl, advice names the files and units of the package.
func TestAdviceFitsTheInstall(t *testing.T) {
	f := Facts{Has4: true, Has6: true, BridgeCalls: []string{"net.bridge.bridge-nf-call-iptables"}, Conntrack: Conntrack{Known: true}}
	for _, tt := range []struct {
		packaged            wire.Packaged
		forwarding, bridges string
	}{
		{false, "run `sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`, and put it into /etc/sysctl.d", "run `sysctl -w net.bridge.bridge-nf-call-iptables=0`"},
		{true, "write net.ipv4.ip_forward=1 and net.ipv6.conf.all.forwarding=1 into /etc/sysctl.d/60-svcctl.conf, unless it is there, and run `systemctl restart svcctl-sysctl`",
			"write net.bridge.bridge-nf-call-iptables=0 into /etc/sysctl.d/60-svcctl.conf"},
	} {
		f.Packaged = tt.packaged
		if got := Examine(&f)[0]; got.Advice != tt.forwarding {
			t.Errorf("packaged %v: %+v", tt.packaged, got)
		}
		if got := ExamineBridges(&f, []string{"br0"}); !strings.Contains(got.Advice, tt.bridges) {
			t.Errorf("packaged %v: %+v", tt.packaged, got)
		}
	}
	t.Setenv("INVOCATION_ID", "1")
	if !Packaged() {
		t.Error("a process that systemd started is not seen as one")
	}
}
