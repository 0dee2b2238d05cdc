package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"svcctl.io/svcctl/appliance"
)

func (p *program) exportVerb() *verb {
	return &verb{
		name:    "admin export",
		summary: "write the whole state to a file",
		args:    "FILE|- [FLAGS]",
		about: `Writes a consistent copy of the state of the appliance: objects with their owners,
uids and revisions, their addresses and ports, the last good copies of files, the journal,
and a trial in progress. ` + "`svcctl admin restore`" + ` restores it on another box.

The file is lines of JSON with a checksum at the end. It is readable by its owner only,
because it contains Secrets. It does not contain the keys and certificates of the API. It
needs root.`,
		options: connectOptions(),
		examples: []example{
			{"Every night.", "svcctl admin export /var/backups/svcctl-$(date +%F).jsonl"},
			{"The Services in an export.", `jq -r 'select(.key // "" | startswith("object/Service/")).key' svcctl.jsonl`},
		},
		exits: `  0  done
  1  not done: no file was written
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runExport,
	}
}

// runExport writes an export. A file appears when it is whole.
func (p *program) runExport(ctx context.Context, v *verb, args []string) (err error) {
	if len(args) != 1 {
		return usagef("export takes the file to write, or - for stdout")
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	if args[0] == "-" {
		return c.Export(ctx, p.stdout)
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
	moving := p.moving("exported")
	err = c.Export(ctx, io.MultiWriter(file, moving))
	moving.end()
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), args[0])
}

func (p *program) restoreVerb() *verb {
	o := []*option{
		{name: "replace", group: groupHow, usage: "even if there are Services: the present content is lost"},
		yesOption(),
		configOption(),
	}
	for _, s := range settings() {
		if s.name == "data-dir" || s.name == "data-key-file" {
			place := s.option()
			place.group = groupPlaces
			o = append(o, place)
		}
	}
	return &verb{
		name:    "admin restore",
		summary: "restore a box from an export",
		args:    "FILE|- [FLAGS]",
		about: `Makes the data directory what ` + "`svcctl admin export`" + ` has written: the next ` + "`svcctl serve`" + `
serves the same objects at the same addresses and ports, with the same uids and
revisions. The appliance must be stopped. A directory with Services or endpoints is
left alone, unless --replace is given. Then it asks, and without a terminal it needs --yes.

An export that is cut short or was changed is refused with its line; either all of it is
restored, in one transaction, or nothing. Services of files are held until their files are
in the watched directories again. The settings of ` + "`svcctl serve`" + ` are not part of an
export: give the new box the same ranges and pools. It needs root.`,
		options: o,
		examples: []example{
			{"Onto a fresh box.", "systemctl stop svcctl && svcctl admin restore svcctl.jsonl && systemctl start svcctl"},
		},
		exits: `  0  done
  1  nothing was changed: stderr has the reason
  2  wrong usage or configuration, or no terminal to ask on and no --yes`,
		run: p.runRestore,
	}
}

// runRestore restores an export.
func (p *program) runRestore(_ context.Context, v *verb, args []string) error {
	if len(args) != 1 {
		return usagef("restore takes the file that `svcctl admin export` has written, or - for stdin")
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
	if v.option("replace").on() && isStored(cfg.DataDir) {
		if err := p.consent(v, fmt.Sprintf("this removes all that %s holds, and puts the export %s in its place", cfg.DataDir, args[0])); err != nil {
			return err
		}
	}
	name, in := "stdin", p.stdin
	if args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer file.Close()
		name, in = args[0], file
	}
	moving := p.moving("read")
	objects, revision, err := appliance.Restore(cfg.DataDir, cfg.DataKeyFile, io.TeeReader(in, moving), v.option("replace").on())
	moving.end()
	if appliance.IsNotEmpty(err) {
		return fmt.Errorf("%s: %w: nothing was changed; --replace drops them", cfg.DataDir, err)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w; nothing was changed", name, err)
	}
	return p.print(fmt.Sprintf("%s restored in %s, revision %d.\n", count(objects, "object"), cfg.DataDir, revision))
}

// isStored reports whether a data directory has a store. One that cannot be looked at counts as having one.
func isStored(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, "state.db"))
	return !errors.Is(err, fs.ErrNotExist)
}
