package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/pin"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// AdminVerb returns the verb admin, with the verbs for maintenance below it.
func AdminVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "admin",
		Verbs: cli.Words(exportVerb(), restoreVerb(), allocVerb(), pinVerb(), kubeconfigVerb(), tokenVerb(), envVerb()),
	}
}

func allocVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "admin alloc",
		Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormWide, cli.FormYAML, cli.FormJSON)}, settings.ConnectOptions()),
		Verbs:   cli.Words(allocCheckVerb()),
		Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
			a, err := allocations(ctx, env, v, false)
			if err != nil {
				return err
			}
			return env.Output(v, a, func() string { return poolsText(a.Pools, v.Option("output").Text() == cli.FormWide) })
		},
	}
}

func allocCheckVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin alloc check",
		Options: slices.Concat([]*cli.Option{
			cli.OutputOption(cli.FormTable, cli.FormYAML, cli.FormJSON),
			{Name: "repair", Group: cli.GroupHow, Usage: "remove differences; needs the right to write"},
		}, settings.ConnectOptions()),
		Run: runAllocCheck,
	}
}

// allocations returns the appliance's ranges, the Services that hold addresses and ports of them, and the differences between these allocations and
// the Services. If repair is set, the appliance also removes the differences.
func allocations(ctx context.Context, env *cli.Env, v *cli.Verb, repair bool) (*wire.Allocations, error) {
	c := env.Client(v)
	if repair {
		return client.Call(ctx, c, wire.Repair, wire.None{})
	}
	return client.Call(ctx, c, wire.GetAllocations, wire.AllocationsQuery{})
}

// runAllocCheck prints the differences between allocations and Services, and fails if there are any.
func runAllocCheck(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	repair := v.Option("repair").On()
	a, err := allocations(ctx, env, v, repair)
	if err != nil {
		return err
	}
	if err := env.Output(v, a.Disagreements, func() string { return disagreementsText(a.Disagreements) }); err != nil {
		return err
	}
	switch left := slices.ContainsFunc(a.Disagreements, func(d wire.Disagreement) bool { return !d.Repaired }); {
	case left && repair:
		return errors.New("not all of it could be repaired")
	case left:
		return errors.New("the allocator and the Services differ: `svcctl admin alloc check --repair` removes the differences")
	}
	return nil
}

// poolNames maps the kind of a pool to its name in messages.
var poolNames = map[string]string{
	wire.PoolClusterIP: "cluster IPs", wire.PoolNodePort: "node ports", wire.PoolLoadBalancer: "load balancer IPs",
}

// poolName returns the name of a pool for messages, such as "internal load balancer IPs of NAME".
func poolName(pool wire.Pool) string {
	name := poolNames[pool.Kind]
	if pool.Internal {
		name = "internal " + name
	}
	if pool.Name != "" {
		name += " of " + pool.Name
	}
	return name
}

// poolsText formats pools as a table; with wide it also lists all allocations.
func poolsText(pools []wire.Pool, wide bool) string {
	rows := [][]string{{"KIND", "RANGE", "SIZE", "USED", "FREE", "FULL"}}
	for _, pool := range pools {
		rows = append(rows, []string{
			poolName(pool), pool.Range, fmt.Sprint(pool.Size), fmt.Sprint(pool.Used), fmt.Sprint(pool.Size - pool.Used), percent(pool),
		})
	}
	text := new(output.Grid).Text(rows...)
	if !wide {
		return text
	}
	for _, pool := range pools {
		if len(pool.Holders) == 0 {
			continue
		}
		rows := [][]string{{"VALUE", "SERVICES", ""}}
		for _, h := range pool.Holders {
			note := ""
			if h.Outside {
				note = "outside of the range"
			}
			rows = append(rows, []string{h.Value, output.Printable(strings.Join(h.Services, ",")), note})
		}
		text += fmt.Sprintf("\n%s %s\n%s", poolName(pool), pool.Range, output.TrimLines(new(output.Grid).Text(rows...)))
	}
	return text
}

// percent returns the used share of a pool, such as "87%".
func percent(pool wire.Pool) string {
	if pool.Size == 0 {
		return "100%"
	}
	full := 100 * float64(pool.Used) / float64(pool.Size)
	if full > 0 && full < 1 {
		return "<1%"
	}
	return fmt.Sprintf("%.0f%%", full)
}

// disagreementsText formats the differences between allocations and Services as a table.
func disagreementsText(all []wire.Disagreement) string {
	if len(all) == 0 {
		return "Everything that is held belongs to a Service, and every Service holds what it has.\n"
	}
	rows := [][]string{{"KIND", "VALUE", "SERVICE", "PROBLEM"}}
	for _, d := range all {
		problem := d.Problem
		if d.Repaired {
			problem += " (repaired)"
		}
		rows = append(rows, []string{poolNames[d.Kind], d.Value, output.Printable(d.Service), output.Printable(problem)})
	}
	return new(output.Grid).Text(rows...)
}

