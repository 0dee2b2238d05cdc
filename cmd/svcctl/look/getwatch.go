package look

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/store/kind"
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
	var feeds []*feed
	var versions []string
	for _, t := range what {
		if t.Name != "" {
			if _, err := g.c.Get(ctx, t.Path(), nil); err != nil {
				return err // nothing may ever come
			}
		}
		f := g.rows(ctx, t, &printing)
		if !g.form.IsTable() {
			f = g.wholes(ctx, t, &printing)
		}
		version, err := f.list()
		if err != nil {
			return err
		}
		feeds, versions = append(feeds, f), append(versions, version)
	}
	var watches sync.WaitGroup
	for i, f := range feeds {
		watches.Go(func() {
			if err := f.follow(ctx, versions[i]); err != nil {
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

// feed is the objects of one target as they change.
type feed struct {
	// list prints all and gives the version to go on from; watch prints the changes after a
	// version until the server has enough, and gives how far it came.
	list  func() (version string, err error)
	watch func(version string) (string, error)
}

// follow repeats the watch when it ends. When changes were missed it begins with the list again.
func (f *feed) follow(ctx context.Context, version string) error {
	var err error
	for err == nil && ctx.Err() == nil {
		version, err = f.watch(version)
		if failure, is := errors.AsType[*wire.Failure](err); is && failure.Reason == wire.ReasonExpired {
			version, err = f.list()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// collection is the collection a target is watched in, and the query that leaves only it.
func (g *getting) collection(t resource.Target) (path string, query url.Values) {
	query = maps.Clone(g.query)
	if t.Name != "" {
		query.Set("fieldSelector", "metadata.name="+t.Name)
	}
	return resource.CollectionPath(t.Kind, t.Namespace), query
}

// rows is a feed that prints the rows of Tables.
func (g *getting) rows(ctx context.Context, t resource.Target, printing *sync.Mutex) *feed {
	s := &sheet{g: g, target: t}
	path, query := g.collection(t)
	query.Set("includeObject", client.IncludeMetadata)
	print := func(rows []client.Row) error {
		printing.Lock()
		defer printing.Unlock()
		return s.print(rows)
	}
	list := func() (string, error) {
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
	return &feed{list, func(version string) (string, error) {
		query := maps.Clone(query)
		query.Set("resourceVersion", version)
		query.Set("allowWatchBookmarks", "true")
		err := g.c.WatchTable(ctx, path, query, func(kind string, table *client.Table) error {
			if len(table.Columns) > 0 {
				s.columns = table.Columns
			}
			for _, row := range table.Rows {
				if v := resource.VersionOf(row.Object); v != "" {
					version = v
				}
			}
			if kind == client.Bookmark {
				return nil
			}
			return print(table.Rows)
		})
		return version, err
	}}
}

// wholes is a feed that prints whole objects.
func (g *getting) wholes(ctx context.Context, t resource.Target, printing *sync.Mutex) *feed {
	path, query := g.collection(t)
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On()}
	heads := g.form.Name == cli.FormColumns && !g.v.Option("no-headers").On()
	var lines output.Grid
	print := func(k kind.Kind, o client.Object) error {
		printing.Lock()
		defer printing.Unlock()
		if g.form.Name != cli.FormColumns {
			return w.Object(k, o)
		}
		rows := [][]string{g.form.Row(o)}
		if heads {
			rows, heads = append([][]string{g.form.Headers()}, rows...), false
		}
		return g.env.Print(lines.Text(rows...))
	}
	list := func() (string, error) {
		meta, err := g.c.Each(ctx, path, query, func(raw json.RawMessage) error {
			o, err := resource.DecodeObject(raw)
			if err != nil {
				return err
			}
			return print(t.Kind, o)
		})
		return meta.ResourceVersion, err
	}
	return &feed{list, func(version string) (string, error) {
		query := maps.Clone(query)
		query.Set("resourceVersion", version)
		query.Set("allowWatchBookmarks", "true")
		err := g.c.Watch(ctx, path, query, func(c client.Change) error {
			version = resource.VersionOf(c.Object)
			if c.Type == client.Bookmark {
				return nil
			}
			return print(t.Kind, c.Object)
		})
		return version, err
	}}
}
