package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// samples are three values for each settings.Setting, all different from its default.
var samples = map[string][3]string{
	"manifests":                   {"/a", "/b,/c", "/d"},
	"data-dir":                    {"/a", "/b", "/c"},
	"data-key-file":               {"/k", "/l", "/m"},
	"socket":                      {"/a", "/b", "/c"},
	"socket-group":                {"a", "0", "c"},
	"socket-readers":              {"true", "true", "true"},
	"listen":                      {":1", "127.0.0.1:2", "[::1]:3"},
	"tls-cert":                    {"/a", "/b", "/c"},
	"tls-key":                     {"/a", "/b", "/c"},
	"allow-mass-removal":          {"true", "true", "true"},
	"metrics-listen":              {":1", "127.0.0.1:2", "[::1]:3"},
	"fleet":                       {"a", "b", "c-1"},
	"etcd":                        {"http://a:1", "http://a:1,https://b:2", "https://c:3"},
	"etcd-cacert":                 {"/a", "/b", "/c"},
	"etcd-cert":                   {"/a", "/b", "/c"},
	"etcd-key":                    {"/a", "/b", "/c"},
	"fleet-key-file":              {"/a", "/b", "/c"},
	"core":                        {"https://a:1", "https://a:1,https://b:2", "https://c:3"},
	"core-cacert":                 {"/a", "/b", "/c"},
	"core-cert":                   {"/a", "/b", "/c"},
	"core-key":                    {"/a", "/b", "/c"},
	"leaf-cacert":                 {"/a", "/b", "/c"},
	"leaf-writes":                 {"true", "true", "true"},
	"node-name":                   {"a", "b", "c.example"},
	"zone":                        {"a", "b", "c"},
	"nodeport-addresses":          {"primary", "192.0.2.0/24,2001:db8::/64", "127.0.0.0/8"},
	"service-cluster-ip-range":    {"172.30.0.0/16", "fd00:172:30::/112,172.31.0.0/24", "10.0.0.0/24"},
	"health-check-source-ports":   {"ephemeral", "1-2", "50000-50001"},
	"service-node-port-range":     {"1-2", "31000-31999", "40000-40000"},
	"cluster-cidr":                {"10.0.0.0/8", "fd00:10::/32,10.1.0.0/16", "10.2.0.0/16"},
	"announce-table":              {"118", "7", "1000"},
	"load-balancer-pool":          {"198.51.100.0/28", "198.51.100.4-198.51.100.5,2001:db8::/120", "203.0.113.1-203.0.113.9"},
	"load-balancer-internal-pool": {"198.51.100.0/28", "198.51.100.4-198.51.100.5,2001:db8::/120", "203.0.113.1-203.0.113.9"},
	"load-balancer-internal-from": {"10.0.0.0/8", "eth1,fd00::/8", "eth2"},
	"cluster-ip-clients":          {"internal", "internal", "internal"},
	"external-ip-range":           {"198.51.100.0/28", "0.0.0.0/0,::/0", "none"},
	"egress-from":                 {"10.1.0.0/16", "10.1.0.0/16,fd00:1::/48", "10.2.0.0/16"},
	"relay-ports":                 {"20000-20001", "20002-20003", "20004-20005"},
	"nodeless-endpoints":          {"remote", "remote", "remote"},
	"balance":                     {"maglev", "source-hash", "maglev"},
	"snat":                        {"never", "never", "never"},
	"masquerade-all":              {"true", "true", "true"},
	"vip-ping":                    {"always", "never", "always"},
	"source-ranges-apply":         {"all", "all", "all"},
	"source-set":                  {"a=/a", "a=/a,b=/b", "c=/c"},
	"service-names":               {"rfc1123", "rfc1123", "rfc1123"},
	"node-port-space":             {"shared", "shared", "shared"},
	"allocate":                    {"never", "never", "never"},
	"legacy-ip":                   {"accept", "accept", "accept"},
	"fast-path":                   {"services", "all", "services"},
	"traffic":                     {"off", "flows", "off"},
	"connection-log":              {"/var/log/a.log", "journal", "/var/log/b.log"},
	"dns-listen":                  {":53", "192.0.2.1:53,[2001:db8::1]:53", "127.0.0.1:5353"},
	"cluster-domain":              {"a", "b.example", "c"},
	"dns-upstream":                {"192.0.2.53:53", "[2001:db8::53]:53,192.0.2.54:53", "192.0.2.55:5353"},
	"dns-client-namespaces":       {"10.1.0.0/16=a", "10.1.0.0/16=a,fd00::/64=b", "10.0.0.0/8=c"},
	"log-level":                   {"debug", "warn", "error"},
	"log-format":                  {"json", "json", "json"},
}

