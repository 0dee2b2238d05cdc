package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// Document is an object that a file names.
type Document struct {
	Target
	Object client.Object
	File   string
	tree   *manifest.Tree // for Position only
}

// Where is the place of a field as FILE:LINE:COLUMN.
func (d *Document) Where(field string) string {
	line, column := d.tree.Position(field)
	return fmt.Sprintf("%s:%d:%d", d.File, line, column)
}

// isNamespace reports whether the object is a Namespace, which others need to be there.
func (t Target) isNamespace() bool { return t.Kind.Name == object.KindNamespace }

// placeIn returns the index of a document in a batch: Namespaces come before the objects in them,
// in whichever file they are, and everything else at the end.
func (d *Document) placeIn(batch []*Document) int {
	if d.isNamespace() {
		if i := slices.IndexFunc(batch, func(other *Document) bool { return !other.isNamespace() }); i >= 0 {
			return i
		}
	}
	return len(batch)
}

// Batch is documents that go to the appliance in one request.
type Batch struct {
	Documents []*Document
	Raws      []json.RawMessage
	bytes     int // of raws
}

// HasRoom reports whether another document may go in; one always may.
func (b *Batch) HasRoom(raw json.RawMessage) bool {
	return len(b.Documents) == 0 || b.bytes+len(raw) <= BatchBytes
}

// Add takes in a document. What it holds is dropped: from here on raw is enough.
func (b *Batch) Add(d *Document, raw json.RawMessage) {
	d.Object = nil
	i := d.placeIn(b.Documents)
	b.Documents, b.Raws, b.bytes = slices.Insert(b.Documents, i, d), slices.Insert(b.Raws, i, raw), b.bytes+len(raw)
}

// Labels are the object's.
func (d *Document) Labels() map[string]string {
	labels := map[string]string{}
	m, _ := Field(d.Object, "metadata", "labels").(map[string]any)
	for key, value := range m {
		labels[key], _ = value.(string)
	}
	return labels
}

// FilesOptions are -f and what belongs to it.
func FilesOptions(what string) []*cli.Option {
	return []*cli.Option{
		{Name: "filename", Letter: "f", Arg: "FILE|DIR", Group: cli.GroupWhich, Repeats: true,
			Usage: what + ": YAML or JSON, the *.yaml, *.yml and *.json of a directory, or - for stdin; repeatable"},
		{Name: "recursive", Letter: "R", Group: cli.GroupWhich, Def: "true", Usage: "read the directories in a directory too"},
	}
}

// Reader reads the documents of files. It prints each problem to stderr when it finds it, and counts them.
type Reader struct {
	Env       *cli.Env
	Paths     []string
	flat      bool // directories without those in them
	Namespace string
	// forced is set when the namespace was given with -n: documents must not name another.
	Forced  bool
	Refused int
}

// NewReader is the reader of a verb's files.
func NewReader(env *cli.Env, v *cli.Verb) *Reader {
	return &Reader{Env: env, Paths: v.Option("filename").Texts, flat: v.Option("recursive").Text() == "false",
		Namespace: settings.Namespace(env, v), Forced: v.Option("namespace").IsSet() && v.Option("namespace").Text() != ""}
}

// Each calls f for the documents in the order of the files' names and their lines. Errors
// are those of f, and of files that cannot be read at all.
func (r *Reader) Each(f func(*Document) error) error {
	once := appliance.Manifests{Stdin: r.Env.In, Flat: r.flat}
	var failed error // of f
	err := once.Each(r.Paths, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			fmt.Fprintln(r.Env.Err, *refused)
			r.Refused++
			return nil
		}
		failed = r.file(name, data, f)
		return failed
	})
	if failed != nil {
		return failed
	}
	return Unreadable(err)
}

// file reads one file.
func (r *Reader) file(name string, data []byte, f func(*Document) error) error {
	err := manifest.Trees(name, data, manifest.DefaultLimits(), func(t *manifest.Tree) error {
		d := r.document(name, t)
		if d == nil {
			r.Refused++
			return nil
		}
		return f(d)
	})
	if problem, is := errors.AsType[manifest.Problem](err); is {
		fmt.Fprintln(r.Env.Err, problem)
		r.Refused++
		return nil
	}
	return err
}

