package svcctl_test

// This file is long because it has a row for every package and library.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "svcctl.io/svcctl"

// edges are the imports between our own packages that the architecture allows. A
// package that is not listed is one nobody decided on. ARCHITECTURE.md draws them.
var edges = map[string][]string{
	"store/object":          {},
	"store/manifest":        {"store/object"},
	"store/alloc":           {"store/object"},
	"store/annotation":      {"store/object"},
	"store/convert":         {"store/annotation", "store/manifest", "store/object"},
	"store/kind":            {"store/object"},
	"store/schema":          {"store/kind", "store/manifest", "store/object"},
	"store/managedfields":   {"store/kind", "store/object", "store/schema"},
	"store/engine":          {"store/parallel"},
	"store/fleet":           {"store/engine", "store/fleet/stream"},
	"store/fleet/stream":    {},
	"store/index":           {"store/object"},
	"store/pending":         {"store/deadline", "store/engine", "store/index", "store/journal", "store/object", "store/record"},
	"store/held":            {"store/engine", "store/manifest"},
	"store/record":          {"store/engine", "store/index", "store/journal", "store/object", "store/reread"},
	"store/journal":         {"store/engine", "store/object", "store/parallel"},
	"store/parallel":        {},
	"store/deadline":        {},
	"store/reread":          {},
	"store":                 {"store/alloc", "store/annotation", "store/deadline", "store/engine", "store/held", "store/index", "store/journal", "store/managedfields", "store/manifest", "store/object", "store/parallel", "store/pending", "store/record", "store/reread"},
	"watch":                 {"store/manifest", "store/object", "store/parallel"},
	"store/manifest/styles": {}, // for tests only

	"nft":                  {},
	"nft/trace":            {"nft", "nft/nfnetlink"},
	"nft/kernel":           {"nft", "nft/nfnetlink"},
	"nft/nfnetlink":        {},
	"nft/nfttest/fake":     {"nft", "nft/kernel"}, // for tests only
	"nft/nfttest/stateful": {"nft", "nft/sim"},    // for tests only
	"nft/sim":              {"nft"},

	"api":           {"api/auth", "api/wire"},
	"api/auth":      {},
	"api/client":    {"api/wire"},
	"api/dashboard": {"api/wire"},
	"api/diagnose":  {"api/wire", "store/annotation", "store/object"},
	"api/jsonpath":  {},
	"api/wire":      {},
	"api/rest": {
		"api/auth", "api/kube/discovery", "api/kube/patch", "api/kube/protobuf", "api/kube/selector", "api/kube/table", "api/wire",
		"store", "store/annotation", "store/alloc", "store/engine", "store/kind", "store/managedfields", "store/manifest", "store/object", "store/parallel", "store/pending", "store/schema",
	},
	"api/kube/discovery": {"store/kind"},
	"api/kube/patch":     {"store/schema"},
	"api/kube/protobuf":  {"store/schema"},
	"api/kube/selector":  {"store/kind", "store/object"},
	"api/kube/table":     {"store/kind", "store/object"},

	"appliance/admission":         {"appliance/config", "appliance/node", "appliance/resolve", "appliance/sockets", "store", "store/object"},
	"appliance/announce":          {"api/client", "api/wire", "appliance/announce/bfd", "appliance/announce/bgp", "appliance/announce/neighbor", "appliance/announce/vrrp", "appliance/node", "appliance/task"},
	"appliance/announce/vrrp":     {},
	"appliance/announce/neighbor": {"appliance/task"},
	"appliance/announcements":     {"api/wire", "appliance/task", "nft"},
	"appliance/routes":            {"api/wire", "appliance/node", "appliance/task"},
	"appliance/advertise":         {"api/wire", "appliance/resolve", "store/alloc", "store/annotation", "store/object"},
	"appliance/announce/bfd":      {"appliance/listen", "appliance/task"},
	"appliance/announce/bgp":      {"appliance/listen", "appliance/task"},

	"appliance/announce/interop": {}, // tests only

	"appliance/brake":           {},
	"appliance/discover/ledger": {"api/wire", "appliance/brake", "appliance/discover/provider"},
	"appliance/discover/write":  {"appliance/discover/provider", "store/object"},
	"appliance/discover": {
		"api/client", "api/wire", "appliance/discover/consul", "appliance/discover/dns", "appliance/discover/docker", "appliance/discover/ledger", "appliance/discover/nomad", "appliance/discover/provider", "appliance/discover/remote", "appliance/discover/targets", "appliance/discover/write", "appliance/task", "store/annotation", "store/object",
	},
	"appliance/discover/provider": {},
	"appliance/discover/remote":   {"appliance/discover/provider"},
	"appliance/discover/consul":   {"appliance/discover/provider", "appliance/discover/remote"},
	"appliance/discover/dns":      {"appliance/discover/provider", "appliance/discover/remote"},
	"appliance/discover/docker":   {"appliance/discover/provider", "appliance/discover/remote"},
	"appliance/discover/nomad":    {"appliance/discover/provider", "appliance/discover/remote"},
	"appliance/discover/targets":  {"appliance/discover/provider", "appliance/discover/remote"},

	"appliance/test/providertest": {"appliance/discover/provider", "appliance/discover/remote", "appliance/test/pki"}, // for tests only

	"appliance/conntrack":       {"appliance/task", "nft", "nft/nfnetlink"},
	"appliance/control":         {"api/wire", "appliance/advertise", "appliance/endpoints", "appliance/gateway", "appliance/node", "appliance/resolve", "appliance/task", "store", "store/manifest", "store/object", "store/pending"},
	"appliance/dns":             {"appliance/listen", "appliance/resolve", "store/object"},
	"appliance/endpoints":       {"store/object"},
	"appliance/gateway":         {"appliance/health", "appliance/relay/tlsterm", "store/annotation", "store/object"},
	"appliance/env":             {"store/object"},
	"appliance/feedback":        {},
	"appliance/health":          {"store/object"},
	"appliance/healthport":      {"api", "appliance/listen", "appliance/task"},
	"appliance/checkup":         {"api/wire"},
	"appliance/logqueue":        {},
	"appliance/journald":        {},
	"appliance/connlog":         {"appliance/journald", "appliance/logqueue", "appliance/task"},
	"appliance/flows":           {"appliance/conntrack", "nft"},
	"appliance/metrics":         {"api", "api/wire", "appliance/listen"},
	"appliance/node":            {"appliance/task"},
	"appliance/listen":          {"appliance/task"},
	"appliance/prober":          {"appliance/health", "appliance/task"},
	"appliance/suspect":         {"appliance/health"},
	"appliance/relay":           {"appliance/handover", "appliance/listen", "appliance/relay/httpproxy", "appliance/relay/tlsterm", "appliance/task"},
	"appliance/handover":        {"appliance/listen", "appliance/task"},
	"appliance/history":         {},
	"appliance/resolve":         {"appliance/health", "nft", "store/annotation", "store/object"},
	"appliance/sockets":         {"appliance/node", "appliance/task", "nft/nfnetlink"},
	"appliance/apiserver":       {"api", "api/auth", "api/dashboard", "api/diagnose", "api/rest", "api/wire", "appliance/checkup", "appliance/config", "appliance/env", "appliance/history", "appliance/listen", "appliance/metrics", "appliance/rollout", "appliance/task", "appliance/verdict", "store", "store/object", "store/pending"},
	"appliance/sourceset":       {"watch"},
	"appliance/sources":         {"appliance/task", "store", "store/engine", "store/manifest", "watch"},
	"appliance/rollout":         {"store/object", "store/pending"},
	"appliance/relay/httpproxy": {},
	"appliance/relay/tlsterm":   {},
	"appliance/config": {
		"appliance/control", "appliance/dns", "appliance/endpoints", "appliance/logqueue", "appliance/node", "appliance/resolve", "nft", "store", "store/alloc", "store/manifest", "store/object",
	},
	"appliance/parts": {
		"api/wire", "appliance/announcements", "appliance/connlog", "appliance/conntrack", "appliance/dns", "appliance/feedback", "appliance/flows", "appliance/health", "appliance/healthport", "appliance/history", "appliance/listen", "appliance/node", "appliance/prober", "appliance/reconcile", "appliance/relay", "appliance/relay/tlsterm", "appliance/resolve", "appliance/sourceset", "appliance/suspect",
		"appliance/task", "nft", "store", "store/annotation", "store/object", "store/parallel",
	},
	"appliance/verdict": {"api/wire"},
	"appliance/reconcile": {
		"api/wire", "appliance/brake", "appliance/checkup", "appliance/history", "appliance/metrics", "appliance/node", "appliance/resolve", "appliance/sockets", "appliance/task", "appliance/verdict",
		"nft", "nft/kernel", "store", "store/alloc", "store/deadline", "store/engine", "store/manifest", "store/object", "store/parallel", "store/pending", "watch",
	},
	"appliance/forecast": {"api/wire", "appliance/resolve", "nft", "store/object"},
	"appliance/story":    {"api/wire", "appliance/conntrack", "appliance/task", "nft", "nft/sim", "nft/trace"},
	"appliance/traffic":  {"api/wire", "appliance/conntrack", "appliance/flows", "appliance/node", "appliance/task", "nft"},
	"appliance/task":     {},
	"appliance": {
		"api", "api/auth", "api/wire", "appliance/admission", "appliance/advertise", "appliance/announcements", "appliance/apiserver", "appliance/checkup", "appliance/config", "appliance/conntrack", "appliance/control", "appliance/dns", "appliance/flows", "appliance/forecast", "appliance/handover", "appliance/history", "appliance/metrics", "appliance/node", "appliance/parts", "appliance/prober", "appliance/reconcile", "appliance/relay", "appliance/resolve", "appliance/rollout", "appliance/routes", "appliance/sources", "appliance/sourceset", "appliance/story", "appliance/task", "appliance/traffic",
		"nft", "nft/kernel", "store", "store/annotation", "store/deadline", "store/engine", "store/fleet", "store/manifest", "store/object", "store/pending", "watch",
	},
	"appliance/bench":       {},               // benchmarks only
	"appliance/e2e":         {},               // tests only
	"appliance/netlab":      {},               // for tests only
	"appliance/soak":        {},               // tests only
	"appliance/test/oracle": {"store/object"}, // for tests only
	"appliance/simulate": { // for tests only
		"api/auth", "api/rest", "api/wire", "appliance/advertise", "appliance/config", "appliance/control", "appliance/health", "appliance/metrics", "appliance/node", "appliance/reconcile", "appliance/resolve", "appliance/sockets", "appliance/test/judge", "appliance/test/oracle", "nft", "nft/kernel", "nft/nfttest/fake", "store", "store/annotation", "store/engine", "store/fleet", "store/kind", "store/manifest", "store/object", "watch",
	},
	"appliance/test/judge": {"appliance/config", "appliance/node", "appliance/test/oracle", "nft", "nft/nfttest/stateful", "nft/sim", "store/object"},

	"appliance/test/faulty": {"store/engine"}, // for tests only
	"appliance/test/pki":    {},               // for tests only
	"appliance/test/script": {"nft"},          // for tests only

	"cmd/svcctl": {
		"api/client", "appliance", "appliance/announce", "appliance/discover", "appliance/handover", "cmd/svcctl/admin", "cmd/svcctl/box", "cmd/svcctl/change", "cmd/svcctl/cli", "cmd/svcctl/fleet", "cmd/svcctl/look", "cmd/svcctl/output", "cmd/svcctl/resource", "cmd/svcctl/settings", "store/kind", "store/object",
	},
	"cmd/svcctl/cli": {
		"api/client", "api/wire", "appliance/announce", "appliance/checkup", "appliance/config", "appliance/discover", "appliance/logqueue", "cmd/svcctl/output", "store/manifest",
	},
	"cmd/svcctl/settings": {
		"api/client", "appliance/config", "cmd/svcctl/cli", "cmd/svcctl/output", "store/object", "watch",
	},
	"cmd/svcctl/resource": {
		"api/client", "api/jsonpath", "api/kube/selector", "api/wire", "cmd/svcctl/cli", "cmd/svcctl/output", "cmd/svcctl/settings", "store/kind", "store/manifest", "store/object", "store/schema", "watch",
	},
	"cmd/svcctl/change": {
		"api/client", "api/kube/selector", "api/wire", "appliance/config", "appliance/rollout", "cmd/svcctl/cli", "cmd/svcctl/output", "cmd/svcctl/report", "cmd/svcctl/resource", "cmd/svcctl/settings", "store/annotation", "store/convert", "store/kind", "store/manifest", "store/object", "store/schema", "watch",
	},
	"cmd/svcctl/look": {
		"api/client", "api/diagnose", "api/jsonpath", "api/kube/selector", "api/wire", "cmd/svcctl/cli", "cmd/svcctl/describe", "cmd/svcctl/explain", "cmd/svcctl/output", "cmd/svcctl/resource", "cmd/svcctl/settings", "cmd/svcctl/top", "store/annotation", "store/convert", "store/kind", "store/object",
	},
	"cmd/svcctl/box": {
		"api/client", "api/dashboard", "api/diagnose", "api/wire", "appliance/announce", "appliance/announce/bfd", "appliance/announce/bgp", "appliance/announce/vrrp", "appliance/checkup", "appliance/config", "appliance/discover", "appliance/handover", "appliance/journald", "appliance/logqueue", "cmd/svcctl/cli", "cmd/svcctl/output", "cmd/svcctl/resource", "cmd/svcctl/settings", "store/annotation", "store/object",
	},
	"cmd/svcctl/fleet": {
		"api/client", "api/wire", "appliance", "appliance/config", "cmd/svcctl/cli", "cmd/svcctl/output", "cmd/svcctl/resource", "cmd/svcctl/settings", "store/fleet",
	},
	"cmd/svcctl/admin": {
		"api/client", "api/wire", "appliance", "cmd/svcctl/cli", "cmd/svcctl/output", "cmd/svcctl/pin", "cmd/svcctl/resource", "cmd/svcctl/settings", "store/manifest", "store/object", "watch",
	},
	"cmd/svcctl/output":   {"store/manifest"},
	"cmd/svcctl/describe": {"api/client", "api/diagnose", "api/wire", "cmd/svcctl/output", "store/annotation", "store/kind", "store/object", "store/schema"},
	"cmd/svcctl/explain":  {"cmd/svcctl/output", "store/annotation", "store/kind", "store/schema"},
	"cmd/svcctl/pin":      {"store/annotation", "store/manifest", "store/object"},
	"cmd/svcctl/report":   {"cmd/svcctl/output", "store/manifest"},
	"cmd/svcctl/top":      {"api/client", "api/wire", "cmd/svcctl/output"},
	"examples/demo":       {},
	".ci/release":         {},
	".ci/report":          {},
}

