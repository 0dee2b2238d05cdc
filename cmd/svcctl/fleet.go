package main

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
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/fleet"
)

func (p *program) fleetVerb() *verb {
	return &verb{
		name:    "fleet",
		summary: "create, show, back up and restore the objects of a fleet",
		args:    "WORD [DIR] [FLAGS]",
		about: `Boxes that are started with the same --fleet and --etcd share their objects: the same
Services with the same addresses on each.

  init         make the fleet in etcd; with --from, of the objects of a box of
               its own whose serve is stopped: revisions and addresses stay.
               Objects of files are those of the source of --manifests NAME=DIR
               that has the file, and those of the API without it
  status       the state of the fleet in etcd, and of its members
  boxes        the boxes, with their progress
  accept       apply the state of etcd on all boxes although it is older, as
               after a snapshot of etcd was restored
  backup DIR   write all objects to a new data directory
  restore DIR  make the fleet equal to a backup, or to the data directory of a
               box that is stopped, at a revision above all others; all tokens
               end, and a trial that it has is under way again
  upgrade      raise the format of the data in etcd to the newest one, if all
               boxes read it
  reseal       seal all Secrets, the key of tokens and the CA by the first key
               in --fleet-key-file
  leave DIR    open the Secrets in the data directory of a box that is stopped,
               by --fleet-key-file: serve without --fleet starts from it then

boxes and accept speak with the serve of this box. leave works on the directory alone. The
others speak with etcd itself, from anywhere, and need --fleet and --etcd.`,
		options: slices.Concat([]*option{
			{name: "from", arg: argDir, group: groupHow, usage: "of init: the data directory of a box, whose objects become those of the fleet"},
			{name: "without", arg: "BOX", repeats: true, group: groupHow, usage: "of upgrade: a box that is gone for good, to be ignored; repeatable"},
			placeSettings()[0].option(),
			dataKeyOption(),
			outputOption(formTable, formJSON),
		}, fleetOptions(), connectOptions()),
		words: []string{"init", "status", "boxes", "accept", "backup", "restore", "upgrade", "reseal", "leave"},
		examples: []example{
			{"A new fleet.", "svcctl fleet init --fleet pop1 --etcd https://etcd1:2379,https://etcd2:2379,https://etcd3:2379"},
			{"A box of its own becomes the first of a fleet.", "svcctl fleet init --fleet pop1 --etcd https://etcd1:2379 --from /var/lib/svcctl"},
			{"The progress of the boxes.", "sudo svcctl fleet boxes"},
			{"All boxes have the new version.", "svcctl fleet upgrade --fleet pop1 --etcd https://etcd1:2379"},
			{"The key in the first line is new.", "svcctl fleet reseal --fleet pop1 --etcd https://etcd1:2379 --fleet-key-file /etc/svcctl/fleet.key"},
		},
		exits: `  0  done
  1  not done, or a box is not OK: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runFleet,
	}
}

// dataKeyOption is --data-key-file, of the directories that the verb is given.
func dataKeyOption() *option {
	o := placeSettings()[2].option()
	o.usage = "key that the directory of init, backup, restore and leave is encrypted by"
	return o
}

// fleetOptions are --fleet and those of etcd.
func fleetOptions() (options []*option) {
	for _, s := range fleetSettings() {
		options = append(options, s.option())
	}
	return options
}

// runFleet runs one of the words.
func (p *program) runFleet(ctx context.Context, v *verb, args []string) error {
	if len(args) == 0 || !slices.Contains(v.words, args[0]) {
		return usagef("fleet does what? Give one of %s", strings.Join(v.words, ", "))
	}
	if err := checkOutput(v); err != nil {
		return err
	}
	word, rest := args[0], args[1:]
	dirs := 0
	if word == "backup" || word == "restore" || word == "leave" {
		dirs = 1
	}
	switch {
	case len(rest) != dirs && dirs == 1:
		return usagef("fleet %s takes one directory", word)
	case len(rest) != dirs:
		return usagef("fleet %s takes nothing more: %q is too much", word, rest[0])
	case word != "init" && v.option("from").isSet():
		return usagef("--from is for fleet init alone")
	case word != "upgrade" && v.option("without").isSet():
		return usagef("--without is for fleet upgrade alone")
	case word != "boxes" && v.option("output").isSet():
		return usagef("--output is for fleet boxes alone")
	}
	switch word {
	case "boxes":
		return p.fleetBoxes(ctx, v)
	case "accept":
		return p.fleetAccept(ctx, v)
	case "leave":
		return p.fleetLeave(v, rest[0])
	}
	cfg, err := p.fleetConfig(v)
	if err != nil {
		return err
	}
	err = p.askEtcd(ctx, v, cfg, word, rest)
	if err != nil && fleet.NoAnswer(err) && ctx.Err() == nil {
		return fmt.Errorf("no etcd answers: %s", cfg.Unreached(ctx))
	}
	return err
}

// allObjects counts objects as all words of the verb do: those of all kinds, as `svcctl get` lists them.
func allObjects(n int) string { return count(n, "object") + " (of all kinds)" }

// askEtcd does what one of the words that speak with etcd asks for.
func (p *program) askEtcd(ctx context.Context, v *verb, cfg fleet.Config, word string, rest []string) error {
	switch word {
	case "init":
		return p.fleetInit(ctx, cfg, v.option("from").text())
	case "backup":
		revision, objects, err := fleet.Backup(ctx, cfg, rest[0])
		if err != nil {
			return err
		}
		return p.print(fmt.Sprintf("Written to %s: %s of fleet %s at revision %d, and with them its sources, trial and keys.\n",
			rest[0], allObjects(objects), cfg.Fleet, revision))
	case "restore":
		objects, err := fleet.Restore(ctx, cfg, rest[0])
		if err != nil {
			return err
		}
		return p.print(fmt.Sprintf("Fleet %s has the %s of %s. All tokens are revoked.\n", cfg.Fleet, allObjects(objects), rest[0]))
	case "upgrade":
		return p.fleetUpgrade(ctx, cfg, v.option("without").texts)
	case "reseal":
		all, changed, err := fleet.Reseal(ctx, cfg)
		if err != nil {
			return err
		}
		return p.print(fmt.Sprintf("Fleet %s has %s sealed by key %s; %d of them by another one before.\n", cfg.Fleet, count(all, "value"), cfg.Keys.SealsBy(), changed))
	}
	return p.fleetStatus(ctx, v, cfg)
}

// fleetConfig reads the flags of the fleet and of etcd.
func (p *program) fleetConfig(v *verb) (fleet.Config, error) {
	cfg, err := p.config(v)
	if err != nil {
		return fleet.Config{}, err
	}
	if cfg.Fleet.Name == "" {
		return fleet.Config{}, usagef("which fleet? Give --fleet and --etcd, or SVCCTL_FLEET and SVCCTL_ETCD")
	}
	cfg.NodeName = "svcctl-fleet" // it is no box
	of, err := appliance.FleetConfig(&cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		of.First, err = appliance.FirstObjects(&cfg)
	}
	return of, err
}

func (p *program) fleetInit(ctx context.Context, cfg fleet.Config, from string) error {
	objects, err := fleet.Init(ctx, cfg, from)
	switch {
	case errors.Is(err, fleet.ErrExists):
		return fmt.Errorf("%w: %s: start boxes with --fleet %s to join it, or choose another name", err, cfg.Fleet, cfg.Fleet)
	case err != nil:
		return err
	}
	return p.print(fmt.Sprintf("Fleet %s is made, with %s. The first box that joins says which ranges it has.\n", cfg.Fleet, allObjects(objects)))
}

func (p *program) fleetUpgrade(ctx context.Context, cfg fleet.Config, without []string) error {
	from, to, err := fleet.Upgrade(ctx, cfg, without)
	switch {
	case err != nil:
		return err
	case from == to:
		return p.print(fmt.Sprintf("Fleet %s has format %d, and this version makes no newer one.\n", cfg.Fleet, to))
	}
	return p.print(fmt.Sprintf("Fleet %s has format %d now; it had %d. A box with an older version follows nothing more.\n", cfg.Fleet, to, from))
}

// fleetLeave opens the Secrets in a directory. It needs nothing of the fleet but its keys.
func (p *program) fleetLeave(v *verb, dir string) error {
	files := map[string]string{}
	for _, s := range slices.Concat(placeSettings(), fleetSettings()) {
		if v.has(s.name) {
			if given, is := p.lookup(v.option(s.name), s, nil); is {
				files[s.name] = given.texts[len(given.texts)-1]
			}
		}
	}
	keys, err := appliance.FleetKeys(files["fleet-key-file"])
	if err != nil {
		return err
	}
	if keys == nil {
		return usagef("fleet leave needs the keys of the fleet: give --fleet-key-file")
	}
	opened, err := appliance.LeaveFleet(dir, files["data-key-file"], keys)
	if err != nil {
		return err
	}
	return p.print(fmt.Sprintf("%s in %s opened.\n", count(opened, "Secret"), dir))
}

// fleetStatus prints what etcd has.
func (p *program) fleetStatus(ctx context.Context, v *verb, cfg fleet.Config) error {
	o, err := fleet.Look(ctx, cfg)
	if o != nil {
		if err := p.print(fleetPage(cfg.Fleet, o)); err != nil {
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
	if o.ID != "" { // else nobody knows
		b.WriteString("\n" + boxTable(boxes, boxLook{}))
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

// fleetBoxes prints the boxes, and says no when one of them is not OK.
func (p *program) fleetBoxes(ctx context.Context, v *verb) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	f, err := client.Call(ctx, c, wire.GetFleet, wire.None{})
	if err != nil {
		return ofFleet(err)
	}
	if err := p.output(v, f, func() string { return boxTable(f.Boxes, boxLook{}) }); err != nil {
		return err
	}
	return notOK(f.Boxes)
}

func (p *program) fleetAccept(ctx context.Context, v *verb) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	f, err := client.Call(ctx, c, wire.AcceptFleet, wire.None{})
	if err != nil {
		return err
	}
	return p.print(fmt.Sprintf("All boxes of fleet %s take what etcd has, at revision %d.\n", f.Name, f.Revision))
}
