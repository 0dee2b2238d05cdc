package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

func RollbackVerb() *cli.Verb {
	return &cli.Verb{
		Name: "rollback",
		Options: append([]*cli.Option{
			{Name: "last", Arg: "REVISION", Group: cli.GroupHow, Usage: "the last change you saw: refused if there is a later one"},
			dryRunOption("print the result for each object, and change nothing"),
			confirmOption(),
			cli.YesOption(),
			cli.OutputOption("table", "json"),
		}, settings.ConnectOptions()...),
		Run: runRollback,
	}
}

// runRollback restores the objects of an earlier revision, or the files from before a trial.
func runRollback(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) > 1 {
		return cli.Usagef("rollback takes one revision")
	}
	revision, err := revisionOf("rollback to", strings.Join(args, ""))
	if err != nil {
		return err
	}
	last, err := revisionOf("--last", v.Option("last").Text())
	if err != nil {
		return err
	}
	dry, err := dryRun(v)
	if err != nil {
		return err
	}
	c := env.Client(v)
	bare := revision == 0 && !v.Option("last").IsSet() && !v.Option("confirm").IsSet() && !v.Option("yes").On()
	trial := newTrying(env, v, c)
	b, err := client.Call(ctx, c, wire.Rollback, wire.RollbackQuery{Revision: revision, Last: last, DryRun: "All"})
	if err != nil {
		return err
	}
	suffix := " (dry run)"
	switch consequence := rollbackConsequence(ctx, c, b); {
	case dry:
	case bare:
		if v.Option("output").Text() == "table" {
			if err := recent(ctx, env, c); err != nil {
				return err
			}
		}
	default:
		if consequence != "" {
			if err := env.Consent(v, consequence); err != nil {
				return err
			}
		}
		if last == 0 {
			last = b.Last // what was asked about, and nothing newer
		}
		suffix = ""
		if err := trial.begin(ctx); err != nil {
			return err
		}
		if b, err = client.Call(ctx, c, wire.Rollback, wire.RollbackQuery{Revision: revision, Last: last}); err != nil {
			return err
		}
	}
	page := func() string {
		if len(b.Objects) == 0 {
			return "Nothing has changed since.\n"
		}
		lines := revivedLines(b, suffix)
		if dry && b.Last > 0 {
			lines += fmt.Sprintf("The last change is %d: with --last %d nothing newer is taken back.\n", b.Last, b.Last)
		}
		if bare && !dry {
			lines += "Nothing is changed. To undo this: `svcctl rollback" + lastFlag(b.Last) + "`. To go back further: `svcctl rollback REVISION`, " +
				"with the revision of the last change that is to stay.\n"
		}
		return lines
	}
	if err := env.Output(v, b, page); err != nil {
		return err
	}
	if err := trial.printDeadline(ctx); err != nil {
		return err
	}
	for _, r := range b.Objects {
		if r.Did == "conflict" && !bare {
			return errConflicts
		}
	}
	return nil
}

// lastFlag returns the flag that confirms a rollback: --last with the revision of the last change, or --yes if there is none.
func lastFlag(last uint64) string {
	if last == 0 {
		return " --yes"
	}
	return fmt.Sprintf(" --last %d", last)
}

// recent prints the latest changes of objects.
func recent(ctx context.Context, env *cli.Env, c *client.Client) error {
	entries, err := c.Journal(ctx, wire.JournalQuery{Limit: 10})
	if err != nil {
		return err
	}
	return env.Print(resource.JournalTable(resource.Journal(entries, nil, len(entries))) + "\n")
}

// rollbackConsequence describes, as a clause, what a rollback removes, changes and restores: "this removes 1 Service with 2 open connections". It
// returns "" if the rollback changes nothing.
func rollbackConsequence(ctx context.Context, c *client.Client, b *wire.RolledBack) string {
	services, others, changed, restored := map[string]bool{}, 0, 0, 0
	for _, r := range b.Objects {
		switch service, is := strings.CutPrefix(r.Object, object.KindService+" "); r.Did {
		case "deleted":
			if is {
				services[service] = true
			} else {
				others++
			}
		case "changed":
			changed++
		case "created", "conflict":
			restored++
		}
	}
	var parts []string
	if len(services) > 0 {
		parts = append(parts, "removes "+output.Count(len(services), "Service")+resource.OpenConnections(ctx, c, services))
	}
	if others > 0 {
		parts = append(parts, "removes "+output.Count(others, "other object"))
	}
	if changed > 0 {
		parts = append(parts, "changes "+output.Count(changed, "object"))
	}
	if restored > 0 {
		parts = append(parts, "restores "+output.Count(restored, "object"))
	}
	if len(parts) == 0 {
		return ""
	}
	return "this " + strings.Join(parts, ", ")
}

