package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

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
	// inEtcd is a verb that speaks with etcd, not with the appliance of this box.
	inEtcd := func(word string, options []*cli.Option, run func(ctx context.Context, env *cli.Env, v *cli.Verb, cfg fleet.Config, dir string) error) *cli.Verb {
		return &cli.Verb{
			Name:    "fleet " + word,
			Options: slices.Concat(options, []*cli.Option{settings.ConfigOption()}, settings.Options("", fleetFlags...)),
			Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, dirs []string) error {
				if v.Args != "" && len(dirs) != 1 {
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
		Name: "fleet",
		Verbs: cli.Words(
			inEtcd("init", []*cli.Option{{Name: "from", Arg: cli.ArgDir, Group: cli.GroupHow, Usage: "the data directory of a box, whose objects become those of the fleet"}, settings.Options("", "manifests")[0], dataKeyOption()}, fleetInit),
			inEtcd("status", nil, fleetStatus),
			&cli.Verb{
				Name:    "fleet boxes",
				Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormJSON)}, settings.ConnectOptions()),
				Run:     fleetBoxes,
			},
			&cli.Verb{
				Name:    "fleet accept",
				Options: settings.ConnectOptions(),
				Run:     fleetAccept,
			},
			sourceVerb(), rolloutVerb(),
			inEtcd("backup", dataKey,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, dir string) error {
					revision, objects, err := fleet.Backup(ctx, cfg, dir)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Written to %s: %s of fleet %s at revision %d, and with them its sources, trial and keys.\n",
						dir, allObjects(objects), cfg.Fleet, revision))
				}),
			inEtcd("restore", dataKey,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, dir string) error {
					objects, err := fleet.Restore(ctx, cfg, dir)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Fleet %s has the %s of %s. All tokens are revoked.\n", cfg.Fleet, allObjects(objects), dir))
				}),
			inEtcd("upgrade", []*cli.Option{{Name: "without", Arg: "BOX", Repeats: true, Group: cli.GroupHow, Usage: "a box that is gone for good, to be ignored; repeatable"}}, fleetUpgrade),
			inEtcd("reseal", nil,
				func(ctx context.Context, env *cli.Env, _ *cli.Verb, cfg fleet.Config, _ string) error {
					all, changed, err := fleet.Reseal(ctx, cfg)
					if err != nil {
						return err
					}
					return env.Print(fmt.Sprintf("Fleet %s has %s sealed by key %s; %d of them by another one before.\n", cfg.Fleet, output.Count(all, "value"), cfg.Keys.SealsBy(), changed))
				}),
			&cli.Verb{
				Name:    "fleet leave",
				Options: slices.Concat(dataKey, []*cli.Option{settings.ConfigOption()}, settings.Options("", fleetFlags...)),
				Run:     fleetLeave,
			}),
	}
}

// fleetFlags are the names of the flags about the fleet, etcd and the encryption keys.
var fleetFlags = []string{"fleet", "etcd", "etcd-cacert", "etcd-cert", "etcd-key", "fleet-key-file"}

// dataKeyOption returns --data-key-file, for the key of an encrypted data directory.
func dataKeyOption() *cli.Option {
	o := settings.Options("", "data-key-file")[0]
	o.Usage = "key that the directory is encrypted by"
	return o
}

// allObjects formats a number of objects: "3 objects (of all kinds)".
func allObjects(n int) string { return output.Count(n, "object") + " (of all kinds)" }

// fleetConfig returns the fleet configuration from the flags about the fleet and etcd.
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

// fleetLeave decrypts the Secrets in a data directory, for a box that leaves its fleet. It needs the keys of the fleet, but not etcd.
func fleetLeave(_ context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet leave takes one directory")
	}
	dir := args[0]
	keyFile, _ := settings.Given(env, v.Option("fleet-key-file"))
	keys, err := appliance.FleetKeys(keyFile)
	if err != nil {
		return err
	}
	if keys == nil {
		return cli.Usagef("fleet leave needs the keys of the fleet: give --fleet-key-file")
	}
	dataKeyFile, _ := settings.Given(env, v.Option("data-key-file"))
	opened, err := appliance.LeaveFleet(dir, dataKeyFile, keys)
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("%s in %s opened.\n", output.Count(opened, "Secret"), dir))
}

