package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/api/wire"
)

func (p *program) waitVerb() *verb {
	words := []string{string(client.Synced), string(client.Ready), forCreate, forDelete, forCondition + "=", formJSONPath + "="}
	return &verb{
		name:    "wait",
		summary: "wait for the appliance, or for a condition of objects",
		args:    "[KIND NAME... | KIND/NAME... | KIND -l SELECTOR] [FLAGS]",
		about: `Without objects it waits for the appliance, also for one that is only just being started:

  synced   everything that was in the manifests, and accepted from others, when
           svcctl wait was called is in the kernel, or refused
  ready    the appliance has read all its directories once, and what they held
           then is in the kernel

With objects it waits until each of them meets --for:

  synced                 it is there, and its present version is in the kernel
  ready                  it has the condition Ready: of a Service, every port is
                         served, each address that was asked for is given, and
                         announced where it must be, and an endpoint is up
  create, delete         it is there; it is gone
  condition=NAME[=VALUE] it has this condition, with the status True or VALUE
  jsonpath=PATH[=VALUE]  the expression finds something, or finds VALUE`,
		options: slices.Concat([]*option{
			{name: "for", arg: "CONDITION", def: words[0], words: words, group: "What to wait for", usage: "what has to be so"},
			{name: "timeout", arg: "DURATION", def: "30s", group: "What to wait for", usage: "how long to wait, as 500ms, 30s or 2m; at most 1h"},
		}, filesOptions("the objects of files"), whichOptions(), connectOptions()),
		examples: []example{
			{"Start, and go on when it serves.", "svcctl serve --config svcctl.yaml & svcctl wait --for ready"},
			{"In a script, after the manifests were changed.", "svcctl wait --for synced --timeout 5s || svcctl status"},
			{"Until connections to a Service succeed.", "svcctl wait svc/web -n shop --for=ready"},
			{"Until it has an address from a pool.", "svcctl wait svc/web --for=jsonpath='{.status.loadBalancer.ingress[0].ip}'"},
		},
		exits: `  0  the condition holds
  1  it was not so in time
  2  wrong usage or configuration
  3  the appliance could not be reached in time`,
		run: p.runWait,
	}
}

// What objects can be waited for besides synced and ready.
const (
	forCreate    = "create"
	forDelete    = "delete"
	forCondition = "condition"
)

// maxTimeout is the appliance's limit of a wait.
const maxTimeout = time.Hour

// duration reads the value of an option. The error is a usageError.
func duration(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTimeout {
		return 0, usagef("--%s %q: want a duration as 500ms, 30s or 2m, at most 1h", name, text)
	}
	return d, nil
}

// runWait waits.
func (p *program) runWait(ctx context.Context, v *verb, args []string) error {
	if len(args) > 0 || v.option("filename").isSet() {
		return p.waitForObjects(ctx, v, args)
	}
	c, err := p.client(v)
	problems := flatten(err)
	cond := client.Condition(v.option("for").text())
	if cond != client.Synced && cond != client.Ready {
		problems = append(problems, fmt.Errorf("--for %q: want synced or ready; an object has more, see `svcctl wait --help`", cond))
	}
	timeout, err := duration("timeout", v.option("timeout").text())
	if problems = append(problems, flatten(err)...); len(problems) > 0 {
		return &usageError{problems: problems}
	}
	end := p.waiting(func() string { return fmt.Sprintf("waiting until %s is %s", c.Place(), cond) }, timeout)
	_, err = c.Wait(ctx, cond, timeout)
	end()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("not %s: %w", cond, err)
	}
	return err
}

// awaited is the condition that wait waits for.
type awaited struct {
	text   string
	state  string // in words: "there", "gone"
	met    condition
	synced bool // and the version that met it is in the kernel
	absent bool // that it is not there is what is waited for
	may    bool // it may be absent at first
}

// parseFor reads --for for objects.
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
		a.met, a.absent, a.state = gone(""), true, "gone"
	case word == forCondition && value != "":
		name, status, given := strings.Cut(value, "=")
		if !given {
			status = "True"
		}
		a.met, a.state = hasCondition(name, status), fmt.Sprintf("with condition %s %s", name, status)
	case word == formJSONPath && given:
		path, want, found := cutExpression(value)
		e, err := jsonpath.ParseExpression(path)
		if err != nil {
			return a, usagef("--for %s: %v", text, err)
		}
		a.met, a.state = finds(e, want, found), "with "+path
		if found {
			a.state += " = " + want
		}
	default:
		return a, usagef("--for %q: want synced, ready, create, delete, condition=NAME or jsonpath=PATH", text)
	}
	return a, nil
}

// cutExpression parts {.a}=b behind the brace, and .a=b at the last =.
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