// revisionOf parses a revision; "" is 0. The error is a cli.UsageError.
func revisionOf(what, text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, cli.Usagef("%s %q: want a revision, as `svcctl journal` shows them", what, text)
	}
	return n, nil
}

// confirmRemovals confirms the removal of objects that the appliance holds for confirmation, and prints how many it removed.
func confirmRemovals(ctx context.Context, env *cli.Env, v *cli.Verb, c *client.Client) error {
	status, err := settledRemovals(ctx, c)
	if err != nil {
		return err
	}
	if consequence := releaseConsequence(status); consequence != "" {
		if err := env.Consent(v, consequence); err != nil {
			return err
		}
	}
	released, err := client.Call(ctx, c, wire.Release, wire.None{})
	if err != nil {
		return err
	}
	var text string
	switch {
	case released.Services > 0:
		text = output.Count(released.Services, "Service") + " released.\n"
	case released.Files > 0:
		text = "Objects of " + output.Count(released.Files, "file") + " released.\n"
	}
	switch {
	case released.Frontends == 1:
		text += "1 address or port released that no object declares.\n"
	case released.Frontends > 1:
		text += fmt.Sprintf("%d addresses and ports released that no object declares.\n", released.Frontends)
	}
	text = cmp.Or(text, "Nothing is held.\n")
	return env.Print(text)
}

// pendingPatience is the maximum time to wait until the appliance has decided whether removals need a confirmation.
const pendingPatience = 5 * time.Second

// settledRemovals waits until the appliance has decided which removals need a confirmation, but at most pendingPatience, and returns the status. For
// a very recent removal this may still be undecided.
func settledRemovals(ctx context.Context, c *client.Client) (*wire.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, pendingPatience)
	defer cancel()
	for {
		status, err := c.Status(ctx)
		if err != nil || status.PendingRemovals == 0 || client.Pause(ctx, 200*time.Millisecond) != nil {
			return status, err
		}
	}
}

// releaseConsequence describes what the confirmation of held removals removes, with the reasons why they are held; "" if nothing is held.
func releaseConsequence(s *wire.Status) string {
	var parts []string
	for i := range s.Problems {
		problem := &s.Problems[i]
		var what string
		switch problem.Reason {
		case "MassRemovalHeld":
			if what = "objects that are in no file any more"; strings.Contains(problem.Message, "in the answers of") {
				what = "the endpoints of Services"
			} else if s.HeldRemovals > 0 {
				what = output.Count(s.HeldRemovals, "Service")
			}
		case "UnknownServicesHeld":
			if what = output.Count(s.UnknownFrontends, "address or port"); s.UnknownFrontends != 1 {
				what = fmt.Sprintf("%d addresses and ports", s.UnknownFrontends)
			}
		default:
			continue
		}
		why, _, _ := strings.Cut(problem.Message, "; as that may be an accident")
		why, _, _ = strings.Cut(why, "; they stay in force")
		parts = append(parts, fmt.Sprintf("this removes %s, and clients lose them (%s)", what, output.OneLine(why)))
	}
	return strings.Join(parts, "; ")
}

// trialBounds are the limits for the duration of a trial.
var trialBounds = &cli.Bounds{Least: time.Second, Most: 24 * time.Hour, As: "90s or 5m, from 1s to 24h"}

// startTrial begins a trial of changes to watched files.
func startTrial(ctx context.Context, env *cli.Env, v *cli.Verb, c *client.Client) error {
	t, err := client.Call(ctx, c, wire.BeginTrial, wire.TrialQuery{For: v.Option("start").Duration(), Files: true})
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("Changes of files are undone at %s, unless `svcctl confirm`.\n", output.Stamp(t.Ends)))
}

// showTrial prints the current trial, or the files that are held because a trial was undone.
func showTrial(ctx context.Context, env *cli.Env, c *client.Client) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	t, text := s.Trial, ""
	switch {
	case t == nil:
		text = "No change is on trial. `svcctl confirm --start 5m` begins a trial of files, `svcctl apply --confirm 5m` one of objects.\n"
	case t.Pending():
		text = fmt.Sprintf("On trial since %s: undone at %s, unless `svcctl confirm`.\n", output.Stamp(t.Began), output.Stamp(t.Ends))
	default:
		text = fmt.Sprintf("Undone at %s: these files are held at their content before the trial. `svcctl confirm` accepts them as they are, `svcctl confirm --start 5m` tries them again.\n", output.Stamp(*t.WentBack))
	}
	if t != nil {
		for _, what := range slices.Concat(t.Objects, t.Files) {
			text += "  " + what + "\n"
		}
	}
	return env.Print(text)
}

// confirmOption returns the option --confirm.
func confirmOption() *cli.Option {
	return &cli.Option{Name: "confirm", Arg: "DURATION", Bounds: trialBounds, Group: cli.GroupHow, Usage: "undo the change after this time without `svcctl confirm`"}
}