// testEdges are the packages that any test may use besides its package's own edges.
var testEdges = []string{"appliance/test/faulty", "appliance/test/providertest", "appliance/netlab", "appliance/test/oracle", "appliance/test/pki", "nft/nfttest/fake", "nft/nfttest/stateful", "nft/sim", "store/manifest", "store/manifest/styles", "store/object"}

// moreTestEdges are additional imports of the tests of single packages: tests of several rooms
// together.
var moreTestEdges = map[string][]string{
	"api/client":            {"api"},
	"api/kube/patch":        {"store/kind"},
	"api/kube/protobuf":     {"store/kind"},
	"appliance/e2e":         {"appliance/announce/vrrp", "appliance/test/judge", "nft", "nft/kernel"},
	"appliance/simulate":    {"api/client", "appliance/discover", "appliance/discover/provider"},
	"appliance/admission":   {"store/annotation", "store/engine"},
	"appliance/apiserver":   {"appliance/control", "appliance/node", "store/engine"},
	"appliance/bench":       {"appliance/health", "appliance/prober", "nft", "nft/kernel"},
	"appliance/conntrack":   {"nft/kernel"},
	"appliance/control":     {"store/alloc", "store/engine"},
	"appliance/parts":       {"store/engine"},
	"appliance/soak":        {"nft", "nft/kernel"},
	"appliance/reconcile":   {"appliance/config", "appliance/control", "appliance/test/judge", "api/rest", "appliance/apiserver", "appliance/config", "appliance/control", "appliance/endpoints", "appliance/health", "appliance/logqueue", "appliance/task", "appliance/test/script", "store/engine"},
	"cmd/svcctl":            {"api", "api/auth", "api/rest", "api/wire", "appliance/announce/bfd", "appliance/announce/bgp", "appliance/announce/vrrp", "appliance/checkup", "appliance/config", "appliance/verdict", "cmd/svcctl/report", "store", "store/alloc", "store/annotation", "store/engine", "store/fleet"},
	"examples":              {"appliance", "appliance/config", "appliance/discover/dns", "appliance/discover/nomad", "appliance/discover/provider", "appliance/discover/targets"},
	"store/managedfields":   {"store/kind"},
	"store/fleet":           {"store", "store/alloc", "store/deadline", "store/manifest", "store/pending"},
	"appliance/test/script": {"nft/kernel"},

	"appliance/announce/interop": {"appliance/announce/bfd", "appliance/announce/bgp"},
}

