package change

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
)

func EditVerb() *cli.Verb {
	return &cli.Verb{
		Name: "edit",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "field-manager", Arg: "NAME", Def: "svcctl-edit", Group: cli.GroupHow, Usage: "owner of the changed fields"},
		}, settings.ConnectOptions()),
		Run: runEdit,
	}
}

// runEdit edits objects one after the other.
func runEdit(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) == 0 {
		return cli.Usagef("edit what? Give a kind and a name, as in `svcctl edit svc/web`")
	}
	what, err := resource.Targets(args, settings.Namespace(env, v))
	if err != nil {
		return err
	}
	if what[0].Name == "" {
		return cli.Usagef("edit which %s? Give a name", what[0].Kind.Plural)
	}
	if editor(env) == "" && !env.StdinTTY {
		return cli.Usagef("edit opens %s, and stdin is no terminal: name another editor with EDITOR, or run `svcctl apply`", defaultEditor)
	}
	c := env.Client(v)
	for _, t := range what {
		e := &editing{env: env, c: c, target: t, query: url.Values{"fieldManager": {v.Option("field-manager").Text()}, "fieldValidation": {"Strict"}}}
		if err := e.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// editing holds one object that is being edited: its version before the edit, and the path of the temporary file with its text.
type editing struct {
	env    *cli.Env
	c      *client.Client
	target resource.Target
	query  url.Values
	before client.Object
	file   string
}

// run edits the object until a change is accepted or the user gives up.
func (e *editing) run(ctx context.Context) error {
	var err error
	if e.before, err = e.c.Get(ctx, e.target.Path()); err != nil {
		return err
	}
	if meta, is := e.before["metadata"].(map[string]any); is {
		delete(meta, "managedFields")
	}
	yaml, err := manifest.YAML(e.before)
	if err != nil {
		return err
	}
	original := string(yaml)
	f, err := os.CreateTemp("", "svcctl-edit-*.yaml")
	if err != nil {
		return err
	}
	e.file = f.Name()
	_ = f.Close()
	text, why := original, ""
	editor := cmp.Or(editor(e.env), defaultEditor)
	for {
		if err := os.WriteFile(e.file, []byte(editHead(why)+text), 0o600); err != nil {
			return err
		}
		if err := e.env.Edit(ctx, editor, e.file); err != nil {
			return fmt.Errorf("the editor %s: %w; the text is in %s", editor, err, e.file)
		}
		content, err := os.ReadFile(e.file)
		if err != nil {
			return err
		}
		written := withoutComments(string(content))
		switch {
		case strings.TrimSpace(written) == "":
			return e.cancel("the file is empty")
		case written == withoutComments(original):
			return e.cancel("nothing is changed")
		case why != "" && written == withoutComments(text):
			return fmt.Errorf("given up: %s; the text is in %s", why, e.file)
		}
		text = written
		if why, err = e.send(ctx, content); err != nil {
			return fmt.Errorf("%w; the text is in %s", err, e.file)
		}
		if why == "" {
			_ = os.Remove(e.file)
			return nil
		}
	}
}

// cancel ends the edit without changing the object, and prints why.
func (e *editing) cancel(why string) error {
	_ = os.Remove(e.file)
	fmt.Fprintf(e.env.Err, "%s is left as it is: %s\n", e.target, why)
	return nil
}

// defaultEditor is the editor if KUBE_EDITOR, VISUAL and EDITOR are not set. It must not be started without a terminal, where it would wait forever.
const defaultEditor = "vi"

// editor returns the editor command in KUBE_EDITOR, VISUAL or EDITOR; "" if none is set.
func editor(env *cli.Env) string {
	for _, name := range []string{"KUBE_EDITOR", "VISUAL", "EDITOR"} {
		if command, ok := env.LookupEnv(name); ok && command != "" {
			return command
		}
	}
	return ""
}

// editHead returns the comment at the top of the edited file. why is the reason why the previous text was rejected, "" if it was not.
func editHead(why string) string {
	var b strings.Builder
	b.WriteString("# Please edit the object below. Lines that begin with # are left out, and an empty\n" +
		"# file ends it. If what is saved is refused, it is opened again with the reason.\n#\n")
	if why != "" {
		fmt.Fprintf(&b, "# It was refused:\n%s#\n", output.Wrap(why, "# * ", output.HelpWidth))
	}
	return b.String()
}

// withoutComments returns a text without the lines that begin with #.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// send sends the edited object to the appliance. why is the reason why it was rejected; it is shown at the top of the file.
func (e *editing) send(ctx context.Context, content []byte) (why string, err error) {
	after, why := e.read(content)
	if why != "" {
		return why, nil
	}
	patch, err := json.Marshal(mergePatch(e.before, after))
	if err != nil {
		return "", err
	}
	changed, err := e.c.Patch(ctx, e.target.Path(), e.query, client.MergePatch, patch)
	if f, is := errors.AsType[*wire.Failure](err); is {
		return output.OneLine(f.Message), nil
	}
	if err != nil {
		return "", err
	}
	result := "edited"
	switch gone, err := e.gone(ctx, changed); {
	case err != nil:
		return "", err
	case gone:
		result += ", and " + removedText
	case resource.VersionOf(changed) == resource.VersionOf(e.before):
		result = "edited (no change)"
	}
	return "", e.env.Print(fmt.Sprintf("%s %s\n", e.target, result))
}

// removedText is the outcome of a write that removed the last finalizer of an object under deletion.
const removedText = "removed: it was being deleted, and no finalizer keeps it any more"

// gone reports whether the write deleted the object, for example because it removed the last finalizer.
func (e *editing) gone(ctx context.Context, changed client.Object) (bool, error) {
	if resource.TextField(changed, "metadata", "deletionTimestamp") == "" {
		return false, nil
	}
	now, err := e.c.Get(ctx, e.target.Path())
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return true, nil
	}
	return err == nil && resource.TextField(now, "metadata", "uid") != resource.TextField(changed, "metadata", "uid"), err
}

