package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/fleet"
)

func FleetVerb() *cli.Verb {
	const etcd = " It speaks with etcd itself, from anywhere."
	// inEtcd is a verb that speaks with etcd, not with the appliance of this box.
	inEtcd := func(word, args, summary, about string, options []*cli.Option, run func(ctx context.Context, env *cli.Env, v *cli.Verb, cfg fleet.Config, dir string) error, examples ...cli.Example) *cli.Verb {
		return &cli.Verb{
			Name: "fleet " + word, Args: args, Summary: summary, About: about + etcd,
			Options: slices.Concat(options, []*cli.Option{settings.ConfigOption()}, settings.Options("", fleetFlags...)), Examples: examples,
			Exits: `  0  done
  1  not done: stderr has the reason
  2  wrong usage or configuration`,
			Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, dirs []string) error {
				if args != "" && len(dirs) != 1 {
					return cli.Usagef("%s takes one directory", v.Name)
				}
				cfg, err := fleetConfig(env, v)
				if err != nil {
					return err
				}
				if err = run(ctx, env, v, cfg, strings.Join(dirs, "")); err != nil && fleet.NoAnswer(err) && ctx.Err() == nil {
					return fmt.Errorf("no etcd answers: %s", cfg.Unreached(ctx))
				}
				return err
			},
		}
	}
	dataKey := []*cli.Option{dataKeyOption()}
	return &cli.Verb{
		Name:    "fleet",
		Summary: "create, show, back up and restore a fleet",
		About: `Boxes that are started with the same --fleet and --etcd share their objects: the same
Services with the same addresses on each.

boxes, accept, source and rollout ask the appliance of a box. leave works on a directory
alone. The others speak with etcd itself, and need --fleet and --etcd.`,
		Examples: []cli.Example{
			{"A new fleet.", "svcctl fleet init --fleet pop1 --etcd https://etcd1:2379,https://etcd2:2379,https://etcd3:2379"},
			{"The progress of the boxes.", "sudo svcctl fleet boxes"},
		},
		Verbs: cli.Words(
			inEtcd("init", "", "make the fleet in etcd",
				`Makes the fleet in etcd; with --from, of the objects of a box of its own whose serve is
stopped: revisions and addresses stay. Objects of files are those of the source of
--manifests NAME=DIR that has the file, and those of the API without it.`,
				[]*cli.Option{{Name: "from", Arg: cli.ArgDir, Group: cli.GroupHow, Usage: "the data directory of a box, whose objects become those of the fleet"}, settings.Options("", "manifests")[0], dataKeyOption()}, fleetInit,
				cli.Example{"A new fleet.", "svcctl fleet init --fleet pop1 --etcd https://etcd1:2379,https://etcd2:2379,https://etcd3:2379"},
				cli.Example{"A box of its own becomes the first of a fleet.", "svcctl fleet init --fleet pop1 --etcd https://etcd1:2379 --from /var/lib/svcctl"}),
			inEtcd("status", "", "show the state of the fleet in etcd, and of its members", "Shows the state of the fleet in etcd, the members of etcd, and the boxes.", nil, fleetStatus,
				cli.Example{"Is etcd well?", "svcctl fleet status --fleet pop1 --etcd https://etcd1:2379"}),
			&cli.Verb{
				Name: "fleet boxes", Summary: "list the boxes, with their progress", About: "Lists the boxes that share the objects, as `svcctl get boxes` does.",
				Options:  slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormJSON)}, settings.ConnectOptions()),
				Examples: []cli.Example{{"The progress of the boxes.", "sudo svcctl fleet boxes"}},
				Exits: `  0  all boxes are OK
  1  a box is not OK, or this box belongs to no fleet
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
				Run: fleetBoxes,
			},
			&cli.Verb{
				Name: "fleet accept", Summary: "apply an older state of etcd on all boxes", About: "Applies the state of etcd on all boxes although it is older, as after a snapshot of etcd was restored. It needs root.",
				Options:  settings.ConnectOptions(),
				Examples: []cli.Example{{"After a snapshot of etcd was restored.", "sudo svcctl fleet accept"}},
				Exits: `  0  done
  1  not done: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
				Run: fleetAccept,
			},
			sourceVerb(), rolloutVerb(),
			inEtcd("backup", "DIR [FLAGS]", "write all objects to a new data directory", "Writes all objects to a new data directory, with the sources, the trial and the keys of the fleet.", dataKey,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, dir string) error {
					revision, objects, err := fleet.Backup(ctx, cfg, dir)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Written to %s: %s of fleet %s at revision %d, and with them its sources, trial and keys.\n",
						dir, allObjects(objects), cfg.Fleet, revision))
				}, cli.Example{"Every night.", "svcctl fleet backup /var/backups/pop1-$(date +%F) --fleet pop1 --etcd https://etcd1:2379"}),
			inEtcd("restore", "DIR [FLAGS]", "make the fleet equal to a backup",
				`Makes the fleet equal to a backup, or to the data directory of a box that is stopped, at a
revision above all others; all tokens end, and a trial that it has is under way again.`, dataKey,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, dir string) error {
					objects, err := fleet.Restore(ctx, cfg, dir)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Fleet %s has the %s of %s. All tokens are revoked.\n", cfg.Fleet, allObjects(objects), dir))
				}, cli.Example{"The state of a backup.", "svcctl fleet restore /var/backups/pop1-2026-01-31 --fleet pop1 --etcd https://etcd1:2379"}),
			inEtcd("upgrade", "", "raise the format of the data in etcd", "Raises the format of the data in etcd to the newest one, if all boxes read it.",
				[]*cli.Option{{Name: "without", Arg: "BOX", Repeats: true, Group: cli.GroupHow, Usage: "a box that is gone for good, to be ignored; repeatable"}}, fleetUpgrade,
				cli.Example{"All boxes have the new version.", "svcctl fleet upgrade --fleet pop1 --etcd https://etcd1:2379"}),
			inEtcd("reseal", "", "seal all Secrets by the first key", "Seals all Secrets, the key of tokens and the CA by the first key in --fleet-key-file.", nil,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, _ string) error {
					all, changed, err := fleet.Reseal(ctx, cfg)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Fleet %s has %s sealed by key %s; %d of them by another one before.\n", cfg.Fleet, output.Count(all, "value"), cfg.Keys.SealsBy(), changed))
				}, cli.Example{"The key in the first line is new.", "svcctl fleet reseal --fleet pop1 --etcd https://etcd1:2379 --fleet-key-file /etc/svcctl/fleet.key"}),
			&cli.Verb{
				Name: "fleet leave", Args: "DIR [FLAGS]", Summary: "open the Secrets of a box that leaves the fleet",
				About: `Opens the Secrets in the data directory of a box that is stopped, by --fleet-key-file: serve
without --fleet starts from it then.`,
				Options:  slices.Concat(dataKey, []*cli.Option{settings.ConfigOption()}, settings.Options("", fleetFlags...)),
				Examples: []cli.Example{{"This box goes on alone.", "sudo svcctl fleet leave /var/lib/svcctl --fleet-key-file /etc/svcctl/fleet.key"}},
				Exits: `  0  done
  1  not done: stderr has the reason
  2  wrong usage or configuration`,
				Run: fleetLeave,
			}),
	}
}