// trying is the trial for the changes that a verb makes; nil without --confirm.
type trying struct {
	env   *cli.Env
	c     *client.Client
	after time.Duration
	began *wire.Trial
}

// newTrying returns the trial that --confirm requests; nil if it is not given.
func newTrying(env *cli.Env, v *cli.Verb, c *client.Client) *trying {
	if !v.Option("confirm").IsSet() {
		return nil
	}
	return &trying{env: env, c: c, after: v.Option("confirm").Duration()}
}

// begin starts the trial. It must be called before the first change; later calls do nothing.
func (t *trying) begin(ctx context.Context) error {
	if t == nil || t.began != nil {
		return nil
	}
	began, err := client.Call(ctx, t.c, wire.BeginTrial, wire.TrialQuery{For: t.after})
	if err != nil {
		return err
	}
	t.began, t.c.Trial = began, began.ID
	return nil
}

// printDeadline prints the time at which the changes are undone unless confirmed. If there was no change, it ends the trial.
func (t *trying) printDeadline(ctx context.Context) error {
	if t == nil || t.began == nil {
		return nil
	}
	if _, err := client.Call(ctx, t.c, wire.EndTrial, wire.EndQuery{ID: t.began.ID}); err == nil {
		_, err = fmt.Fprintln(t.env.Err, "nothing has changed, so there is no trial")
		return err
	}
	_, err := fmt.Fprintf(t.env.Err, "on trial: the change is undone at %s, unless `svcctl confirm`\n", output.Stamp(t.began.Ends))
	return err
}

func ConfirmVerb() *cli.Verb {
	return &cli.Verb{
		Name: "confirm",
		Options: append([]*cli.Option{
			{Name: "back", Group: cli.GroupHow, Usage: "undo the change now"},
			{Name: "start", Arg: "DURATION", Bounds: trialBounds, Group: cli.GroupHow, Usage: "begin a trial of files of this length, as 90s or 5m, 1s to 24h; or move its end"},
			{Name: "state", Group: cli.GroupHow, Usage: "show the trial, or the files that are held since one was undone"},
			{Name: "removals", Group: cli.GroupHow, Usage: "confirm the removal of what is held because it vanished"},
			cli.YesOption(),
		}, settings.ConnectOptions()...),
		Run: runConfirm,
	}
}

// runConfirm confirms or undoes a trial, starts or shows one, or confirms removals.
func runConfirm(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	var asked []string
	for _, name := range []string{"back", "start", "state", "removals"} {
		if v.Option(name).IsSet() {
			asked = append(asked, "--"+name)
		}
	}
	switch removals := v.Option("removals").On(); {
	case len(asked) > 1:
		return cli.Usagef("confirm: %s exclude each other: give one", strings.Join(asked, " and "))
	case v.Option("yes").IsSet() && !removals:
		return cli.Usagef("confirm: --yes is about --removals, which asks: leave it out")
	}
	c := env.Client(v)
	switch {
	case v.Option("start").IsSet():
		return startTrial(ctx, env, v, c)
	case v.Option("state").On():
		return showTrial(ctx, env, c)
	case v.Option("removals").On():
		return confirmRemovals(ctx, env, v, c)
	case v.Option("back").On():
		back, err := client.Call(ctx, c, wire.UndoTrial, wire.None{})
		if err != nil {
			return perhapsDone(err, "taken back")
		}
		return env.Print(revivedLines(back, "") + "The change was taken back.\n")
	}
	t, err := client.Call(ctx, c, wire.ConfirmTrial, wire.None{})
	if err != nil {
		return perhapsDone(err, "confirmed")
	}
	text := "Confirmed: " + output.Count(len(t.Objects), "object")
	if len(t.Files) > 0 {
		text += ", " + output.Count(len(t.Files), "file")
	}
	return env.Print(text + ".\n")
}

// perhapsDone extends the error of a request that was sent but not answered: its change may have taken effect. what describes the effect. Other
// errors are returned unchanged.
func perhapsDone(err error, what string) error {
	if unreached, is := errors.AsType[*client.UnreachableError](err); !is || !unreached.Sent() {
		return err
	}
	return fmt.Errorf("%w; the change may have been %s: see `svcctl status` when it runs again", err, what)
}

// revivedLines formats the results of a rollback, one line for each object.
func revivedLines(b *wire.RolledBack, suffix string) string {
	text := ""
	for _, r := range b.Objects {
		text += r.Object + " " + r.Did + suffix
		if r.Why != "" {
			text += ": " + output.OneLine(r.Why)
		}
		text += "\n"
	}
	return text
}

// errConflicts means that a rollback could not restore every object.
var errConflicts = errors.New("not every object is served as it was: see above")
