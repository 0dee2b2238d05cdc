package main

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
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

func (p *program) editVerb() *verb {
	return &verb{
		name:    "edit",
		summary: "change an object in an editor",
		args:    "KIND NAME... | KIND/NAME... [FLAGS]",
		about: `Opens the object as YAML in the editor that KUBE_EDITOR, VISUAL or EDITOR names, else in
vi. When the editor ends, only the changed fields are sent to the appliance. A refused edit
is opened again, with the reason at the top, until it is accepted, or nothing is changed any
more.`,
		options: slices.Concat([]*option{
			namespaceOption(),
			{name: "field-manager", arg: "NAME", def: "svcctl-edit", group: groupHow, usage: "owner of the changed fields"},
		}, connectOptions()),
		examples: []example{
			{"One Service.", "svcctl edit svc/web -n shop"},
			{"With an editor of your choice.", "EDITOR=nano svcctl edit svc web"},
		},
		exits: `  0  done, or nothing was changed
  1  refused, and given up; what was written is kept in a file
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runEdit,
	}
}

// runEdit edits objects one after the other.
func (p *program) runEdit(ctx context.Context, v *verb, args []string) error {
	if len(args) == 0 {
		return usagef("edit what? Give a kind and a name, as in `svcctl edit svc/web`")
	}
	what, err := targets(args, p.namespace(v))
	if err != nil {
		return err
	}
	if what[0].name == "" {
		return usagef("edit which %s? Give a name", what[0].kind.Plural)
	}
	if p.editor() == "" && !p.stdinTTY {
		return usagef("edit opens %s, and stdin is no terminal: name another editor with EDITOR, or run `svcctl apply`", defaultEditor)
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	for _, t := range what {
		e := &editing{p: p, c: c, target: t, query: url.Values{"fieldManager": {v.option("field-manager").text()}, "fieldValidation": {"Strict"}}}
		if err := e.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// editing is the editing of one object.
type editing struct {
	p      *program
	c      *client.Client
	target target
	query  url.Values
	before client.Object
	file   string
}

// run edits until the object is accepted or the user gives up.
func (e *editing) run(ctx context.Context) error {
	var err error
	if e.before, err = e.c.Get(ctx, e.target.path(), nil); err != nil {
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
	editor := cmp.Or(e.p.editor(), defaultEditor)
	for {
		if err := os.WriteFile(e.file, []byte(editHead(why)+text), 0o600); err != nil {
			return err
		}
		if err := e.p.edit(ctx, editor, e.file); err != nil {
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

// cancel ends without a change.
func (e *editing) cancel(why string) error {
	_ = os.Remove(e.file)
	fmt.Fprintf(e.p.stderr, "%s is left as it is: %s\n", e.target, why)
	return nil
}

// defaultEditor is the editor of who names none. It needs a terminal, and without one it waits for ever.
const defaultEditor = "vi"

// editor is the command of the editor that the user names; "" for none.
func (p *program) editor() string {
	for _, name := range []string{"KUBE_EDITOR", "VISUAL", "EDITOR"} {
		if command, ok := p.lookupEnv(name); ok && command != "" {
			return command
		}
	}
	return ""
}

// editHead are the lines above the object.
func editHead(why string) string {
	var b strings.Builder
	b.WriteString("# Please edit the object below. Lines that begin with # are left out, and an empty\n" +
		"# file ends it. If what is saved is refused, it is opened again with the reason.\n#\n")
	if why != "" {
		fmt.Fprintf(&b, "# It was refused:\n%s#\n", output.Wrap(why, "# * ", output.HelpWidth))
	}
	return b.String()
}

// withoutComments is a text without the lines that begin with #.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// send sends what was changed. why is the reason for not accepting it, in words for who
// wrote it.
func (e *editing) send(ctx context.Context, content []byte) (why string, err error) {
	after, why := e.read(content)
	if why != "" {
		return why, nil
	}
	patch, err := json.Marshal(mergePatch(e.before, after))
	if err != nil {
		return "", err
	}
	changed, err := e.c.Patch(ctx, e.target.path(), e.query, client.MergePatch, patch)
	if f, is := errors.AsType[*wire.Failure](err); is {
		return oneLine(f.Message), nil
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
	case versionOf(changed) == versionOf(e.before):
		result = "edited (no change)"
	}
	return "", e.p.print(fmt.Sprintf("%s %s\n", e.target, result))
}

// removedText is the outcome for an object under deletion when a write removed its last finalizer.
const removedText = "removed: it was being deleted, and no finalizer keeps it any more"

// gone reports whether the change has removed the object.
func (e *editing) gone(ctx context.Context, changed client.Object) (bool, error) {
	if textField(changed, "metadata", "deletionTimestamp") == "" {
		return false, nil
	}
	now, err := e.c.Get(ctx, e.target.path(), nil)
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return true, nil
	}
	return err == nil && textField(now, "metadata", "uid") != textField(changed, "metadata", "uid"), err
}

// finalizersOf returns the finalizers of an object.
func finalizersOf(o client.Object) []string {
	var names []string
	list, _ := field(o, "metadata", "finalizers").([]any)
	for _, f := range list {
		if name, is := f.(string); is {
			names = append(names, name)
		}
	}
	return names
}

// read reads the object that was written.
func (e *editing) read(content []byte) (o client.Object, why string) {
	documents := 0
	err := manifest.Trees("object.yaml", content, manifest.DefaultLimits(), func(t *manifest.Tree) error {
		documents++
		var problems []manifest.Problem
		o, problems = t.Object(booleans())
		for _, problem := range problems {
			if !problem.Warning {
				return problem
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, oneLine(strings.TrimPrefix(err.Error(), "object.yaml:"))
	case documents != 1:
		return nil, fmt.Sprintf("there are %d documents in the file: leave the one object", documents)
	case textField(o, "kind") != e.target.kind.Name || textField(o, "apiVersion") != e.target.kind.APIVersion():
		return nil, "apiVersion and kind may not be changed"
	case nameOf(o) != e.target.name || namespaceOf(o) != namespaceOf(e.before):
		return nil, "name and namespace may not be changed: an object of another name is another one"
	}
	return o, ""
}

// mergePatch returns the patch that turns one object into another one (RFC 7386).
func mergePatch(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for key, value := range to {
		old, there := from[key]
		oldMap, oldIs := old.(map[string]any)
		newMap, newIs := value.(map[string]any)
		switch {
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

// runEditor runs an editor, which may be a command with arguments, on this terminal.
func runEditor(ctx context.Context, editor, path string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", path)
	var problem bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if !isTerminal(os.Stderr) {
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