// groups has the fields of config.Config that are structs of settings.
var groups = map[string]bool{"API": true, "Fleet": true, "DNS": true, "Log": true, "Addresses": true, "Services": true}

// eachField calls visit with every setting of a configuration: fields, and fields of groups as "API.Listen".
func eachField(c *config.Config, visit func(name string, value reflect.Value)) {
	for field, value := range reflect.ValueOf(c).Elem().Fields() {
		if !groups[field.Name] {
			visit(field.Name, value)
			continue
		}
		for inner, value := range value.Fields() {
			visit(field.Name+"."+inner.Name, value)
		}
	}
}

// changed returns the names of the fields in which two configurations differ.
func changed(a, b config.Config) (names []string) {
	before := map[string]any{}
	eachField(&a, func(name string, value reflect.Value) { before[name] = value.Interface() })
	eachField(&b, func(name string, value reflect.Value) {
		if !reflect.DeepEqual(before[name], value.Interface()) {
			names = append(names, name)
		}
	})
	return names
}

// set is the default configuration with one setting set to a text.
func set(t *testing.T, s settings.Setting, text string) config.Config {
	t.Helper()
	cfg := config.Default()
	add(t, &cfg, s, text)
	return cfg
}

// add sets one setting of a configuration to a text.
func add(t *testing.T, cfg *config.Config, s settings.Setting, text string) {
	t.Helper()
	s.Texts = []string{text}
	given, _ := settings.Lookup(nil, &s.Option, nil)
	if err := s.Store(cfg, given.Texts); err != nil {
		t.Fatalf("--%s %q: %v", s.Name, text, err)
	}
}

// TestEveryFieldHasASetting proves that settings and fields are one to one, and that
// every setting is a flag, a variable and a key that help tells.
func TestEveryFieldHasASetting(t *testing.T) {
	owner := map[string]string{"Version": "(the program)", "Log.Queue": "(the program)", "ObjectPools": "(the program)"}
	b := newBench()
	b.run("help", "serve")
	help := b.out.String()
	for _, s := range settings.Settings() {
		for _, sample := range samples[s.Name] {
			fields := changed(config.Default(), set(t, s, sample))
			if len(fields) != 1 {
				t.Errorf("--%s %s changes the fields %q, want one", s.Name, sample, fields)
				continue
			}
			if other := owner[fields[0]]; other != "" && other != s.Name {
				t.Errorf("--%s changes the field of --%s", s.Name, other)
			}
			owner[fields[0]] = s.Name
		}
		if !strings.Contains(help, "\n  --"+s.Name) || s.Usage == "" {
			t.Errorf("help does not tell --%s", s.Name)
		}
		if strings.ContainsAny(s.Key, "-_") || s.Env != strings.ToUpper(s.Env) || !strings.HasPrefix(s.Env, "SVCCTL_") {
			t.Errorf("--%s: key %s, variable %s", s.Name, s.Key, s.Env)
		}
	}
	eachField(&config.Config{}, func(name string, _ reflect.Value) {
		if owner[name] == "" {
			t.Errorf("Config.%s has no setting", name)
		}
	})
}