// libraries are the packages that may use a library of others. A library that is not
// listed needs a sentence in ARCHITECTURE.md first.
var libraries = map[string][]string{
	"github.com/coreos/go-systemd":        {"appliance", "appliance/handover"},
	"gopkg.in/evanphx/json-patch.v4":      {"api/kube/patch"},
	"google.golang.org/protobuf":          {"api/kube/protobuf", "store/schema"},
	"github.com/fsnotify/fsnotify":        {"appliance/discover/targets", "appliance/simulate", "appliance/sourceset", "watch"},
	"github.com/google/nftables":          {"nft/kernel", "nft/trace"},
	"github.com/mdlayher/netlink":         {"nft/nfnetlink"},
	"github.com/miekg/dns":                {"appliance/discover/dns", "appliance/dns", "appliance/netlab", "appliance/prober"},
	"github.com/osrg/gobgp":               {"appliance/announce/bgp"},
	"github.com/pires/go-proxyproto":      {"appliance/relay"},
	"github.com/prometheus/client_golang": {"appliance/metrics"},
	"github.com/rogpeppe/go-internal":     {"appliance/test/script", "cmd/svcctl/output"},
	"github.com/urfave/cli":               {"cmd/svcctl"},
	"github.com/vishvananda/netlink":      {"appliance/announce/bgp", "appliance/netlab", "appliance/node", "appliance/routes", "appliance/sockets"},
	"go.etcd.io/bbolt":                    {"appliance/simulate", "store/engine"},
	"go.etcd.io/etcd":                     {"appliance/simulate", "store/fleet"},
	"go.uber.org/zap":                     {"store/fleet"},
	"google.golang.org/grpc":              {"appliance/simulate", "store/fleet"},
	"golang.org/x/net":                    {"appliance/announce", "appliance/announce/neighbor", "appliance/conntrack", "appliance/prober", "nft/kernel", "nft/nfnetlink"},
	"golang.org/x/sync":                   {"appliance/announce", "appliance/announce/neighbor", "appliance/discover", "appliance/discover/dns", "appliance/parts", "appliance/task"},
	"golang.org/x/sys":                    {"api", "api/auth", "appliance/announce", "appliance/announce/bfd", "appliance/announce/bgp", "appliance/announce/neighbor", "appliance/conntrack", "appliance/handover", "appliance/journald", "appliance/netlab", "appliance/node", "appliance/prober", "appliance/relay", "appliance/routes", "appliance/simulate", "appliance/sockets", "appliance/traffic", "cmd/svcctl/cli", "cmd/svcctl/top", "nft/kernel", "nft/nfnetlink", "nft/nfttest/fake", "nft/trace", "store/deadline", "watch"},
	"github.com/mdlayher/packet":          {"appliance/announce", "appliance/announce/neighbor"},
	"gopkg.in/yaml.v3":                    {"cmd/svcctl/pin", "cmd/svcctl/settings", "store/manifest"},
}

