package look

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func WaitVerb() *cli.Verb {
	words := []string{string(client.Synced), string(client.Ready), forCreate, forDelete, forCondition + "=", cli.FormJSONPath + "="}
	return &cli.Verb{
		Name: "wait",
		Options: slices.Concat([]*cli.Option{
			{Name: "for", Arg: "CONDITION", Def: words[0], Words: words, Group: "What to wait for", Usage: "condition to wait for"},
			{Name: "timeout", Arg: "DURATION", Def: "30s", Bounds: cli.Wait, Group: "What to wait for", Usage: "how long to wait, as 500ms, 30s or 2m; at most 1h"},
		}, resource.FilesOptions("the objects of files"), resource.WhichOptions(), settings.ConnectOptions()),
		Run: runWait,
	}
}

// The values of --for in addition to synced and ready.
const (
	forCreate    = "create"
	forDelete    = "delete"
	forCondition = "condition"
)

// runWait waits for a condition of the appliance or of objects.
func runWait(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) > 0 || v.Option("filename").IsSet() {
		return waitForObjects(ctx, env, v, args)
	}
	c := env.Client(v)
	problems := cli.Flatten(c.Failed)
	cond := client.Condition(v.Option("for").Text())
	if cond != client.Synced && cond != client.Ready {
		problems = append(problems, fmt.Errorf("--for %q: want synced or ready; an object has more, see `svcctl wait --help`", cond))
	}
	if len(problems) > 0 {
		return &cli.UsageError{Problems: problems}
	}
	timeout := v.Option("timeout").Duration()
	end := env.Waiting(func() string { return fmt.Sprintf("waiting until %s is %s", c.Place(), cond) }, timeout)
	_, err := c.Wait(ctx, cond, timeout)
	end()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("not %s: %w", cond, err)
	}
	return err
}

// awaited is the parsed value of --for: a condition of an object, and its text.
type awaited struct {
	text   string
	state  string // the awaited state in words: "there", "gone"
	met    resource.Condition
	synced bool // the version that meets the condition must also be in the kernel
	absent bool // the condition is that the object does not exist
	may    bool // the object need not exist at the start
}

// parseFor parses the value of --for for objects.
func parseFor(text string) (awaited, error) {
	word, value, given := strings.Cut(text, "=")
	a := awaited{text: text, state: text}
	switch {
	case text == string(client.Synced):
		a.met, a.synced, a.may = isThere, true, true
	case text == string(client.Ready):
		a.met = hasCondition("Ready", "True")
	case text == forCreate:
		a.met, a.may, a.state = isThere, true, "there"
	case text == forDelete:
		a.met, a.absent, a.state = resource.Gone(""), true, "gone"
	case word == forCondition && value != "":
		name, status, given := strings.Cut(value, "=")
		if !given {
			status = "True"
		}
		a.met, a.state = hasCondition(name, status), fmt.Sprintf("with condition %s %s", name, status)
	case word == cli.FormJSONPath && given:
		path, want, found := cutExpression(value)
		e, err := jsonpath.ParseExpression(path)
		if err != nil {
			return a, cli.Usagef("--for %s: %v", text, err)
		}
		a.met, a.state = finds(e, want, found), "with "+path
		if found {
			a.state += " = " + want
		}
	default:
		return a, cli.Usagef("--for %q: want synced, ready, create, delete, condition=NAME or jsonpath=PATH", text)
	}
	return a, nil
}

// cutExpression splits the argument of --for jsonpath into the JSONPath and the value to compare with. It splits "{.a}=b" after the last brace, and
// ".a=b" at the first "=". found is false if there is no value.
func cutExpression(text string) (path, want string, found bool) {
	text = strings.Trim(text, "'")
	if i := strings.LastIndex(text, "}"); i >= 0 {
		path, want = text[:i+1], text[i+1:]
		want, found = strings.CutPrefix(want, "=")
	} else {
		path, want, found = strings.Cut(text, "=")
	}
	return path, strings.Trim(want, `'"`), found
}

func isThere(o client.Object) bool { return o != nil }

// hasCondition returns a Condition that is met when the object has the status condition name with the value status.
func hasCondition(name, status string) resource.Condition {
	return func(o client.Object) bool {
		conditions, _ := resource.Field(o, "status", "conditions").([]any)
		return slices.ContainsFunc(conditions, func(c any) bool {
			return strings.EqualFold(resource.TextField(c, "type"), name) && strings.EqualFold(resource.TextField(c, "status"), status)
		})
	}
}

// finds returns a Condition that is met when the expression has a nonempty result in the object. If wanted is set, a result must be equal to want.
func finds(e *jsonpath.Template, want string, wanted bool) resource.Condition {
	return func(o client.Object) bool {
		return o != nil && slices.ContainsFunc(e.Find(o), func(value any) bool {
			text := jsonpath.Text(value)
			return text != "" && (!wanted || text == want)
		})
	}
}

