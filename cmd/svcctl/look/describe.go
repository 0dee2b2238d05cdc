package look

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/describe"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

func DescribeVerb() *cli.Verb {
	return &cli.Verb{
		Name: "describe",
		Options: slices.Concat(resource.FilesOptions("the objects of files"), resource.WhichOptions(), []*cli.Option{
			{Name: "show-events", Def: "true", Group: cli.GroupOutput, Usage: "show the Events too"},
		}, settings.ConnectOptions()),
		Run: runDescribe,
	}
}

// describing holds the settings of one run of describe, and the number of objects described so far (count).
type describing struct {
	env    *cli.Env
	c      *client.Client
	events bool
	status *wire.Status
	count  int
}

// runDescribe describes objects.
func runDescribe(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) == 0 && !v.Option("filename").IsSet() {
		return cli.Usagef("describe what? Give a kind, as in `svcctl describe svc/web`")
	}
	what, err := resource.Selected(env, v, args)
	if err != nil {
		return err
	}
	d := &describing{env: env, events: v.Option("show-events").Text() != "false"}
	d.c = env.Client(v)
	if d.status, err = d.c.Status(ctx); err != nil {
		return err
	}
	var missing []error
	for _, t := range what {
		described := d.count
		err := resource.Each(ctx, d.c, t, resource.Selectors(v), func(t resource.Target, o client.Object) error { return d.one(ctx, t, o) })
		if f, is := errors.AsType[*wire.Failure](err); is && t.Name != "" && d.count == described {
			missing = append(missing, f)
		} else if err != nil {
			return err
		}
	}
	if d.count == 0 && len(missing) == 0 {
		fmt.Fprintln(env.Err, resource.NothingFound(what[0].Namespace))
	}
	return errors.Join(missing...)
}

// one prints the description of one object.
func (d *describing) one(ctx context.Context, t resource.Target, o client.Object) error {
	if d.count++; d.count > 1 {
		if err := d.env.Print("\n\n"); err != nil {
			return err
		}
	}
	page := &describe.Page{}
	if t.Kind.Plural == "services" {
		if err := d.service(ctx, page, t); err != nil {
			return err
		}
	} else {
		page.Object(o, t.Kind)
		if t.Kind.Group == object.GroupGateway {
			if text := paths(ctx, d.c, "", t.Kind.Name+"/"+t.Namespace+"/"+t.Name, ""); text != "" {
				fmt.Fprint(page, "Backends:\n", output.Indent(text, "  "))
			}
		}
	}
	page.Problems(object.Ref{Kind: t.Kind.Name, Namespace: t.Namespace, Name: t.Name}, d.status)
	if d.events && t.Kind.Name != object.KindEvent {
		if err := d.happened(ctx, page, t, resource.TextField(o, "metadata", "uid")); err != nil {
			return err
		}
	}
	return d.env.Print(page.String())
}

// service writes the description of a Service to page.
func (d *describing) service(ctx context.Context, page *describe.Page, t resource.Target) error {
	var svc object.Service
	if err := d.c.Typed(ctx, t.Path(), &svc); err != nil {
		return err
	}
	f := describe.Facts{Service: &svc, Status: d.status, Created: d.since(svc.Metadata.CreationTimestamp)}
	var err error
	if f.Slices, err = resource.SlicesOf(ctx, d.c, t.Namespace, t.Name); err != nil {
		return err
	}
	if how := annotation.RelayOf(&svc); d.status.Fleet != nil || how.Fronted() {
		if f.State, err = client.Call(ctx, d.c, wire.GetService, wire.ServiceQuery{Namespace: t.Namespace, Name: t.Name}); err != nil {
			return err
		}
	}
	if f.Health, err = d.health(ctx, t); err != nil {
		return err
	}
	page.Service(f)
	return d.egress(ctx, page, &svc)
}

// health returns a header row, and a row for each endpoint of a Service with a health check.
func (d *describing) health(ctx context.Context, t resource.Target) ([][]string, error) {
	h, err := client.Call(ctx, d.c, wire.GetHealth, wire.ObjectQuery{Namespace: t.Namespace, Name: t.Name})
	if err != nil || len(h.Endpoints) == 0 {
		return nil, err
	}
	rows := healthRows(h.Endpoints, d.env.Now(), true)
	for i := range rows {
		rows[i] = rows[i][1:] // without the Service
	}
	return rows, nil
}

// happened writes the Events of the object to page.
func (d *describing) happened(ctx context.Context, page *describe.Page, t resource.Target, uid string) error {
	k, _ := resource.KindNamed("events")
	about := []string{"involvedObject.kind=" + t.Kind.Name, "involvedObject.name=" + t.Name}
	if t.Namespace != "" {
		about = append(about, "involvedObject.namespace="+t.Namespace)
	}
	if uid != "" {
		about = append(about, "involvedObject.uid="+uid)
	}
	table, err := d.c.Table(ctx, resource.CollectionPath(k, t.Namespace), url.Values{"fieldSelector": {strings.Join(about, ",")}})
	if err == nil {
		page.Events(table)
	}
	return err
}

// since formats a time and its age; "<unknown>" for nil.
func (d *describing) since(t *time.Time) string {
	if t == nil {
		return "<unknown>"
	}
	return fmt.Sprintf("%s (%s ago)", output.Stamp(*t), output.Span(d.env.Now().Sub(*t)))
}
