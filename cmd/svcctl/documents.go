package main

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
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// document is an object that a file names.
type document struct {
	target
	object client.Object
	file   string
	tree   *manifest.Tree // for Position only
}

// where is the place of a field as FILE:LINE:COLUMN.
func (d *document) where(field string) string {
	line, column := d.tree.Position(field)
	return fmt.Sprintf("%s:%d:%d", d.file, line, column)
}

// isNamespace reports whether the object is a Namespace, which others need to be there.
func (t target) isNamespace() bool { return t.kind.Name == object.KindNamespace }

// placeIn returns the index of a document in a batch: Namespaces come before the objects in them,
// in whichever file they are, and everything else at the end.
func (d *document) placeIn(batch []*document) int {
	if d.isNamespace() {
		if i := slices.IndexFunc(batch, func(other *document) bool { return !other.isNamespace() }); i >= 0 {
			return i
		}
	}
	return len(batch)
}

// batch is documents that go to the appliance in one request.
type batch struct {
	documents []*document
	raws      []json.RawMessage
	bytes     int // of raws
}

// hasRoom reports whether another document may go in; one always may.
func (b *batch) hasRoom(raw json.RawMessage) bool {
	return len(b.documents) == 0 || b.bytes+len(raw) <= batchBytes
}

// add takes in a document. What it holds is dropped: from here on raw is enough.
func (b *batch) add(d *document, raw json.RawMessage) {
	d.object = nil
	i := d.placeIn(b.documents)
	b.documents, b.raws, b.bytes = slices.Insert(b.documents, i, d), slices.Insert(b.raws, i, raw), b.bytes+len(raw)
}

// labels are the object's.
func (d *document) labels() map[string]string {
	labels := map[string]string{}
	m, _ := field(d.object, "metadata", "labels").(map[string]any)
	for key, value := range m {
		labels[key], _ = value.(string)
	}
	return labels
}

// filesOptions are -f and what belongs to it.
func filesOptions(what string) []*option {
	return []*option{
		{name: "filename", letter: "f", arg: "FILE|DIR", group: groupWhich, repeats: true,
			usage: what + ": YAML or JSON, the *.yaml, *.yml and *.json of a directory, or - for stdin; repeatable"},
		{name: "recursive", letter: "R", group: groupWhich, def: "true", usage: "read the directories in a directory too"},
	}
}

// reader reads the documents of files. What is wrong with one is told on stderr as it is
// found, and counted.
type reader struct {
	p         *program
	paths     []string
	flat      bool // directories without those in them
	namespace string
	// forced is set when the namespace was given with -n: documents must not name another.
	forced  bool
	refused int
}

// reader is the reader of a verb's files.
func (p *program) reader(v *verb) *reader {
	return &reader{p: p, paths: v.option("filename").texts, flat: v.option("recursive").text() == "false",
		namespace: p.namespace(v), forced: v.option("namespace").isSet() && v.option("namespace").text() != ""}
}

// each calls f for the documents in the order of the files' names and their lines. Errors
// are those of f, and of files that cannot be read at all.
func (r *reader) each(f func(*document) error) error {
	once := appliance.Manifests{Stdin: r.p.stdin, Flat: r.flat}
	var failed error // of f
	err := once.Each(r.paths, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			fmt.Fprintln(r.p.stderr, *refused)
			r.refused++
			return nil
		}
		failed = r.file(name, data, f)
		return failed
	})
	if failed != nil {
		return failed
	}
	return unreadable(err)
}

// file reads one file.
func (r *reader) file(name string, data []byte, f func(*document) error) error {
	err := manifest.Trees(name, data, manifest.DefaultLimits(), func(t *manifest.Tree) error {
		d := r.document(name, t)
		if d == nil {
			r.refused++
			return nil
		}
		return f(d)
	})
	if problem, is := errors.AsType[manifest.Problem](err); is {
		fmt.Fprintln(r.p.stderr, problem)
		r.refused++
		return nil
	}
	return err
}

// unreadable adds the next step to an error of reading what -f names.
func unreadable(err error) error {
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

// document reads one document; it is nil when that is not possible, which is told.
func (r *reader) document(name string, t *manifest.Tree) *document {
	o, problems := t.Object(booleans())
	for _, problem := range problems {
		fmt.Fprintln(r.p.stderr, problem)
	}
	if o == nil {
		return nil
	}
	d := &document{file: name, tree: t, object: o}
	refuse := func(field, format string, args ...any) *document {
		fmt.Fprintf(r.p.stderr, "%s: %s\n", d.where(field), fmt.Sprintf(format, args...))
		return nil
	}
	apiVersion, kindName := textField(d.object, "apiVersion"), textField(d.object, "kind")
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
	meta, is := d.object["metadata"].(map[string]any)
	if !is {
		return refuse("metadata", "%s: the field metadata.name is missing", k.Name)
	}
	d.target = target{kind: k, name: nameOf(d.object)}
	if d.name == "" {
		return refuse("metadata", "%s: the field metadata.name is missing", k.Name)
	}
	if !k.Namespaced {
		return d
	}
	d.namespace = namespaceOf(d.object)
	switch {
	case d.namespace == "":
		d.namespace = r.namespace
		meta["namespace"] = d.namespace
	case r.forced && d.namespace != r.namespace:
		return refuse("metadata.namespace", "%s is in namespace %s, and -n is %s: leave out one of them", d, d.namespace, r.namespace)
	}
	return d
}

// booleans returns the fields that are a bool in some kind, with the names from the top: "spec.publishNotReadyAddresses".
var booleans = sync.OnceValue(func() map[string]bool {
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

// refusedError returns the error for n refused documents, which were reported already; nil
// if n is 0.
func refusedError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s refused: see above", was(n, "object"))
}

// was is "1 object was" or "2 objects were".
func was(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return fmt.Sprintf("%d %ss were", n, noun)
}

// assigned are the fields of metadata that the appliance assigns. They are in what `get`
// prints, and in documents they mean nothing, as in those of the watched directories.
var assigned = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}

// raw is the object in JSON as it is applied.
func (d *document) raw() (json.RawMessage, error) {
	if meta, is := d.object["metadata"].(map[string]any); is {
		for _, name := range assigned {
			delete(meta, name)
		}
	}
	body, err := json.Marshal(d.object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", d, err)
	}
	return body, nil
}

// oneLine joins the lines of a message.
func oneLine(text string) string {
	return output.Printable(strings.Join(strings.Fields(text), " "))
}

// batchBytes bounds the objects of one request, in bytes of JSON: about 40,000 Services. A dry run
// sees what else is in its request and nothing before it.
const batchBytes = 40 << 20
