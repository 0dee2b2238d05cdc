package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// AdminVerb has the verbs of the care for an appliance.
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

// allocations asks for the ranges, the holders of their values, and the differences, which repair removes.
func allocations(ctx context.Context, env *cli.Env, v *cli.Verb, repair bool) (*wire.Allocations, error) {
	if err := cli.CheckOutput(v); err != nil {
		return nil, err
	}
	c, err := env.Client(v)
	if err != nil {
		return nil, err
	}
	if repair {
		return client.Call(ctx, c, wire.Repair, wire.None{})
	}
	return client.Call(ctx, c, wire.GetAllocations, wire.AllocationsQuery{})
}

// runAllocCheck prints what does not agree, and fails when there is something.
func runAllocCheck(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	repair := v.Option("repair").On()
	a, err := allocations(ctx, env, v, repair)
	if err != nil {
		return err
	}
	if err := env.Output(v, a.Disagreements, func() string { return disagreementsText(a.Disagreements) }); err != nil {
		return err
	}
	left := slices.ContainsFunc(a.Disagreements, func(d wire.Disagreement) bool { return !d.Repaired })
	switch {
	case left && repair:
		return errors.New("not all of it could be repaired")
	case left:
		return errors.New("the allocator and the Services differ: `svcctl admin alloc check --repair` removes the differences")
	}
	return nil
}

// poolNames are the kinds of pools for people.
var poolNames = map[string]string{
	wire.PoolClusterIP: "cluster IPs", wire.PoolNodePort: "node ports", wire.PoolLoadBalancer: "load balancer IPs",
}

// poolName is the kind of a pool for people.
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

// poolsText is the table of pools, and with wide everything that is held.
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

// percent returns the use of a pool, as "87%".
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

// disagreementsText returns the findings of check.
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