// testLibraries may be used by the tests of any package.
var testLibraries = []string{
	"github.com/anishathalye/porcupine", "github.com/google/go-cmp", "github.com/rogpeppe/go-internal", "github.com/vishvananda/netlink", "golang.org/x/sys", "gopkg.in/yaml.v3",
}

// pure packages compute: same input, same output. What they need from the world is
// handed to them.
var pure = []string{
	"appliance/announce/vrrp", "appliance/brake", "appliance/discover/ledger", "appliance/endpoints", "appliance/env", "appliance/feedback", "appliance/gateway", "appliance/resolve", "appliance/verdict", "nft", "nft/sim", "store/alloc", "store/annotation", "store/convert", "store/kind", "store/managedfields", "store/manifest", "store/manifest/styles", "store/object", "store/schema",
	"api/diagnose", "api/jsonpath", "api/kube/discovery", "api/kube/patch", "api/kube/protobuf", "api/kube/selector", "api/kube/table", "cmd/svcctl/explain", "cmd/svcctl/output", "cmd/svcctl/pin", "cmd/svcctl/report",
}

// impure are the packages of the standard library that a pure package does not
// import, and the functions that it does not call.
var (
	impure      = []string{"os", "net", "net/http", "log", "log/slog", "syscall", "math/rand", "math/rand/v2", "crypto/rand"}
	impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.NewTimer"}
)

