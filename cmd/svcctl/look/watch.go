package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
)

// watch prints objects and then every change of them, of several kinds at once.
func (g *getting) watch(ctx context.Context, what []resource.Target) error {
	if g.sortBy != nil {
		return cli.Usagef("--watch prints changes as they come: leave out --sort-by")
	}
	for _, t := range what {
		if t.Name != "" && len(what) > 1 {
			return cli.Usagef("--watch takes one name, or kinds without names")
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var printing sync.Mutex // lines of several watches do not mix
	var follows []func() error
	for _, t := range what {
		if t.Name != "" {
			if _, err := g.c.Get(ctx, t.Path(), nil); err != nil {
				return err // nothing may ever come
			}
		}
		query := maps.Clone(g.query)
		if t.Name != "" {
			query.Set("fieldSelector", "metadata.name="+t.Name)
		}
		feed := g.wholes
		if g.form.IsTable() {
			query.Set("includeObject", client.IncludeMetadata)
			feed = g.rows
		}
		list, watch := feed(ctx, t, query, &printing)
		version, err := list()
		if err != nil {
			return err
		}
		follows = append(follows, func() error { return resource.Follow(ctx, version, query, list, watch) })
	}
	var watches sync.WaitGroup
	for _, follow := range follows {
		watches.Go(func() {
			if err := follow(); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	watches.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// rows returns the functions that list and watch a target as rows of Tables, for resource.Follow.
func (g *getting) rows(ctx context.Context, t resource.Target, query url.Values, printing *sync.Mutex) (list func() (string, error), watch func(url.Values, *string) error) {
	s := &sheet{g: g, target: t}
	path := resource.CollectionPath(t.Kind, t.Namespace)
	print := func(rows []client.Row) error {
		printing.Lock()
		defer printing.Unlock()
		return s.print(rows)
	}
	list = func() (string, error) {
		table, err := g.c.Table(ctx, path, query)
		if err != nil {
			return "", err
		}
		s.columns = table.Columns
		if len(table.Rows) > 0 {
			err = print(table.Rows)
		}
		return table.ResourceVersion, err
	}
	return list, func(query url.Values, version *string) error {
		return g.c.WatchTable(ctx, path, query, func(kind string, table *client.Table) error {
			if len(table.Columns) > 0 {
				s.columns = table.Columns
			}
			for _, row := range table.Rows {
				*version = cmp.Or(resource.VersionOf(row.Object), *version)
			}
			if kind == client.Bookmark {
				return nil
			}
			return print(table.Rows)
		})
	}
}

// wholes returns the functions that list and watch a target as whole objects, for resource.Follow.
func (g *getting) wholes(ctx context.Context, t resource.Target, query url.Values, printing *sync.Mutex) (list func() (string, error), watch func(url.Values, *string) error) {
	path := resource.CollectionPath(t.Kind, t.Namespace)
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On(), Headers: !g.v.Option("no-headers").On(), Live: true}
	print := func(o client.Object) error {
		printing.Lock()
		defer printing.Unlock()
		return w.Object(resource.Target{Kind: t.Kind, Name: resource.NameOf(o)}, o)
	}
	list = func() (string, error) {
		meta, err := g.c.Each(ctx, path, query, func(raw json.RawMessage) error {
			o, err := resource.DecodeObject(raw)
			if err != nil {
				return err
			}
			return print(o)
		})
		return meta.ResourceVersion, err
	}
	return list, func(query url.Values, version *string) error {
		return g.c.Watch(ctx, path, query, func(c client.Change) error {
			*version = resource.VersionOf(c.Object)
			if c.Type == client.Bookmark {
				return nil
			}
			return print(c.Object)
		})
	}
}