// read parses the edited text. why is the reason if the text is not a valid edit of the object.
func (e *editing) read(content []byte) (o client.Object, why string) {
	documents := 0
	err := manifest.Trees("object.yaml", content, manifest.DefaultLimits(), func(t *manifest.Tree) error {
		documents++
		var problems []manifest.Problem
		o, problems = t.Object(resource.Booleans())
		for _, problem := range problems {
			if !problem.Warning {
				return problem
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, output.OneLine(strings.TrimPrefix(err.Error(), "object.yaml:"))
	case documents != 1:
		return nil, fmt.Sprintf("there are %d documents in the file: leave the one object", documents)
	case resource.TextField(o, "kind") != e.target.Kind.Name || resource.TextField(o, "apiVersion") != e.target.Kind.APIVersion():
		return nil, "apiVersion and kind may not be changed"
	case resource.NameOf(o) != e.target.Name || resource.NamespaceOf(o) != resource.NamespaceOf(e.before):
		return nil, "name and namespace may not be changed: an object of another name is another one"
	}
	return o, ""
}

// mergePatch returns the JSON merge patch (RFC 7386) that changes the object from to the object to.
func mergePatch(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for key, value := range to {
		old, there := from[key]
		oldMap, oldIs := old.(map[string]any)
		switch newMap, newIs := value.(map[string]any); {
		case oldIs && newIs:
			if inner := mergePatch(oldMap, newMap); len(inner) > 0 {
				patch[key] = inner
			}
		case !there || !reflect.DeepEqual(old, value):
			patch[key] = value
		}
	}
	for key := range from {
		if _, there := to[key]; !there {
			patch[key] = nil
		}
	}
	return patch
}

// RunEditor runs an editor on a file, on the terminal of this process. editor is a command that may have arguments.
func RunEditor(ctx context.Context, editor, path string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", path)
	var problem bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if !cli.IsTerminal(os.Stderr) {
		cmd.Stderr = &problem
	}
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(problem.String()); text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
		return err
	}
	return nil
}