// source is one file of ours, parsed.
type source struct {
	path   string // from the root of the repository
	pkg    string // its directory
	module string // the directory of its module; "." is the product
	test   bool
	file   *ast.File
}

// sources parses every Go file of the product.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset, all := allSources(t)
	return fset, slices.DeleteFunc(all, func(s source) bool { return s.module != "." })
}

// allSources parses every Go file of the repository, those of the test modules too, once for all tests.
func allSources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset, all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return fset, slices.Clone(all)
}

var parsed = onceParsed()

func onceParsed() func() (*token.FileSet, []source, error) {
	fset := token.NewFileSet()
	parse := sync.OnceValues(func() (all []source, err error) {
		names, err := listFiles()
		if err != nil {
			return nil, err
		}
		modules := map[string]bool{}
		for _, name := range names {
			if path.Base(name) == "go.mod" {
				modules[path.Dir(name)] = true
			}
		}
		for _, name := range names {
			if path.Ext(name) != ".go" {
				continue
			}
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			in := path.Dir(name)
			for !modules[in] {
				in = path.Dir(in)
			}
			all = append(all, source{name, path.Dir(name), in, strings.HasSuffix(name, "_test.go"), file})
		}
		return all, nil
	})
	return func() (*token.FileSet, []source, error) {
		all, err := parse()
		return fset, all, err
	}
}