// TestDefaults proves that help tells the defaults that are in force.
func TestDefaults(t *testing.T) {
	for _, s := range settings.Settings() {
		if s.Def == "" && s.Name != "manifests" {
			t.Errorf("help tells no default of --%s", s.Name)
		}
		if s.Def == "" || s.Described {
			continue
		}
		if fields := changed(config.Default(), set(t, s, s.Def)); len(fields) > 0 {
			t.Errorf("--%s %s is not the default: %q differ", s.Name, s.Def, fields)
		}
	}
	if cfg := config.Default(); cfg.Validate() != nil && cfg.NodeName != "" {
		t.Errorf("the default configuration is refused: %v", cfg.Validate())
	}
}

// TestWords proves that the words in help are those that are accepted.
func TestWords(t *testing.T) {
	for _, s := range settings.Settings() {
		for _, w := range s.Words {
			cfg := set(t, s, w)
			cfg.NodeName = "gw1"
			if err := cfg.Validate(); err != nil {
				t.Errorf("--%s %s: %v", s.Name, w, err)
			}
		}
		if len(s.Words) == 0 {
			continue
		}
		b := newBench()
		if code := b.run("serve", "--"+s.Name, "nonsense"); code != cli.ExitUsage || !strings.Contains(b.err.String(), "give one of "+strings.Join(s.Words, ", ")) {
			t.Errorf("--%s nonsense: exit %d, %s", s.Name, code, b.err.String())
		}
	}
}

// companions has the other settings that a setting requires.
var companions = map[string]map[string]string{
	"tls-cert": {"tls-key": "/k", "listen": ":6443"},
	"tls-key":  {"tls-cert": "/c", "listen": ":6443"},

	"load-balancer-internal-pool": {"cluster-cidr": "10.0.0.0/8"},

	"fleet":       {"etcd": "http://e:2379"},
	"etcd":        {"fleet": "f"},
	"etcd-cacert": {"fleet": "f", "etcd": "http://e:2379"},
	"etcd-cert":   {"fleet": "f", "etcd": "http://e:2379", "etcd-key": "/k"},
	"etcd-key":    {"fleet": "f", "etcd": "http://e:2379", "etcd-cert": "/c"},

	"fleet-key-file": {"fleet": "f", "etcd": "http://e:2379"},

	"core":        {"fleet": "f", "core-cert": "/c", "core-key": "/k"},
	"core-cacert": {"fleet": "f", "core": "https://c:1", "core-cert": "/c", "core-key": "/k"},
	"core-cert":   {"fleet": "f", "core": "https://c:1", "core-key": "/k"},
	"core-key":    {"fleet": "f", "core": "https://c:1", "core-cert": "/c"},
	"leaf-cacert": {"fleet": "f", "etcd": "http://e:2379", "listen": ":6443"},
	"leaf-writes": {"fleet": "f", "etcd": "http://e:2379", "listen": ":6443", "leaf-cacert": "/l"},
}