// fleetStatus prints the state of the fleet in etcd.
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
		fmt.Fprintf(&b, "Writer     %s\n\n", cmp.Or(o.Writer, "no box now"))
	}
	rows := [][]string{{"MEMBER", "VERSION", "SIZE", "STATE"}}
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
		rows = append(rows, []string{m.Endpoint, m.Version, fmt.Sprintf("%.1f MiB", float64(m.Size)/(1<<20)), state})
	}
	b.WriteString(new(output.Grid).Text(rows...))
	boxes := make([]wire.FleetBox, len(o.Boxes))
	for i := range o.Boxes {
		boxes[i] = appliance.FleetBox(&o.Boxes[i])
	}
	if o.ID != "" { // else it is unknown
		b.WriteString("\n" + resource.BoxText(boxes))
	}
	return b.String()
}

// formatText returns the version of the stored format of a fleet, and the command to upgrade it if this program supports a newer one.
func formatText(o *fleet.Overview) string {
	if o.Format < o.Newest {
		return fmt.Sprintf("%d, and this version makes %d (svcctl fleet upgrade)", o.Format, o.Newest)
	}
	return fmt.Sprint(o.Format)
}

// fleetBoxes prints the boxes of the fleet. The exit code is 1 if one of them is not OK.
func fleetBoxes(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	f, err := client.Call(ctx, env.Client(v), wire.GetFleet, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	if err := env.Output(v, f, func() string { return resource.BoxText(f.Boxes) }); err != nil {
		return err
	}
	return resource.NotOK(f.Boxes)
}

func fleetAccept(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	f, err := client.Call(ctx, env.Client(v), wire.AcceptFleet, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	return env.Print(fmt.Sprintf("All boxes of fleet %s take what etcd has, at revision %d.\n", f.Name, f.Revision))
}

func sourceVerb() *cli.Verb {
	return &cli.Verb{
		Name: "fleet source",
		Verbs: cli.Words(&cli.Verb{
			Name:    "fleet source list",
			Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormJSON)}, settings.ConnectOptions()),
			Run:     sourceList,
		}, &cli.Verb{
			Name:    "fleet source take",
			Options: slices.Concat([]*cli.Option{{Name: "box", Arg: "NAME", Def: "this one", Group: cli.GroupHow, Usage: "the box that is to read"}}, settings.ConnectOptions()),
			Run:     sourceTake,
		}, &cli.Verb{
			Name:    "fleet source forget",
			Options: settings.ConnectOptions(),
			Run:     sourceForget,
		}),
	}
}

func sourceList(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	list, err := client.Call(ctx, env.Client(v), wire.GetSources, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	return env.Output(v, *list, func() string { return sourceTable(*list) })
}

// sourceTable formats the sources of a fleet as a table.
func sourceTable(list []wire.FleetSource) string {
	if len(list) == 0 {
		return "No box has read a directory of manifests yet: serve --manifests NAME=DIR does.\n"
	}
	rows := [][]string{{"NAME", "READER", "STATE", "FILES", "GENERATION", "SINCE"}}
	for _, s := range list {
		state, generation := "reading", "-"
		if !s.Reading {
			state = "nobody reads"
		}
		if s.Generation > 0 {
			generation = fmt.Sprint(s.Generation)
		}
		rows = append(rows, []string{s.Name, s.Reader, state, fmt.Sprint(s.Files), generation, output.Stamp(s.Since)})
	}
	return new(output.Grid).Text(rows...)
}

func sourceTake(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet source take takes one name, as `svcctl fleet source take lb --box gw2`")
	}
	name, box := args[0], v.Option("box").Text()
	c := env.Client(v)
	if !v.Option("box").IsSet() {
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		box = status.NodeName
	}
	before, err := client.Call(ctx, c, wire.TakeSource, wire.SourceQuery{Name: name, Box: box})
	if err != nil {
		return resource.OfFleet(err)
	}
	if before.Reader == box {
		return env.Print(fmt.Sprintf("%s reads source %s.\n", box, name))
	}
	return env.Print(fmt.Sprintf("%s reads source %s from now on; %s did so before.\n", box, name, before.Reader))
}

func sourceForget(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet source forget takes one name, as `svcctl fleet source forget lb`")
	}
	name := args[0]
	gone, err := client.Call(ctx, env.Client(v), wire.ForgetSource, wire.SourceQuery{Name: name})
	if err != nil {
		return resource.OfFleet(err)
	}
	return env.Print(fmt.Sprintf("Source %s has ended; %s read it last. Its %s belong to the API now.\n", name, gone.Reader, output.Count(gone.Objects, "object")))
}