// hasCondition is met by an object with such a condition in its status.
func hasCondition(name, status string) condition {
	return func(o client.Object) bool {
		conditions, _ := field(o, "status", "conditions").([]any)
		return slices.ContainsFunc(conditions, func(c any) bool {
			return strings.EqualFold(textField(c, "type"), name) && strings.EqualFold(textField(c, "status"), status)
		})
	}
}

// finds is met by an object in which an expression finds something, or, if that is wanted,
// a text.
func finds(e *jsonpath.Template, want string, wanted bool) condition {
	return func(o client.Object) bool {
		if o == nil {
			return false
		}
		for _, value := range e.Find(o) {
			text, err := jsonpath.Text(value)
			if err == nil && text != "" && (!wanted || text == want) {
				return true
			}
		}
		return false
	}
}

// waitForObjects waits for each of the objects in turn.
func (p *program) waitForObjects(ctx context.Context, v *verb, args []string) error {
	a, err := parseFor(v.option("for").text())
	if err != nil {
		return err
	}
	timeout, err := duration("timeout", v.option("timeout").text())
	if err != nil {
		return err
	}
	what, err := p.selected(v, args)
	if err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	if what[0].name == "" {
		if what, err = listed(ctx, c, what, selectors(v)); err != nil {
			return err
		}
		if len(what) == 0 && !a.absent {
			return errors.New("no object is selected: there is nothing to wait for")
		}
	}
	deadline := time.Now().Add(timeout)
	var late []error
	for i, t := range what {
		left := max(time.Until(deadline), time.Millisecond)
		end := p.waiting(func() string { return fmt.Sprintf("waiting until %s is %s (%d of %d)", t, a.state, i+1, len(what)) }, left.Round(time.Second))
		err := p.waitForOne(ctx, c, t, a, left)
		end()
		switch {
		case errors.Is(err, errNotInTime):
			what, why := t.String(), ""
			switch absent := absence(ctx, c, t, a); {
			case absent != "":
				what = absent
			case a.absent:
				why = ": " + kept(ctx, c, t)
			default:
				why = notReady(ctx, c, t, a)
			}
			late = append(late, fmt.Errorf("%s: not %s after %s%s", what, a.state, timeout, why))
		case err != nil:
			return err
		default:
			if err := p.print(fmt.Sprintf("%s condition met\n", t)); err != nil {
				return err
			}
		}
	}
	return errors.Join(late...)
}

// absence returns the clause that an object that was waited for does not exist; "" when it
// does.
func absence(ctx context.Context, c *client.Client, t target, a awaited) string {
	_, err := c.Get(ctx, t.path(), nil)
	if f, is := errors.AsType[*wire.Failure](err); a.absent || !is || f.Reason != wire.ReasonNotFound {
		return ""
	}
	if t.kind.Namespaced {
		return fmt.Sprintf("there is no %s in the namespace %s", t, t.namespace)
	}
	return fmt.Sprintf("there is no %s", t)
}

// listed are the objects that selectors find.
func listed(ctx context.Context, c *client.Client, what []target, query map[string][]string) ([]target, error) {
	var all []target
	for _, t := range what {
		_, err := c.Each(ctx, t.path(), query, func(raw json.RawMessage) error {
			o, err := decodeObject(raw)
			all = append(all, target{kind: t.kind, namespace: namespaceOf(o), name: nameOf(o)})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// acceptedPatience bounds the wait for what was accepted before an object is judged.
const acceptedPatience = 5 * time.Second

// notReady returns why an object does not have the condition that is waited for, as a clause; "": not known.
func notReady(ctx context.Context, c *client.Client, t target, a awaited) string {
	if a.text != string(client.Ready) {
		return ""
	}
	o, err := c.Get(ctx, t.path(), nil)
	if err != nil {
		return ""
	}
	conditions, _ := field(o, "status", "conditions").([]any)
	for _, cond := range conditions {
		if textField(cond, "type") == wire.ConditionReady && textField(cond, "message") != "" {
			return fmt.Sprintf(": %s: %s", textField(cond, "reason"), oneLine(textField(cond, "message")))
		}
	}
	return ""
}

// waitForOne waits for one object.
func (p *program) waitForOne(ctx context.Context, c *client.Client, t target, a awaited, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	if !a.absent && !a.may {
		if _, err := c.Get(ctx, t.path(), nil); err != nil {
			return err // what is not there would never be so
		}
	}
	isService := t.kind.Plural == "services"
	if isService && a.text == string(client.Ready) {
		// What was accepted before, as the removal of a slice, counts.
		if s, err := c.Status(ctx); err == nil {
			_, _ = c.WaitFor(ctx, client.Synced, s.Revision.Accepted, min(timeout, acceptedPatience))
		}
		a.synced = true
		if _, err := settle(ctx, c, []string{t.namespace + "/" + t.name}, time.Until(deadline)); err != nil {
			return err
		}
	}
	version := ""
	err := until(ctx, c, t, max(time.Until(deadline), time.Millisecond), func(o client.Object) bool {
		version = versionOf(o)
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