// Unreadable adds the next step to an error of reading what -f names.
func Unreadable(err error) error {
	where, is := errors.AsType[*fs.PathError](err)
	if !is {
		return err
	}
	next := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		next = ": -f takes a file, a directory, or - for stdin"
	case errors.Is(err, fs.ErrPermission):
		next = ": get the right to read it, or run this as a user who has it"
	}
	return fmt.Errorf("read %s: %w%s", where.Path, where.Err, next)
}

// document reads one document; it is nil when that is not possible, which is printed.
func (r *Reader) document(name string, t *manifest.Tree) *Document {
	o, problems := t.Object(Booleans())
	for _, problem := range problems {
		fmt.Fprintln(r.Env.Err, problem)
	}
	if o == nil {
		return nil
	}
	d := &Document{File: name, tree: t, Object: o}
	refuse := func(field, format string, args ...any) *Document {
		fmt.Fprintf(r.Env.Err, "%s: %s\n", d.Where(field), fmt.Sprintf(format, args...))
		return nil
	}
	apiVersion, kindName := TextField(d.Object, "apiVersion"), TextField(d.Object, "kind")
	switch {
	case kindName == "":
		return refuse("", "the field kind is missing: give the kind of the object")
	case apiVersion == "":
		return refuse("kind", "the field apiVersion is missing: give the version of %s", kindName)
	}
	k, ok := kind.ByName(apiVersion, kindName)
	if !ok || !k.Stored() {
		return refuse("kind", "%s in version %s is not served here%s", kindName, apiVersion, manifest.Instead(kindName))
	}
	meta, is := d.Object["metadata"].(map[string]any)
	if !is {
		return refuse("metadata", "%s: the field metadata.name is missing", k.Name)
	}
	d.Target = Target{Kind: k, Name: NameOf(d.Object)}
	if d.Name == "" {
		return refuse("metadata", "%s: the field metadata.name is missing", k.Name)
	}
	if !k.Namespaced {
		return d
	}
	d.Namespace = NamespaceOf(d.Object)
	switch {
	case d.Namespace == "":
		d.Namespace = r.Namespace
		meta["namespace"] = d.Namespace
	case r.Forced && d.Namespace != r.Namespace:
		return refuse("metadata.namespace", "%s is in namespace %s, and -n is %s: leave out one of them", d, d.Namespace, r.Namespace)
	}
	return d
}

// Booleans returns the fields that are a bool in some kind, with the names from the top: "spec.publishNotReadyAddresses".
var Booleans = sync.OnceValue(func() map[string]bool {
	fields := map[string]bool{}
	var add func(t *schema.Type, path string)
	add = func(t *schema.Type, path string) {
		for t.Form == schema.List {
			t = t.Elem
		}
		if t.Form == schema.Boolean {
			fields[path] = true
		}
		for _, f := range t.Fields {
			add(f.Type, strings.TrimPrefix(path+"."+f.Name, "."))
		}
	}
	for _, k := range kind.All() {
		add(schema.Of(k), "")
	}
	return fields
})

// RefusedError returns the error for n refused documents, which were reported already; nil
// if n is 0.
func RefusedError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s refused: see above", output.Was(n, "object"))
}

// Assigned are the fields of metadata that the appliance assigns. They are in what `get`
// prints, and in documents they mean nothing, as in those of the watched directories.
var Assigned = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}

// Raw is the object in JSON as it is applied.
func (d *Document) Raw() (json.RawMessage, error) {
	if meta, is := d.Object["metadata"].(map[string]any); is {
		for _, name := range Assigned {
			delete(meta, name)
		}
	}
	body, err := json.Marshal(d.Object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", d, err)
	}
	return body, nil
}

// BatchBytes bounds the objects of one request, in bytes of JSON: about 40,000 Services. A dry run
// sees what else is in its request and nothing before it.
const BatchBytes = 40 << 20
