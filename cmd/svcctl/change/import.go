package change

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/convert"
	"svcctl.io/svcctl/watch"
)

// maxSource is the maximum size in bytes of a configuration to import.
const maxSource = 16 << 20

func ImportVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "import",
		Words: slices.Sorted(maps.Keys(convert.Sources())),
		Options: []*cli.Option{
			settings.NamespaceOption(),
			{Name: "address", Arg: "ADDRESS", Repeats: true, Group: cli.GroupHow, Usage: "address for `bind *` of HAProxy; repeatable, one for each IP family (default: an address of a pool)"},
			{Name: "resolve", Group: cli.GroupHow, Usage: "look up host names of servers once, and write their addresses"},
			{Name: "keep-cluster-ips", Group: cli.GroupHow, Usage: "the Services of a cluster keep their cluster IPs"},
		},
		Run: runImport,
	}
}

// runImport prints the manifests for a configuration of another load balancer.
func runImport(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 2 {
		return cli.Usagef("import takes a kind of file and a file, as `svcctl import keepalived /etc/keepalived/keepalived.conf`")
	}
	source, known := convert.Sources()[args[0]]
	if !known {
		return cli.Usagef("import from %q: want one of %s", args[0], strings.Join(v.Words, ", "))
	}
	name := args[1]
	text, err := readSource(env, name)
	if err != nil {
		return err
	}
	if name == "-" {
		name = "stdin"
	}
	options := convert.Options{}
	if namespace := settings.Namespace(env, v); namespace != v.Option("namespace").Def {
		options.Namespace = namespace
	}
	for _, text := range v.Option("address").Texts {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return cli.Usagef("--address %q: want an address, as 192.0.2.10", text)
		}
		options.Addresses = append(options.Addresses, addr.Unmap())
	}
	options.KeepClusterIPs = v.Option("keep-cluster-ips").On()
	end := env.Waiting(func() string { return "importing " + name }, 0)
	imported, err := source(string(text), options)
	if names := namesIn(err); len(names) > 0 && v.Option("resolve").On() {
		if options.Names, err = lookUp(ctx, names); err == nil {
			imported, err = source(string(text), options)
		}
	}
	end()
	if err != nil {
		for _, err := range cli.Flatten(err) {
			where := name
			if at, is := errors.AsType[*convert.Error](err); is {
				where, err = fmt.Sprintf("%s:%d", name, at.Line), errors.New(at.Text)
			}
			fmt.Fprintf(env.Err, "%s: %s\n", where, output.OneLine(err.Error()))
		}
		return errors.New("nothing is imported: see above")
	}
	end = env.Waiting(func() string { return "writing manifests" }, 0)
	manifests, err := imported.YAML()
	end()
	if err != nil {
		return err
	}
	for _, loss := range imported.AllLosses() {
		where := name
		if loss.Line > 0 {
			where += fmt.Sprintf(":%d", loss.Line)
		}
		fmt.Fprintf(env.Err, "%s: warning: %s\n", where, output.OneLine(loss.Text))
	}
	if imported.Described > 0 && (imported.Done < imported.Described || len(imported.AllLosses()) > 0) { // else the manifests are all of it
		defer func() { fmt.Fprintf(env.Err, "%s: %s\n", name, imported.Summary()) }()
	}
	if len(imported.Virtuals)+len(imported.Kept)+len(imported.Settings) == 0 {
		return fmt.Errorf("%s describes no virtual server that has a counterpart", name)
	}
	return env.Print(manifests)
}

// namesIn returns the host names for which an import failed because it had no address for them, without duplicates.
func namesIn(err error) (names []string) {
	for _, err := range cli.Flatten(err) {
		if at, is := errors.AsType[*convert.Error](err); is && at.Name != "" && !slices.Contains(names, at.Name) {
			names = append(names, at.Name)
		}
	}
	return names
}

// lookupPatience is the maximum time for looking up all host names of a file.
const lookupPatience = 10 * time.Second

// lookUp returns the addresses of each host name, IPv4 addresses first.
func lookUp(ctx context.Context, names []string) (map[string][]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	found := map[string][]netip.Addr{}
	var errs []error
	for _, name := range names {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err != nil {
			errs = append(errs, fmt.Errorf("look up %s: %w", name, err))
			continue
		}
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
		found[name] = addrs
	}
	return found, errors.Join(errs...)
}

// readSource returns the content of a file, or of stdin for "-".
func readSource(env *cli.Env, name string) ([]byte, error) {
	if name != "-" {
		return watch.ReadNamed(name, maxSource)
	}
	// The writer of the pipe, as kubectl at a distant cluster, may be slow.
	var n cli.Counter
	defer env.Waiting(func() string { return fmt.Sprintf("reading stdin: %d KiB", n.Load()>>10) }, 0)()
	text, err := io.ReadAll(io.LimitReader(io.TeeReader(env.In, &n), maxSource+1))
	if err == nil && len(text) > maxSource {
		err = fmt.Errorf("stdin has more than %d bytes", maxSource)
	}
	return text, err
}
