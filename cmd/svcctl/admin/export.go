package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func exportVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "admin export",
		Options: settings.ConnectOptions(),
		Run:     runExport,
	}
}

// runExport writes an export. A file appears when it is whole.
func runExport(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) (err error) {
	if len(args) != 1 {
		return cli.Usagef("export takes the file to write, or - for stdout")
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
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

// isStored reports whether a data directory has a store. One that cannot be looked at counts as having one.
func isStored(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, "state.db"))
	return !errors.Is(err, fs.ErrNotExist)
}