// The output formats of the verb env.
const (
	envShell  = "shell"
	envDotenv = "dotenv"
	envJSON   = "json"
)

func envVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin env",
		Options: append([]*cli.Option{
			{Name: "namespace", Letter: "n", Arg: "NAMESPACE", Def: "default", Group: "Which Services", Usage: "namespace of the Services"},
			cli.OutputOption(envShell, envDotenv, envJSON),
		}, settings.ConnectOptions()...),
		Command: true,
		Run:     runEnv,
	}
}

// runEnv prints the variables of Services, or replaces this process by a command that has them in its environment.
func runEnv(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) > 0 && v.Option("output").IsSet() {
		return cli.Usagef("env: -o is about what is printed, and with a command nothing is: leave one of them out")
	}
	environment, err := client.Call(ctx, env.Client(v), wire.GetEnvironment, wire.EnvironmentQuery{Namespace: v.Option("namespace").Text()})
	if err != nil {
		return err
	}
	if len(args) > 0 {
		return become(env, args, environment.Variables)
	}
	return printVariables(env, v.Option("output").Text(), environment.Variables)
}

// become replaces this process by a command (execve(2)). It returns only if that fails.
func become(p *cli.Env, args []string, variables []wire.Variable) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	ours := map[string]bool{}
	var env []string
	for _, variable := range variables {
		ours[variable.Name] = true
		env = append(env, variable.Name+"="+variable.Value)
	}
	for _, pair := range p.Environ() {
		if name, _, _ := strings.Cut(pair, "="); !ours[name] {
			env = append(env, pair)
		}
	}
	if err := p.Exec(path, args, env); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// variableName matches the names of shell variables (POSIX.1-2024, 3.216).
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// printVariables prints the variables. Their values are addresses, ports and URLs of these, which need no quotes in a shell assignment.
func printVariables(env *cli.Env, form string, variables []wire.Variable) error {
	if form == envJSON {
		all := make(map[string]string, len(variables))
		for _, variable := range variables {
			all[variable.Name] = variable.Value
		}
		text, err := output.JSON(all)
		if err != nil {
			return err
		}
		return env.Print(text)
	}
	var b, names strings.Builder
	for _, variable := range variables {
		if !variableName.MatchString(variable.Name) {
			fmt.Fprintf(env.Err, "svcctl: %s is left out: a shell takes no name that begins with a digit\n", variable.Name)
			continue
		}
		fmt.Fprintf(&b, "%s=%s\n", variable.Name, variable.Value)
		names.WriteString(" " + variable.Name)
	}
	if form == envShell && names.Len() > 0 {
		b.WriteString("export" + names.String() + "\n")
	}
	return env.Print(b.String())
}

func exportVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "admin export",
		Options: settings.ConnectOptions(),
		Run:     runExport,
	}
}

// runExport writes an export. A file appears only when it is complete.
func runExport(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) (err error) {
	if len(args) != 1 {
		return cli.Usagef("export takes the file to write, or - for stdout")
	}
	c := env.Client(v)
	if args[0] == "-" {
		return c.Export(ctx, env.Out)
	}
	file, err := os.CreateTemp(filepath.Dir(args[0]), "."+filepath.Base(args[0])+".*") // mode 0600
	if e, is := errors.AsType[*os.PathError](err); is {
		return fmt.Errorf("write %s: %w in the directory %s: give another file, or - for stdout", args[0], e.Err, filepath.Dir(args[0]))
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	moving := env.Moving("exported")
	err = c.Export(ctx, io.MultiWriter(file, moving))
	moving.End()
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), args[0])
}

func restoreVerb() *cli.Verb {
	o := []*cli.Option{
		{Name: "replace", Group: cli.GroupHow, Usage: "even if there are Services: the present content is lost"},
		cli.YesOption(),
		settings.ConfigOption(),
	}
	o = append(o, settings.Options("", "data-dir", "data-key-file")...)
	return &cli.Verb{
		Name:    "admin restore",
		Options: o,
		Run:     runRestore,
	}
}

// runRestore restores an export.
func runRestore(_ context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("restore takes the file that `svcctl admin export` has written, or - for stdin")
	}
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	if v.Option("replace").On() && isStored(cfg.DataDir) {
		if err := env.Consent(v, fmt.Sprintf("this removes all that %s holds, and puts the export %s in its place", cfg.DataDir, args[0])); err != nil {
			return err
		}
	}
	name, in := "stdin", env.In
	if args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer file.Close()
		name, in = args[0], file
	}
	moving := env.Moving("read")
	objects, revision, err := appliance.Restore(cfg.DataDir, cfg.DataKeyFile, io.TeeReader(in, moving), v.Option("replace").On())
	moving.End()
	if appliance.IsNotEmpty(err) {
		return fmt.Errorf("%s: %w: nothing was changed; --replace drops them", cfg.DataDir, err)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w; nothing was changed", name, err)
	}
	return env.Print(fmt.Sprintf("%s restored in %s, revision %d.\n", output.Count(objects, "object"), cfg.DataDir, revision))
}

