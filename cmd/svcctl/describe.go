package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/describe"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

func (p *program) describeVerb() *verb {
	return &verb{
		name:    "describe",
		summary: "show an object in detail, with its Events",
		args:    "KIND [NAME...] | KIND/NAME... [FLAGS]",
		about: `For a Service it shows its fields, addresses and ports, its endpoints slice by
slice and why some are not used, whether its present version is in the kernel, its problems,
and its Events. For other objects it shows all fields and the Events.`,
		options: slices.Concat(filesOptions("the objects of files"), whichOptions(), []*option{
			{name: "show-events", def: "true", group: groupOutput, usage: "show the Events too"},
		}, connectOptions()),
		examples: []example{
			{"One Service.", "svcctl describe svc/web -n shop"},
			{"The Node object of this box.", "svcctl describe nodes"},
		},
		exits: `  0  done
  1  a name does not exist, or the appliance refused: stderr names it
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runDescribe,
	}
}

// describing is one run of describe.
type describing struct {
	p      *program
	c      *client.Client
	events bool
	status *wire.Status
	count  int
}

// runDescribe describes objects.
func (p *program) runDescribe(ctx context.Context, v *verb, args []string) error {
	if len(args) == 0 && !v.option("filename").isSet() {
		return usagef("describe what? Give a kind, as in `svcctl describe svc/web`")
	}
	what, err := p.selected(v, args)
	if err != nil {
		return err
	}
	d := &describing{p: p, events: v.option("show-events").text() != "false"}
	if d.c, err = p.client(v); err != nil {
		return err
	}
	if d.status, err = d.c.Status(ctx); err != nil {
		return err
	}
	var missing []error
	for _, t := range what {
		if t.name != "" {
			o, err := d.c.Get(ctx, t.path(), nil)
			if f, is := errors.AsType[*wire.Failure](err); is {
				missing = append(missing, f)
				continue
			}
			if err == nil {
				err = d.one(ctx, t, o)
			}
			if err != nil {
				return err
			}
			continue
		}
		_, err := d.c.Each(ctx, t.path(), selectors(v), func(raw json.RawMessage) error {
			o, err := decodeObject(raw)
			if err != nil {
				return err
			}
			return d.one(ctx, target{t.kind, namespaceOf(o), nameOf(o)}, o)
		})
		if err != nil {
			return err
		}
	}
	if d.count == 0 && len(missing) == 0 {
		fmt.Fprintln(p.stderr, nothingFound(what[0].namespace))
	}
	return errors.Join(missing...)
}

// one describes an object.
func (d *describing) one(ctx context.Context, t target, o client.Object) error {
	if d.count++; d.count > 1 {
		if err := d.p.print("\n\n"); err != nil {
			return err
		}
	}
	page := &describe.Page{}
	if t.kind.Plural == "services" {
		if err := d.service(ctx, page, t); err != nil {
			return err
		}
	} else {
		page.Object(o, t.kind)
	}
	page.Problems(object.Ref{Kind: t.kind.Name, Namespace: t.namespace, Name: t.name}, d.status)
	if d.events && t.kind.Name != object.KindEvent {
		if err := d.happened(ctx, page, t, textField(o, "metadata", "uid")); err != nil {
			return err
		}
	}
	return d.p.print(page.String())
}

// service describes a Service.
func (d *describing) service(ctx context.Context, page *describe.Page, t target) error {
	var svc object.Service
	if err := typed(ctx, d.c, t.path(), &svc); err != nil {
		return err
	}
	f := describe.Facts{Service: &svc, Status: d.status, Created: d.since(svc.Metadata.CreationTimestamp)}
	var err error
	if f.Slices, err = slicesOf(ctx, d.c, t.namespace, t.name); err != nil {
		return err
	}
	if how := annotation.RelayOf(&svc); d.status.Fleet != nil || how.Fronted() {
		if f.State, err = d.state(ctx, t); err != nil {
			return err
		}
	}
	if f.Health, err = d.health(ctx, t); err != nil {
		return err
	}
	page.Service(f)
	return nil
}

// state asks what becomes of a Service; nil where the appliance does not tell, as an older one.
func (d *describing) state(ctx context.Context, t target) (*wire.ServiceState, error) {
	state, err := client.Call(ctx, d.c, wire.GetService, wire.ServiceQuery{Namespace: t.namespace, Name: t.name})
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil, nil
	}
	return state, err
}

// health returns rows about the endpoints that are checked.
func (d *describing) health(ctx context.Context, t target) ([][]string, error) {
	h, err := client.Call(ctx, d.c, wire.GetHealth, wire.ObjectQuery{Namespace: t.namespace, Name: t.name})
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil, nil // an appliance of a version without checks
	}
	if err != nil || len(h.Endpoints) == 0 {
		return nil, err
	}
	rows := healthRows(h.Endpoints, d.p.now(), true)
	for i := range rows {
		rows[i] = rows[i][1:] // without the Service
	}
	return rows, nil
}

// happened adds the Events about the object.
func (d *describing) happened(ctx context.Context, page *describe.Page, t target, uid string) error {
	k, _ := kindNamed("events")
	about := []string{"involvedObject.kind=" + t.kind.Name, "involvedObject.name=" + t.name}
	if t.namespace != "" {
		about = append(about, "involvedObject.namespace="+t.namespace)
	}
	if uid != "" {
		about = append(about, "involvedObject.uid="+uid)
	}
	table, err := d.c.Table(ctx, collectionPath(k, t.namespace), url.Values{"fieldSelector": {strings.Join(about, ",")}})
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil
	}
	if err != nil {
		return err
	}
	page.Events(table)
	return nil
}

// since returns a time, and how long ago it was.
func (d *describing) since(t *time.Time) string {
	if t == nil {
		return "<unknown>"
	}
	return fmt.Sprintf("%s (%s ago)", stamp(*t), span(d.p.now().Sub(*t)))
}