// TestPrecedence gives every setting by file, variable and flag, in every combination.
func TestPrecedence(t *testing.T) {
	all := map[string]settings.Setting{}
	for _, s := range settings.Settings() {
		all[s.Name] = s
	}
	for _, s := range settings.Settings() {
		values := samples[s.Name]
		path := filepath.Join(t.TempDir(), "svcctl.yaml")
		if err := os.WriteFile(path, []byte(s.Key+": \""+values[0]+"\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for mask := range 8 {
			b := newBench()
			args := []string{"serve"}
			want := config.Default()
			if mask&1 != 0 {
				args = append(args, "--config", path)
				want = set(t, s, values[0])
			}
			if mask&2 != 0 {
				b.env[s.Env] = values[1]
				want = set(t, s, values[1])
			}
			if mask&4 != 0 {
				args = append(args, "--"+s.Name+"="+values[2])
				want = set(t, s, values[2])
			}
			want.Version = "v0.1.0"
			for name, value := range companions[s.Name] {
				if mask == 0 {
					break
				}
				args = append(args, "--"+name+"="+value)
				add(t, &want, all[name], value)
			}
			if code := b.run(args...); code != cli.ExitDone {
				t.Errorf("%s, combination %03b: exit %d: %s", s.Name, mask, code, b.err.String())
				continue
			}
			if diff := cmp.Diff(want, *b.served, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("%s, combination %03b (-want +got):\n%s", s.Name, mask, diff)
			}
		}
	}
}

// TestSettingForms has the ways in which a value can be written.
func TestSettingForms(t *testing.T) {
	for _, tt := range []struct {
		args, file string
		env        map[string]string
		want       func(*config.Config) bool
	}{
		{args: "--manifests a --manifests b,c", want: func(c *config.Config) bool { return slices.Equal(c.Manifests, []string{"a", "b", "c"}) }},
		{file: "manifests: [a, \"b,c\"]", want: func(c *config.Config) bool { return slices.Equal(c.Manifests, []string{"a", "b,c"}) }},
		{file: "manifests: a, b", want: func(c *config.Config) bool { return slices.Equal(c.Manifests, []string{"a", "b"}) }},
		{file: "manifests: [a]", args: "--manifests=", want: func(c *config.Config) bool { return len(c.Manifests) == 0 }},
		{file: "manifests: []", want: func(c *config.Config) bool { return len(c.Manifests) == 0 }},
		{file: "zone:\nmanifests:", want: func(c *config.Config) bool { return c.Zone == "" }},
		{file: "# nothing", want: func(c *config.Config) bool { return c.Zone == "" }},
		{file: "zone: 1", want: func(c *config.Config) bool { return c.Zone == "1" }},
		{file: "zone: a", env: map[string]string{"SVCCTL_ZONE": ""}, want: func(c *config.Config) bool { return c.Zone == "a" }},
		{args: "--masquerade-all", want: func(c *config.Config) bool { return c.Services.MasqueradeAll }},
		{args: "--masquerade-all=false", file: "masqueradeAll: true", want: func(c *config.Config) bool { return !c.Services.MasqueradeAll }},
		{args: "--service-cluster-ip-range 10.1.2.3/16", want: func(c *config.Config) bool {
			return c.Addresses.ClusterIPRanges[0] == netip.MustParsePrefix("10.1.0.0/16")
		}},
		{args: "--load-balancer-pool 198.51.100.0/30", want: func(c *config.Config) bool {
			return c.Addresses.LoadBalancerPools[0].String() == "198.51.100.1-198.51.100.2"
		}},
	} {
		b := newBench()
		b.env = tt.env
		args := append([]string{"serve", "--node-name", "gw1"}, strings.Fields(tt.args)...)
		if tt.file != "" {
			path := filepath.Join(t.TempDir(), "svcctl.yaml")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config", path)
		}
		if code := b.run(args...); code != cli.ExitDone || !tt.want(b.served) {
			t.Errorf("%q with %v and the file %q: exit %d, %s%+v", tt.args, tt.env, tt.file, code, b.err.String(), b.served)
		}
	}
}

// TestEveryProblemAtOnce has wrong settings from everywhere in one go.
func TestEveryProblemAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcctl.yaml")
	file := `# settings
nodePortAddresses: primary
zone: [a]
frobnicate: 1
service-names: rfc1123
clusterCIDR:
  - 10.0.0.0/8
  - 10.0.0.1
legacyIP: maybe
legacyIP: accept
snat: {a: b}
`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench()
	b.env = map[string]string{"SVCCTL_CONFIG": path, "SVCCTL_LOG_LEVEL": "loud", "SVCCTL_NODE_NAME": "Gw_1"}
	code := b.run("serve", "--service-cluster-ip-range", "10.0.0.0/30,10.1.0.1,fd00::/48", "--masquerade-all=perhaps",
		"--manifests", "/a", "--manifests", "/a/b", "--load-balancer-pool", "10.0.0.2-10.0.0.9")
	if code != cli.ExitUsage || b.served != nil {
		t.Errorf("exit %d", code)
	}
	golden(t, "problems.txt", strings.ReplaceAll(b.err.String(), path, "svcctl.yaml"))
}