// rolloutPoll is the interval at which `svcctl fleet rollout status --wait` requests the state.
const rolloutPoll = time.Second

func rolloutVerb() *cli.Verb {
	move := func(word, answer string) *cli.Verb {
		return &cli.Verb{Name: "fleet rollout " + word, Options: settings.ConnectOptions(),
			Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
				r, err := client.Call(ctx, env.Client(v), wire.MoveRollout[word], wire.MoveQuery{})
				if err != nil {
					return err
				}
				return env.Print(fmt.Sprintf(answer, r.ID))
			}}
	}
	return &cli.Verb{
		Name: "fleet rollout",
		Verbs: cli.Words(&cli.Verb{
			Name: "fleet rollout status",
			Options: slices.Concat([]*cli.Option{
				{Name: "wait", Group: cli.GroupHow, Usage: "return when it is done, undone or stopped"},
				cli.OutputOption(cli.FormTable, cli.FormJSON),
			}, settings.ConnectOptions()),
			Run: rolloutStatus,
		},
			move(wire.RolloutPause, "Rollout %s is paused: `svcctl fleet rollout resume`, or `svcctl fleet rollout undo`.\n"),
			move(wire.RolloutResume, "Rollout %s goes on.\n"),
			move(wire.RolloutUndo, "Rollout %s is undone.\n")),
	}
}

// rolloutStatus prints the state of the rollout. It returns an error if the rollout has stopped.
func rolloutStatus(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	c := env.Client(v)
	wait := v.Option("wait").On()
	for {
		r, err := client.Call(ctx, c, wire.GetRollout, wire.None{})
		if err != nil {
			return err
		}
		if wait && r.Pending && r.Phase != wire.RolloutStopped {
			if err := client.Pause(ctx, rolloutPoll); err != nil {
				return err
			}
			continue
		}
		if err := env.Output(v, r, func() string { return rolloutPage(r) }); err != nil {
			return err
		}
		if r.Phase == wire.RolloutStopped || wait && r.Phase == wire.RolloutUndone {
			return &cli.ExitError{Code: cli.ExitNo}
		}
		return nil
	}
}

// rolloutPage formats a rollout as text.
func rolloutPage(r *wire.Rollout) string {
	var lines [][]string
	line := func(name, text string) { lines = append(lines, []string{name, text}) }
	by := ""
	if r.User != "" {
		by = " by " + r.User
	}
	line("Rollout", fmt.Sprintf("%s, begun%s at %s", r.ID, by, output.Stamp(r.Began)))
	phase := fmt.Sprintf("%s, since %s", r.Phase, output.Stamp(r.Since))
	if r.Left > 0 {
		phase += fmt.Sprintf(", %s left", output.Span(time.Duration(r.Left)))
	}
	line("Phase", phase)
	if r.Phase != wire.RolloutGathering && r.Step < len(r.Steps) {
		line("Step", fmt.Sprintf("%d of %d (%s), of %s", r.Step+1, len(r.Steps), r.Steps[r.Step], strings.Join(r.Steps, ", ")))
	}
	if r.Why != "" {
		line("Why", r.Why)
	}
	if r.Pending && r.OnFailure == wire.OnFailureUndo {
		line("On failure", "it is undone by itself")
	}
	if r.Phase == wire.RolloutStopped {
		line("What to do", "`svcctl fleet rollout resume` goes on with this step, `svcctl fleet rollout undo` takes it back")
	}
	if len(r.Objects) > 0 {
		line("Objects", wire.First(r.Objects, 10))
	}
	if r.BoxesUnknown != "" {
		line("Boxes", "not known: "+r.BoxesUnknown)
	}
	text := new(output.Grid).Text(lines...)
	if len(r.Boxes) == 0 {
		return text
	}
	boxes := [][]string{{"BOX", "VERSIONS", "STATE", "PROGRAMMED"}}
	for _, x := range r.Boxes {
		versions, programmed := "before", "-"
		if x.New {
			versions, programmed = "new", map[bool]string{true: "yes", false: "no"}[x.Programmed]
		}
		boxes = append(boxes, []string{x.Name, versions, x.State, programmed})
	}
	return text + "\n" + new(output.Grid).Text(boxes...)
}