// fleetFlags are --fleet and those of etcd and of the keys.
var fleetFlags = []string{"fleet", "etcd", "etcd-cacert", "etcd-cert", "etcd-key", "fleet-key-file"}

// dataKeyOption is --data-key-file, of the directory that a verb is given.
func dataKeyOption() *cli.Option {
	o := settings.Options("", "data-key-file")[0]
	o.Usage = "key that the directory is encrypted by"
	return o
}

// allObjects counts objects of all kinds, as `svcctl get` lists them.
func allObjects(n int) string { return output.Count(n, "object") + " (of all kinds)" }

// fleetConfig reads the flags of the fleet and of etcd.
func fleetConfig(env *cli.Env, v *cli.Verb) (fleet.Config, error) {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return fleet.Config{}, err
	}
	if cfg.Fleet.Name == "" {
		return fleet.Config{}, cli.Usagef("which fleet? Give --fleet and --etcd, or SVCCTL_FLEET and SVCCTL_ETCD")
	}
	cfg.NodeName = "svcctl-fleet" // it is no box
	of, err := appliance.FleetConfig(&cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		of.First, err = appliance.FirstObjects(&cfg)
	}
	return of, err
}

func fleetInit(ctx context.Context, env *cli.Env, v *cli.Verb, cfg fleet.Config, _ string) error {
	objects, err := fleet.Init(ctx, cfg, v.Option("from").Text())
	switch {
	case errors.Is(err, fleet.ErrExists):
		return fmt.Errorf("%w: %s: start boxes with --fleet %s to join it, or choose another name", err, cfg.Fleet, cfg.Fleet)
	case err != nil:
		return err
	}
	return env.Print(fmt.Sprintf("Fleet %s is made, with %s. The first box that joins brings its ranges.\n", cfg.Fleet, allObjects(objects)))
}