// TestExampleIsComplete holds the example of a configuration file against the settings: each
// has its line, and what the lines that are commented out say is so without them.
func TestExampleIsComplete(t *testing.T) {
	const path = "../../examples/systemd/svcctl.conf"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	everything := regexp.MustCompile(`(?m)^#([a-zA-Z]+:)`).ReplaceAll(text, []byte("$1"))
	for _, s := range settings.Settings() {
		if !bytes.Contains(everything, []byte("\n"+s.Key+":")) {
			t.Errorf("%s does not tell %s", path, s.Key)
		}
	}
	all := filepath.Join(t.TempDir(), "svcctl.yaml")
	if err := os.WriteFile(all, everything, 0o600); err != nil {
		t.Fatal(err)
	}
	var cfg [2]config.Config
	for i, name := range []string{path, all} {
		b := newBench()
		b.Env.Serve = func(_ context.Context, c config.Config, _ *slog.Logger) error {
			c.Log.Queue = nil // no settings.Setting, and another one in each run
			cfg[i] = c
			return nil
		}
		if code := b.run("serve", "--config", name, "--node-name", "gw1"); code != cli.ExitDone {
			t.Fatalf("%s: exit %d: %s", name, code, b.err.String())
		}
	}
	emptied(&cfg[0])
	emptied(&cfg[1])
	if fields := changed(cfg[0], cfg[1]); len(fields) > 0 {
		t.Errorf("%s is wrong about the defaults of %q: %+v", path, fields, cfg[1])
	}
}

// emptied makes empty lists nil: they mean the same.
func emptied(c *config.Config) {
	eachField(c, func(_ string, f reflect.Value) {
		if f.Kind() == reflect.Slice && f.Len() == 0 {
			f.SetZero()
		}
	})
}

// One namespace and all of them contradict each other, for every verb that has both flags.
func TestOneNamespaceAndAll(t *testing.T) {
	b, asked := newBench(), 0
	for _, v := range everyVerb() {
		if !v.Has("all-namespaces") {
			continue
		}
		asked++
		if code := b.run(v.Name, "svc", "-A", "-n", "shop"); code != cli.ExitUsage || b.err.String() != "svcctl: -A means the objects of all namespaces, and -n shop those of one: leave one of them out\n" {
			t.Errorf("%s: exit %d: %s", v.Name, code, b.err.String())
		}
	}
	if asked < 5 {
		t.Errorf("%d verbs have both flags", asked)
	}
}

// A flag that takes one value and is given twice is refused by every verb: which of the values
// is meant nobody can know.
func TestGivenTwice(t *testing.T) {
	b := newBench()
	for _, v := range everyVerb() {
		for _, o := range v.Options {
			if v.Name == "help" || v.Name == "version" {
				continue
			}
			value := ""
			if o.Arg != "" {
				value = "=a"
			}
			args := append(strings.Fields(v.Name), "--"+o.Name+value, "--"+o.Name+value)
			code := b.run(args...)
			if refused := code == cli.ExitUsage && strings.Contains(b.err.String(), "--"+o.Name+" is given 2 times"); refused == o.Repeats {
				t.Errorf("%v: exit %d: %s", args, code, b.err.String())
			}
		}
	}
	if code := b.run("serve", "--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2"); code != cli.ExitUsage ||
		b.err.String() != "svcctl: --listen is given 2 times (127.0.0.1:1, 127.0.0.1:2), and accepts one value: leave the others out\n" {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}
