package look

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func HealthVerb() *cli.Verb {
	return &cli.Verb{
		Name: "health",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "watch", Letter: "w", Group: cli.GroupHow, Usage: "print an endpoint again when its state changes"},
			cli.OutputOption(cli.FormTable, cli.FormYAML, cli.FormJSON),
		}, settings.ConnectOptions()),
		Run: runHealth,
	}
}

// healthLook is the interval of looks with -w.
const healthLook = time.Second

// runHealth prints the endpoints. It exits with 1 when one of them is down.
func runHealth(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	namespace, _ := settings.Given(env, v.Option("namespace"))
	name := ""
	var t resource.Target
	if len(args) > 1 {
		return cli.Usagef("health takes one Service, as svc/web, or none")
	}
	if len(args) == 1 {
		var err error
		if t, err = resource.OneService(env, v, args[0]); err != nil {
			return err
		}
		namespace, name = t.Namespace, t.Name
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	if name != "" { // one that does not exist has no health
		if _, err := c.Get(ctx, t.Path(), nil); err != nil {
			return err
		}
	}
	if v.Option("watch").On() {
		if form := v.Option("output").Text(); form != "" && form != cli.FormTable {
			return cli.Usagef("--watch prints lines: leave out -o %s", form)
		}
		return watchHealth(ctx, env, c, namespace, name)
	}
	h, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	page := func() string {
		if len(h.Endpoints) == 0 {
			return "No endpoint is checked: a Service asks for it by its annotation svcctl.io/health-check, and a Pod by its readinessProbe.\n"
		}
		return new(output.Grid).Text(healthRows(h.Endpoints, env.Now(), true)...)
	}
	if err := env.Output(v, h, page); err != nil {
		return err
	}
	down := map[string]bool{} // an endpoint may have several checks
	for i := range h.Endpoints {
		if e := &h.Endpoints[i]; e.State == wire.HealthDown {
			down[strings.Join([]string{e.Service, e.Port, e.Protocol, e.Endpoint}, " ")] = true
		}
	}
	if len(down) > 0 {
		return fmt.Errorf("%s down", output.IsOrAre(len(down), "endpoint"))
	}
	return nil
}

// healthRows is a table of endpoints.
func healthRows(all []wire.EndpointHealth, now time.Time, heading bool) [][]string {
	var rows [][]string
	if heading {
		rows = append(rows, []string{"SERVICE", "PORT", "ENDPOINT", "STATE", "SINCE", "CHECK", "LAST", "WHY"})
	}
	for i := range all {
		e := &all[i]
		since := "start"
		switch {
		case e.State == wire.HealthOut || e.State == wire.HealthNotAsked:
			since = "-"
		case e.Since != nil:
			since = output.Span(now.Sub(*e.Since))
		}
		took := "-"
		if e.Took > 0 {
			took = output.Roughly(time.Duration(e.Took)).String()
		}
		rows = append(rows, []string{
			e.Service, cmp.Or(e.Port, "-"), e.Endpoint, e.State, since, cmp.Or(e.Check, "-"), took, output.Printable(e.Reasons()),
		})
	}
	return rows
}

// watchHealth prints endpoints whose state changed, until ctx ends.
func watchHealth(ctx context.Context, env *cli.Env, c *client.Client, namespace, name string) error {
	before := map[string]string{}
	look := time.NewTicker(healthLook)
	defer look.Stop()
	for first := true; ; first = false {
		h, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: namespace, Name: name})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var changed []wire.EndpointHealth
		now := map[string]string{}
		for _, e := range h.Endpoints {
			key := strings.Join([]string{e.Service, e.Port, e.Protocol, e.Endpoint, e.Check}, " ")
			if now[key] = e.State; before[key] != e.State {
				changed = append(changed, e)
			}
		}
		before = now
		if len(changed) > 0 {
			if err := env.Print(new(output.Grid).Text(healthRows(changed, env.Now(), first)...)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}