// built are the names of what tools leave behind, as .gitignore has them.
var built = []string{"*.test", "*.out", "*.prof", "svcctl"}

// files lists the files of the repository: not what was built, not what git keeps.
func files(t *testing.T) []string {
	t.Helper()
	all, err := listFiles()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func listFiles() (all []string, err error) {
	err = filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".git" && !entry.IsDir(): // a linked worktree has a file
			return nil
		case entry.IsDir() && (name == ".git" || name == "bin"):
			return fs.SkipDir
		case slices.ContainsFunc(built, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }):
			return nil
		case entry.Type().IsRegular():
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	return all, err
}

// imports lists what a file imports.
func (s source) imports() []string {
	var all []string
	for _, spec := range s.file.Imports {
		all = append(all, strings.Trim(spec.Path.Value, `"`))
	}
	return all
}

func TestImportsOfOurs(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		allowed, known := edges[s.pkg]
		if !known && !s.test {
			t.Errorf("%s: package %s is not in the list of packages", s.path, s.pkg)
			continue
		}
		if s.test {
			allowed = slices.Concat(allowed, []string{s.pkg}, testEdges, moreTestEdges[s.pkg])
		}
		for _, imported := range s.imports() {
			ours, is := strings.CutPrefix(imported, module+"/")
			if is && !slices.Contains(allowed, ours) {
				t.Errorf("%s: %s must not import %s", s.path, s.pkg, ours)
			}
		}
	}
}

// ARCHITECTURE.md has a row for every package of the list, but for tools and examples.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range edges {
		isTool := strings.HasPrefix(pkg, ".ci/") || strings.HasPrefix(pkg, "examples/")
		if !isTool && !strings.Contains(string(text), "\n| `"+pkg+"` |") {
			t.Errorf("ARCHITECTURE.md has no row for package %s", pkg)
		}
	}
}

// TestListsAreCurrent: what nobody imports any more is not in the lists.
func TestListsAreCurrent(t *testing.T) {
	_, all := sources(t)
	imported := map[string][]string{} // by package, without its tests
	for _, s := range all {
		if !s.test {
			imported[s.pkg] = append(imported[s.pkg], s.imports()...)
		}
	}
	uses := func(pkg, what string) bool {
		return slices.ContainsFunc(imported[pkg], func(i string) bool { return strings.HasPrefix(i+"/", what+"/") })
	}
	for pkg, targets := range edges {
		if _, there := imported[pkg]; !there {
			t.Errorf("package %s is listed and not there", pkg)
		}
		for _, target := range targets {
			if !uses(pkg, module+"/"+target) {
				t.Errorf("%s may import %s and does not: take it off the list", pkg, target)
			}
		}
	}
	for library, users := range libraries {
		for _, pkg := range users {
			if !uses(pkg, library) {
				t.Errorf("%s may import %s and does not: take it off the list", pkg, library)
			}
		}
	}
}