func fleetUpgrade(ctx context.Context, env *cli.Env, v *cli.Verb, cfg fleet.Config, _ string) error {
	from, to, err := fleet.Upgrade(ctx, cfg, v.Option("without").Texts)
	switch {
	case err != nil:
		return err
	case from == to:
		return env.Print(fmt.Sprintf("Fleet %s has format %d, and this version makes no newer one.\n", cfg.Fleet, to))
	}
	return env.Print(fmt.Sprintf("Fleet %s has format %d now; it had %d. A box with an older version follows nothing more.\n", cfg.Fleet, to, from))
}

// fleetLeave opens the Secrets in a directory. It needs nothing of the fleet but its keys.
func fleetLeave(_ context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet leave takes one directory")
	}
	dir := args[0]
	files := map[string]string{}
	for _, s := range settings.Named("fleet-key-file", "data-key-file") {
		if given, is := settings.Lookup(env, v.Option(s.Name), s, nil); is {
			files[s.Name] = given.Texts[len(given.Texts)-1]
		}
	}
	keys, err := appliance.FleetKeys(files["fleet-key-file"])
	if err != nil {
		return err
	}
	if keys == nil {
		return cli.Usagef("fleet leave needs the keys of the fleet: give --fleet-key-file")
	}
	opened, err := appliance.LeaveFleet(dir, files["data-key-file"], keys)
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("%s in %s opened.\n", output.Count(opened, "Secret"), dir))
}

// fleetStatus prints what etcd has.
func fleetStatus(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, _ string) error {
	o, err := fleet.Look(ctx, cfg)
	if o != nil {
		if err := env.Print(fleetPage(cfg.Fleet, o)); err != nil {
			return err
		}
	}
	return err
}

func fleetPage(name string, o *fleet.Overview) string {
	var b strings.Builder
	if o.ID != "" {
		fmt.Fprintf(&b, "Fleet      %s, id %s\nFormat     %s\nRevision   %d\nObjects    %d (of all kinds)\nSettings   %s\n", name, o.ID, formatText(o), o.Revision, o.Objects,
			cmp.Or(strings.Join(fleet.SettingLines(o.Settings, config.FleetFlags()), "\n           "), "those of the first box that joins"))
		writer := o.Writer
		if writer == "" {
			writer = "no box now"
		}
		fmt.Fprintf(&b, "Writer     %s\n\n", writer)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "MEMBER\tVERSION\tSIZE\tSTATE")
	for _, m := range o.Members {
		state := "follower"
		switch {
		case m.Err != nil:
			state = m.Err.Error()
		case m.Leader:
			state = "leader"
		}
		if len(m.Alarms) > 0 {
			state += ", alarm: " + output.CellText(strings.Join(m.Alarms, "; "))
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f MiB\t%s\n", m.Endpoint, m.Version, float64(m.Size)/(1<<20), state)
	}
	_ = w.Flush() // into memory
	boxes := make([]wire.FleetBox, len(o.Boxes))
	for i := range o.Boxes {
		boxes[i] = appliance.FleetBox(&o.Boxes[i])
	}
	if o.ID != "" { // else it is unknown
		b.WriteString("\n" + resource.BoxTable(boxes, resource.BoxLook{}))
	}
	return b.String()
}

// formatText is the format of a fleet, and how it gets a newer one.
func formatText(o *fleet.Overview) string {
	if o.Format < o.Newest {
		return fmt.Sprintf("%d, and this version makes %d (svcctl fleet upgrade)", o.Format, o.Newest)
	}
	return fmt.Sprint(o.Format)
}

// fleetBoxes prints the boxes. It exits with 1 when one of them is not OK.
func fleetBoxes(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	f, err := client.Call(ctx, c, wire.GetFleet, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	if err := env.Output(v, f, func() string { return resource.BoxTable(f.Boxes, resource.BoxLook{}) }); err != nil {
		return err
	}
	return resource.NotOK(f.Boxes)
}

func fleetAccept(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	f, err := client.Call(ctx, c, wire.AcceptFleet, wire.None{})
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("All boxes of fleet %s take what etcd has, at revision %d.\n", f.Name, f.Revision))
}