// waitForObjects waits until each of the objects meets the condition, one after the other.
func waitForObjects(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	a, err := parseFor(v.Option("for").Text())
	if err != nil {
		return err
	}
	what, err := resource.Selected(env, v, args)
	if err != nil {
		return err
	}
	c := env.Client(v)
	if what[0].Name == "" {
		if what, err = listed(ctx, c, what, resource.Selectors(v)); err != nil {
			return err
		}
		if len(what) == 0 && !a.absent {
			return errors.New("no object is selected: there is nothing to wait for")
		}
	}
	timeout := v.Option("timeout").Duration()
	deadline := time.Now().Add(timeout)
	var late []error
	for i, t := range what {
		left := max(time.Until(deadline), time.Millisecond)
		end := env.Waiting(func() string { return fmt.Sprintf("waiting until %s is %s (%d of %d)", t, a.state, i+1, len(what)) }, left.Round(time.Second))
		err := waitForOne(ctx, c, t, a, left)
		end()
		switch {
		case errors.Is(err, resource.ErrNotInTime):
			what, why := t.String(), ""
			switch absent := absence(ctx, c, t, a); {
			case absent != "":
				what = absent
			case a.absent:
				why = ": " + resource.Kept(ctx, c, t)
			default:
				why = notReady(ctx, c, t, a)
			}
			late = append(late, fmt.Errorf("%s: not %s after %s%s", what, a.state, timeout, why))
		case err != nil:
			return err
		default:
			if err := env.Print(fmt.Sprintf("%s condition met\n", t)); err != nil {
				return err
			}
		}
	}
	return errors.Join(late...)
}

// absence returns a clause such as "there is no service/web in the namespace shop" if the object does not exist. It returns "" otherwise, and if a
// waits for the deletion of the object.
func absence(ctx context.Context, c *client.Client, t resource.Target, a awaited) string {
	_, err := c.Get(ctx, t.Path())
	if f, is := errors.AsType[*wire.Failure](err); a.absent || !is || f.Reason != wire.ReasonNotFound {
		return ""
	}
	if t.Kind.Namespaced {
		return fmt.Sprintf("there is no %s in the namespace %s", t, t.Namespace)
	}
	return fmt.Sprintf("there is no %s", t)
}

// listed returns the objects that the selectors in query select.
func listed(ctx context.Context, c *client.Client, what []resource.Target, query map[string][]string) ([]resource.Target, error) {
	var all []resource.Target
	for _, t := range what {
		err := resource.Each(ctx, c, t, query, func(t resource.Target, _ client.Object) error {
			all = append(all, t)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// acceptedPatience is the maximum time to wait for accepted changes to reach the kernel, before conditions of objects are evaluated.
const acceptedPatience = 5 * time.Second

// notReady returns, for --for ready, the reason why an object is not Ready, as a clause; "" if it is unknown.
func notReady(ctx context.Context, c *client.Client, t resource.Target, a awaited) string {
	if a.text != string(client.Ready) {
		return ""
	}
	o, err := c.Get(ctx, t.Path())
	if err != nil {
		return ""
	}
	conditions, _ := resource.Field(o, "status", "conditions").([]any)
	for _, cond := range conditions {
		if resource.TextField(cond, "type") == wire.ConditionReady && resource.TextField(cond, "message") != "" {
			return fmt.Sprintf(": %s: %s", resource.TextField(cond, "reason"), output.OneLine(resource.TextField(cond, "message")))
		}
	}
	return ""
}

// waitForOne waits until one object meets the condition.
func waitForOne(ctx context.Context, c *client.Client, t resource.Target, a awaited, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	if !a.absent && !a.may {
		if _, err := c.Get(ctx, t.Path()); err != nil {
			return err // an absent object never meets a condition
		}
	}
	if isService := t.Kind.Plural == "services"; isService && a.text == string(client.Ready) {
		// What was accepted before, as the removal of a slice, counts.
		if s, err := c.Status(ctx); err == nil {
			_, _ = c.WaitFor(ctx, client.Synced, s.Revision.Accepted, min(timeout, acceptedPatience))
		}
		a.synced = true
		if _, err := resource.Settle(ctx, c, []string{t.Namespace + "/" + t.Name}, time.Until(deadline)); err != nil {
			return err
		}
	}
	version := ""
	err := resource.Until(ctx, c, t, max(time.Until(deadline), time.Millisecond), func(o client.Object) bool {
		version = resource.VersionOf(o)
		return a.met(o)
	})
	if err != nil || !a.synced {
		return err
	}
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return fmt.Errorf("%s has the version %q, which is no number", t, version)
	}
	_, err = c.WaitFor(ctx, client.Synced, revision, max(time.Until(deadline), time.Millisecond))
	return err
}