// isStored reports whether a data directory has a store. It is true if that cannot be determined.
func isStored(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, "state.db"))
	return !errors.Is(err, fs.ErrNotExist)
}

func pinVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "admin pin",
		About: settings.SettingsAbout,
		Options: slices.Concat([]*cli.Option{
			{Name: "filename", Letter: "f", Arg: cli.ArgPath, Repeats: true, Group: cli.GroupWhich, Usage: "what to pin: a file, or the files of a directory and of those in it; repeatable"},
			{Name: "live", Group: cli.GroupHow, Usage: "write the values that the appliance of this box has given"},
			{Name: "dry-run", Group: cli.GroupHow, Usage: "list what would be written, and write nothing"},
		}, settings.ConnectOptions(), settings.SettingOptions(true)[1:]), // --config is of both
		Run: runPin,
	}
}

// pinFile is a manifest file whose Services will be pinned: `svcctl admin pin` writes their allocated addresses and ports into it.
type pinFile struct {
	path string
	text []byte
}

func runPin(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	paths := v.Option("filename").Texts
	if len(args) > 0 || len(paths) == 0 || slices.Contains(paths, "-") {
		return cli.Usagef("pin what? Give files or directories with -f: they are written")
	}
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	refused := 0
	var texts []pinFile
	files := map[string]*manifest.File{}
	once := watch.Once{}
	err = once.Each(paths, func(path string, data []byte, problem *manifest.Problem) error {
		if problem != nil {
			refused++
			fmt.Fprintln(env.Err, problem)
			return nil
		}
		texts = append(texts, pinFile{path, data})
		files[path] = manifest.Decode(path, data, manifest.DefaultLimits())
		return nil
	})
	if err != nil {
		return resource.Unreadable(err)
	}
	var services map[string]*object.Service
	if v.Option("live").On() {
		services, err = liveServices(ctx, env, v)
	} else {
		var problems []manifest.Problem
		services, problems, err = appliance.Pin(cfg, files)
		for _, problem := range problems {
			if !problem.Warning {
				refused++
				fmt.Fprintln(env.Err, problem)
			}
		}
	}
	if err != nil {
		return err
	}
	for _, file := range texts {
		wrong, err := pinOne(env, file, services, v.Option("dry-run").On())
		if err != nil {
			return err
		}
		refused += wrong
	}
	if refused > 0 {
		return fmt.Errorf("%s: these Services do not name all their values", output.Count(refused, "problem"))
	}
	return nil
}

// pinOne pins the Services of one file. wrong is the number of Services that could not be pinned.
func pinOne(env *cli.Env, file pinFile, services map[string]*object.Service, dryRun bool) (wrong int, err error) {
	of := func(key string) *object.Service {
		if services[key] == nil {
			wrong++
			fmt.Fprintf(env.Err, "%s: Service %s has no values on that box: with --live, apply it first\n", file.path, key)
		}
		return services[key]
	}
	pins := pin.Write(file.path, file.text, of)
	for _, err := range pins.Problems {
		wrong++
		fmt.Fprintln(env.Err, err)
	}
	if len(pins.Services) == 0 {
		return wrong, nil
	}
	text, err := pins.Text()
	if err != nil {
		return wrong, fmt.Errorf("%s: nothing is written: %w", file.path, err)
	}
	for _, d := range pins.Services {
		if err := env.Print(fmt.Sprintf("%s:%d: %s: %s\n", file.path, d.Line, d.Key, strings.Join(d.Values, ", "))); err != nil {
			return wrong, err
		}
	}
	if dryRun {
		return wrong, nil
	}
	return wrong, replaceFile(file.path, text)
}

// replaceFile replaces the content of a file atomically, and keeps its permissions.
func replaceFile(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".svcctl-pin-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	err = errors.Join(err, temporary.Chmod(info.Mode().Perm()), temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temporary.Name()))
	}
	return nil
}

// liveServices returns the Services of the appliance, by "namespace/name".
func liveServices(ctx context.Context, env *cli.Env, v *cli.Verb) (map[string]*object.Service, error) {
	services := map[string]*object.Service{}
	_, err := env.Client(v).Each(ctx, "/api/v1/services", nil, func(raw json.RawMessage) error {
		svc := &object.Service{}
		if err := json.Unmarshal(raw, svc); err != nil {
			return err
		}
		services[svc.Metadata.Namespace+"/"+svc.Metadata.Name] = svc
		return nil
	})
	return services, err
}