// TestNoCircle holds the list of edges itself to the rule that no arrow runs back.
func TestNoCircle(t *testing.T) {
	var visit func(pkg string, above []string)
	visit = func(pkg string, above []string) {
		if slices.Contains(above, pkg) {
			t.Fatalf("circle: %v", append(above, pkg))
		}
		for _, next := range edges[pkg] {
			visit(next, append(above, pkg))
		}
	}
	for pkg := range edges {
		visit(pkg, nil)
	}
}

func TestImportsOfLibraries(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		for _, imported := range s.imports() {
			first, _, _ := strings.Cut(imported, "/")
			if !strings.Contains(first, ".") || strings.HasPrefix(imported, module) {
				continue
			}
			if !mayUse(s, imported) {
				t.Errorf("%s: %s must not import %s", s.path, s.pkg, imported)
			}
		}
	}
}

func mayUse(s source, imported string) bool {
	within := func(library string) bool { return strings.HasPrefix(imported+"/", library+"/") }
	for library, users := range libraries {
		if within(library) && slices.Contains(users, s.pkg) {
			return true
		}
	}
	return s.test && slices.ContainsFunc(testLibraries, within)
}

func TestPurity(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test || !slices.Contains(pure, s.pkg) {
			continue
		}
		for _, imported := range s.imports() {
			if slices.Contains(impure, imported) {
				t.Errorf("%s: %s is pure and must not import %s", s.path, s.pkg, imported)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			selector, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			if x, is := selector.X.(*ast.Ident); is && slices.Contains(impureCalls, x.Name+"."+selector.Sel.Name) {
				t.Errorf("%s: %s is pure and must not call %s.%s", fset.Position(n.Pos()), s.pkg, x.Name, selector.Sel.Name)
			}
			return true
		})
	}
}

// TestNoKubernetesModule: the product speaks Kubernetes' language and carries none of
// its code.
func TestNoKubernetesModule(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := regexp.MustCompile(`(?m)^\s*(require\s+)?(sigs\.)?k8s\.io/\S+`).Find(content); found != nil {
			t.Errorf("%s names %s", name, strings.TrimSpace(string(found)))
		}
	}
}

// TestConformanceStaysOutside: the modules that try the product with other people's
// programs know it by its command line and what it serves alone, and none of what they
// need gets into the product.
func TestConformanceStaysOutside(t *testing.T) {
	const (
		conformance = "api/conformance/"
		packaging   = ".ci/package"
		website     = ".ci/package/site"
	)
	_, all := allSources(t)
	for _, s := range all {
		if s.module == "." {
			continue
		}
		if !strings.HasPrefix(s.module, conformance) && s.module != packaging && s.module != website {
			t.Errorf("%s is in a module of its own, %s: those are below %s, and %s and %s", s.path, s.module, conformance, packaging, website)
		}
		for _, imported := range s.imports() {
			if ours, is := strings.CutPrefix(imported, module+"/"); is && !strings.HasPrefix(ours, conformance) {
				t.Errorf("%s: a test module must not import %s", s.path, ours)
			}
		}
	}
	for _, s := range all {
		if s.module == "." && strings.HasPrefix(s.pkg, conformance) {
			t.Errorf("%s is in the product's module", s.path)
		}
	}
}

// TestLibrariesAreExplained: every library has its sentence.
func TestLibrariesAreExplained(t *testing.T) {
	architecture, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range slices.Concat(slices.Collect(maps.Keys(libraries)), testLibraries) {
		if !strings.Contains(string(architecture), "`"+library) {
			t.Errorf("ARCHITECTURE.md does not say what %s is for", library)
		}
	}
}

// TestStoreNamesNoUses: the store has sets of pending changes and shared engines; trials, rollouts, fleets and leaves are for its users.
func TestStoreNamesNoUses(t *testing.T) {
	_, all := allSources(t)
	uses := regexp.MustCompile(`(?i)fleet|trial|rollout|leaf`)
	for _, s := range all {
		if s.test || s.pkg != "store" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if id, is := n.(*ast.Ident); is && uses.MatchString(id.Name) {
				t.Errorf("%s: the identifier %s", s.path, id.Name)
			}
			return true
		})
	}
}
