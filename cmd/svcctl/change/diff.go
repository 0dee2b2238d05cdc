package change

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func DiffVerb() *cli.Verb {
	return &cli.Verb{
		Name: "diff",
		Options: slices.Concat(resource.FilesOptions("what to compare"), []*cli.Option{
			settings.NamespaceOption(),
			{Name: "force-conflicts", Group: cli.GroupHow, Usage: "as if fields that other managers set were taken over"},
			{Name: "field-manager", Arg: "NAME", Def: manager, Group: cli.GroupHow, Usage: "as if applied by this manager; gitops: as if by a watched file"},
		}, settings.ConnectOptions()),
		Run: runDiff,
	}
}

// differing has the settings of one run of diff, and whether it has found a difference.
type differing struct {
	env     *cli.Env
	c       *client.Client
	options client.ApplyOptions
	batch   resource.Batch
	watched []string // watched directories of the appliance, whose files are compared as files
	total   int
	differ  bool
	refused int
}

// errDiffers is the error of diff when there are differences. They are already printed, so it has no text.
var errDiffers = &cli.ExitError{Code: cli.ExitNo}

// runDiff prints differences.
func runDiff(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	switch {
	case len(args) > 0:
		return cli.Usagef("diff takes files with -f, and %q stands alone: run `svcctl diff --help`", args[0])
	case !v.Option("filename").IsSet():
		return cli.Usagef("diff of what? Give a file or a directory with -f, or -f - for stdin")
	}
	d := &differing{env: env, options: client.ApplyOptions{
		Manager: v.Option("field-manager").Text(), Force: v.Option("force-conflicts").On(), DryRun: true,
	}}
	var err error
	d.c = env.Client(v)
	if d.options.AsFile = d.options.Manager == fileManager; !d.options.AsFile {
		if d.watched, err = watchedDirs(ctx, d.c); err != nil {
			return err
		}
	}
	files := resource.NewReader(env, v)
	err = files.Each(func(doc *resource.Document) error { return d.add(ctx, doc) })
	if err == nil {
		err = d.flush(ctx)
	}
	switch _, unreachable := errors.AsType[*client.UnreachableError](err); {
	case unreachable:
		return err
	case err != nil:
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	case files.Refused+d.refused > 0:
		return &cli.ExitError{Code: cli.ExitUsage, Err: resource.RefusedError(files.Refused + d.refused)}
	case d.total == 0:
		return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("the files have no objects to compare")}
	case d.differ:
		return errDiffers
	}
	return nil
}

func (d *differing) add(ctx context.Context, doc *resource.Document) error {
	raw, err := doc.Raw()
	if err != nil {
		return err
	}
	asFile := d.options.Manager == fileManager || d.isWatched(doc.File)
	if !d.batch.HasRoom(raw) || asFile != d.options.AsFile {
		if err := d.flush(ctx); err != nil {
			return err
		}
	}
	d.options.AsFile = asFile
	d.batch.Add(doc, raw)
	return nil
}

// fileManager is the field manager of fields that come from files in the appliance's watched directories.
const fileManager = "gitops"

// watchedDirs returns the directories that the appliance watches, with symbolic links resolved. It returns none if the appliance is remote.
func watchedDirs(ctx context.Context, c *client.Client) ([]string, error) {
	if c.Remote() {
		return nil, nil
	}
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, s := range status.Sources {
		if dir, err := filepath.EvalSymlinks(s.Dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// isWatched reports whether a file lies in a watched directory.
func (d *differing) isWatched(file string) bool {
	if len(d.watched) == 0 {
		return false
	}
	path, err := filepath.Abs(file)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	return err == nil && slices.ContainsFunc(d.watched, func(dir string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	})
}

// flush applies the batch of documents in a dry run, prints how the results differ from the stored objects, and empties the batch.
func (d *differing) flush(ctx context.Context) error {
	if len(d.batch.Documents) == 0 {
		return nil
	}
	err := d.c.Apply(ctx, d.options, d.batch.Raws, func(i int, r wire.Applied) error {
		d.total++
		switch {
		case r.Status != nil:
			d.refused++
			text := refusal(d.batch.Documents[i], r.Status)
			if strings.Contains(text, `"`+fileManager+`"`) && !d.options.AsFile {
				text += "; `svcctl diff --field-manager " + fileManager + "` shows what an edit of that file would change"
			}
			fmt.Fprintln(d.env.Err, text)
		case r.Result != wire.Unchanged:
			return d.compare(ctx, d.batch.Documents[i], r.Object)
		}
		return nil
	})
	d.batch = resource.Batch{}
	return err
}

// compare prints the differences between an object and its stored version. merged is the result of the dry run.
func (d *differing) compare(ctx context.Context, doc *resource.Document, merged client.Object) error {
	live, err := d.c.Get(ctx, doc.Path())
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		live = nil
	} else if err != nil {
		return err
	}
	if doc.Kind.Name == object.KindSecret {
		maskValues(live, merged)
	}
	before, err := comparable(live)
	if err != nil {
		return err
	}
	after, err := comparable(merged)
	if err != nil {
		return err
	}
	// As kubectl names them: version, kind, namespace, name.
	name := strings.Join(slices.DeleteFunc([]string{strings.ReplaceAll(doc.Kind.APIVersion(), "/", "."), doc.Kind.Name, doc.Namespace, doc.Name},
		func(part string) bool { return part == "" }), ".")
	text := output.Diff("LIVE/"+name, "MERGED/"+name, before, after)
	if text == "" {
		return nil
	}
	d.differ = true
	if d.env.Color {
		text = output.PaintDiff(text)
	}
	return d.env.Print(text)
}

// comparable returns an object as YAML without the fields that the appliance assigns. It modifies o.
func comparable(o client.Object) (string, error) {
	if o == nil {
		return "", nil
	}
	if meta, is := o["metadata"].(map[string]any); is {
		for _, name := range resource.Assigned {
			delete(meta, name)
		}
	}
	text, err := manifest.YAML(o)
	return string(text), err
}

// maskValues replaces the values in two versions of a Secret by placeholders, which differ where the values differ.
func maskValues(before, after client.Object) {
	old, _ := before["data"].(map[string]any)
	now, _ := after["data"].(map[string]any)
	for key, value := range now {
		was, has := old[key]
		now[key] = "***"
		switch {
		case has && was == value:
			old[key] = "***"
		case has:
			old[key], now[key] = "*** (before)", "*** (after)"
		}
	}
	for key := range old {
		if _, has := now[key]; !has {
			old[key] = "***"
		}
	}
}
