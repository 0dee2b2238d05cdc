package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
	"svcctl.io/svcctl/watch"
)

// Document is an object in a manifest file.
type Document struct {
	Target
	Object client.Object
	File   string
	tree   *manifest.Tree // for the position of fields
}

// Where returns the position of a field in the file, as FILE:LINE:COLUMN.
func (d *Document) Where(field string) string {
	line, column := d.tree.Position(field)
	return fmt.Sprintf("%s:%d:%d", d.File, line, column)
}

// isNamespace reports whether the target is of kind Namespace. A Namespace must exist before the objects in it.
func (t Target) isNamespace() bool { return t.Kind.Name == object.KindNamespace }

// placeIn returns the index at which to insert a document into a batch: Namespaces come before all other objects, which need them.
func (d *Document) placeIn(batch []*Document) int {
	if d.isNamespace() {
		if i := slices.IndexFunc(batch, func(other *Document) bool { return !other.isNamespace() }); i >= 0 {
			return i
		}
	}
	return len(batch)
}

// Batch holds documents that are sent to the appliance in one request.
type Batch struct {
	Documents []*Document
	Raws      []json.RawMessage
	bytes     int // total size of Raws
}

// HasRoom reports whether a document with the JSON raw fits into the batch. An empty batch has room for any document.
func (b *Batch) HasRoom(raw json.RawMessage) bool {
	return len(b.Documents) == 0 || b.bytes+len(raw) <= BatchBytes
}

// Add adds a document with its JSON, raw. It sets d.Object to nil to free memory.
func (b *Batch) Add(d *Document, raw json.RawMessage) {
	d.Object = nil
	i := d.placeIn(b.Documents)
	b.Documents, b.Raws, b.bytes = slices.Insert(b.Documents, i, d), slices.Insert(b.Raws, i, raw), b.bytes+len(raw)
}

// Labels returns the labels of the object.
func (d *Document) Labels() map[string]string {
	labels := map[string]string{}
	m, _ := Field(d.Object, "metadata", "labels").(map[string]any)
	for key, value := range m {
		labels[key], _ = value.(string)
	}
	return labels
}

// FilesOptions returns the options -f and those related to it. what describes the use of the files.
func FilesOptions(what string) []*cli.Option {
	return []*cli.Option{
		{Name: "filename", Letter: "f", Arg: "FILE|DIR", Group: cli.GroupWhich, Repeats: true,
			Usage: what + ": YAML or JSON, the *.yaml, *.yml and *.json of a directory, or - for stdin; repeatable"},
		{Name: "recursive", Letter: "R", Group: cli.GroupWhich, Def: "true", Usage: "read the directories in a directory too"},
	}
}

// Reader reads the documents in manifest files. It prints problems to stderr as it finds them, and counts the documents that it refused (Refused).
type Reader struct {
	Env       *cli.Env
	Paths     []string
	flat      bool // read directories without their subdirectories
	Namespace string
	// Forced is set when the namespace was given with -n. Documents must then not have a different one.
	Forced  bool
	Refused int
}

// NewReader returns a Reader for the files given to a verb with -f.
func NewReader(env *cli.Env, v *cli.Verb) *Reader {
	return &Reader{Env: env, Paths: v.Option("filename").Texts, flat: v.Option("recursive").Text() == "false",
		Namespace: settings.Namespace(env, v), Forced: v.Option("namespace").IsSet() && v.Option("namespace").Text() != ""}
}

// Each calls f for each document, ordered by file name and position. It stops at the first error of f, or at the first file that cannot be read, and
// returns the error.
func (r *Reader) Each(f func(*Document) error) error {
	once := watch.Once{Stdin: r.Env.In, Flat: r.flat}
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

// file calls f for each document in one file.
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

// Unreadable extends an error about reading a file (-f) by a hint for the user.
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

// document decodes one document. If the document has an error, it prints the problem and returns nil.
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

// Booleans returns the paths of fields that are a bool in any kind, such as "spec.publishNotReadyAddresses". They are needed because YAML 1.1 has
// more words for booleans, such as yes and off.
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

// RefusedError returns the error for n rejected documents, whose problems are already printed; nil if n is 0.
func RefusedError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s refused: see above", output.Was(n, "object"))
}

// Assigned has the fields of metadata that the appliance assigns. `svcctl get` prints them; in documents they are ignored, as in watched
// directories.
var Assigned = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}

// Raw returns the object as JSON without the fields in Assigned. It removes them from d.Object.
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

// BatchBytes is the maximum size of the objects in one request, in bytes of JSON: about 40,000 Services. A dry run takes into account only the other
// objects in the same request.
const BatchBytes = 40 << 20

// Target is an object, or all objects of a kind, that a command line names.
type Target struct {
	Kind      kind.Kind
	Namespace string // "" means all namespaces, or a kind without namespaces
	Name      string // "" means all objects
}

// Path returns the API path of the target.
func (t Target) Path() string {
	if t.Name != "" {
		return fillPath(t.Kind.ObjectPath(), t.Namespace, t.Name)
	}
	return CollectionPath(t.Kind, t.Namespace)
}

// CollectionPath returns the API path of all objects of a kind in a namespace; in all namespaces if namespace is "".
func CollectionPath(k kind.Kind, namespace string) string {
	path := k.CollectionPath()
	if namespace == "" {
		path = strings.Replace(path, "/namespaces/{namespace}", "", 1)
	}
	return fillPath(path, namespace, "")
}

func fillPath(path, namespace, name string) string {
	return strings.NewReplacer("{namespace}", url.PathEscape(namespace), "{name}", url.PathEscape(name)).Replace(path)
}

// String returns the name for messages: service/web, endpointslice.discovery.k8s.io/web-1.
func (t Target) String() string { return FullName(t.Kind, t.Name) }

// named returns the target as arguments for a command line: service/web -n default.
func (t Target) named() string {
	if t.Namespace == "" {
		return t.String()
	}
	return t.String() + " -n " + t.Namespace
}

func FullName(k kind.Kind, name string) string {
	word := k.Singular()
	if k.Group != "" {
		word += "." + k.Group
	}
	return word + "/" + name
}

// KindNamed returns the kind with this name: its plural, singular or short name. Each can be followed by ".GROUP" or ".VERSION.GROUP".
func KindNamed(word string) (kind.Kind, bool) { return named(word, nil) }

// named is like KindNamed, but searches the kinds in more as well.
func named(word string, more []kind.Kind) (kind.Kind, bool) {
	word = strings.ToLower(word)
	for _, k := range append(kind.All(), more...) {
		if !k.Stored() {
			continue
		}
		for _, name := range namesOf(k) {
			if word == name || k.Group != "" && (word == name+"."+k.Group || word == name+"."+k.Version+"."+k.Group) {
				return k, true
			}
		}
	}
	return kind.Kind{}, false
}

// everyKind is the name for Services and related kinds together, as in `svcctl get all`.
const everyKind = "all"

// kindsNamed returns the kinds in a comma-separated list of names. It searches the API's kinds and more.
func kindsNamed(words string, more []kind.Kind) ([]kind.Kind, error) {
	var kinds []kind.Kind
	add := func(k kind.Kind) {
		if !slices.ContainsFunc(kinds, func(o kind.Kind) bool { return o.Name == k.Name && o.Group == k.Group }) {
			kinds = append(kinds, k)
		}
	}
	for word := range strings.SplitSeq(words, ",") {
		if word == everyKind {
			for _, k := range kind.All() {
				if k.InAll {
					add(k)
				}
			}
			continue
		}
		k, ok := named(word, more)
		if !ok {
			return nil, UnknownKind(word)
		}
		add(k)
	}
	return kinds, nil
}

func UnknownKind(word string) error {
	if _, is := named(word, []kind.Kind{Boxes}); is {
		return cli.Usagef("boxes are no objects: `svcctl get boxes` lists those of a fleet, and each has a Node, as `svcctl describe node NAME` shows it")
	}
	return noKind(word)
}

// noKind returns the error for a word that is not a kind. It is often the name of a Service.
func noKind(word string) error {
	return cli.Usagef("there is no kind %q: %s", word, output.DidYouMean("", word, append([]string{everyKind}, KindWords(namesOf)...),
		"write a Service as svc/"+word+"; `svcctl get --help` lists the kinds"))
}

// KindWords returns the words that of returns for the stored kinds, sorted.
func KindWords(of func(k kind.Kind) []string) (words []string) {
	for _, k := range kind.All() {
		if k.Stored() {
			words = append(words, of(k)...)
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// namesOf returns all names of a kind.
func namesOf(k kind.Kind) []string { return append([]string{k.Plural, k.Singular()}, k.ShortNames...) }

// Targets parses the arguments of a verb: KIND[,KIND] [NAME...] or KIND/NAME... . Targets of kinds without namespaces have no namespace. more are
// further kinds, which the API does not have.
func Targets(args []string, namespace string, more ...kind.Kind) ([]Target, error) {
	in := func(k kind.Kind, name string) Target {
		if !k.Namespaced {
			return Target{Kind: k, Name: name}
		}
		return Target{Kind: k, Namespace: namespace, Name: name}
	}
	var all []Target
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			word, name, slash := strings.Cut(arg, "/")
			k, ok := named(word, more)
			switch {
			case !slash || name == "" || strings.Contains(name, "/"):
				return nil, cli.Usagef("%q is not of the form KIND/NAME, as the other arguments are", arg)
			case !ok:
				return nil, UnknownKind(word)
			}
			all = append(all, in(k, name))
		}
		return all, nil
	}
	kinds, err := kindsNamed(args[0], more)
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if len(args) == 1 {
			all = append(all, in(k, ""))
		}
		for _, name := range args[1:] {
			if strings.Contains(name, "/") || name == "" {
				return nil, cli.Usagef("%q is no name: give either KIND NAME... or KIND/NAME...", name)
			}
			all = append(all, in(k, name))
		}
	}
	return all, nil
}

// KindOfPath splits a path such as endpointslices.discovery.k8s.io.ports or svc.spec into a kind and a field path. The kind is the longest prefix
// that names one.
func KindOfPath(text string) (k kind.Kind, path []string, err error) {
	parts := strings.Split(text, ".")
	for n := len(parts); n > 0; n-- {
		if k, ok := KindNamed(strings.Join(parts[:n], ".")); ok {
			return k, parts[n:], nil
		}
	}
	if strings.Count(text, ":") > 1 {
		return k, nil, cli.Usagef("%q is no address: an IPv6 address with a port is written as [ADDRESS]:PORT", text)
	}
	return k, nil, noKind(parts[0])
}

// WhichOptions returns the options that select objects of a kind: --all-namespaces, selectors and others.
func WhichOptions() []*cli.Option {
	return []*cli.Option{
		settings.NamespaceOption(),
		{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "objects of all namespaces"},
		{Name: "selector", Letter: "l", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these labels: app=web,tier!=test, env in (a,b), !old"},
		{Name: "field-selector", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these fields: spec.type=LoadBalancer,metadata.name!=web"},
	}
}

// Selected returns the targets that a verb's arguments, WhichOptions and FilesOptions select. more are further kinds, which the API does not have.
func Selected(env *cli.Env, v *cli.Verb, args []string, more ...kind.Kind) ([]Target, error) {
	if v.Option("filename").IsSet() {
		return inFiles(env, v, args)
	}
	namespace, all := settings.Namespace(env, v), v.Option("all-namespaces").On()
	if all {
		namespace = ""
	}
	what, err := Targets(args, namespace, more...)
	if err != nil {
		return nil, err
	}
	if err := checkSelectors(v, what); err != nil {
		return nil, err
	}
	switch named := what[0].Name != ""; {
	case named && all:
		return nil, cli.Usagef("%s: a name is in one namespace: give -n NAMESPACE, not -A", what[0])
	case named && len(Selectors(v)) > 0:
		return nil, cli.Usagef("%s: give either names or a selector", what[0])
	}
	return what, nil
}

// inFiles returns the objects in the files given to a verb with -f. Files and documents that cannot be read are an error, as the result would be
// incomplete.
func inFiles(env *cli.Env, v *cli.Verb, args []string) ([]Target, error) {
	if len(args) > 0 || len(Selectors(v)) > 0 || v.Option("all-namespaces").On() {
		return nil, cli.Usagef("give either files with -f, or kinds and names, not both")
	}
	files := NewReader(env, v)
	var what []Target
	err := files.Each(func(d *Document) error {
		what = append(what, d.Target)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case files.Refused > 0:
		return nil, fmt.Errorf("%s cannot be read: see above", output.Count(files.Refused, "document"))
	case len(what) == 0:
		return nil, errors.New("the files have no objects")
	}
	return what, nil
}

// checkSelectors returns an error if a selector of a verb is invalid.
func checkSelectors(v *cli.Verb, what []Target) error {
	if _, err := selector.ParseLabels(v.Option("selector").Text()); err != nil {
		return cli.Usagef("-l: %v", err)
	}
	for _, t := range what {
		if _, err := selector.ParseFields(t.Kind, v.Option("field-selector").Text()); err != nil {
			return cli.Usagef("--field-selector: %v", err)
		}
	}
	return nil
}

// Selectors returns the selectors of a verb as query parameters of the API.
func Selectors(v *cli.Verb) url.Values {
	q := url.Values{}
	for name, key := range map[string]string{"selector": "labelSelector", "field-selector": "fieldSelector"} {
		if text := v.Option(name).Text(); text != "" {
			q.Set(key, text)
		}
	}
	return q
}

// NothingFound returns the message for an empty list, in the wording of kubectl.
func NothingFound(namespace string) string {
	if namespace == "" {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", namespace)
}

// OneService parses an argument of the form svc/NAME.
func OneService(env *cli.Env, v *cli.Verb, arg string) (Target, error) {
	if _, err := netip.ParseAddr(strings.Trim(arg, "[]")); err == nil {
		return Target{}, cli.Usagef("%q is an address: `svcctl explain %s` has its Services, and its state", arg, arg)
	}
	if !strings.Contains(arg, "/") {
		return Target{}, cli.Usagef("%q has no kind: write the Service as svc/%s", arg, arg)
	}
	what, err := Targets([]string{arg}, settings.Namespace(env, v))
	if err != nil {
		return Target{}, err
	}
	if what[0].Kind.Plural != "services" {
		return Target{}, cli.Usagef("%s wants a Service, as svc/web", v.Name)
	}
	return what[0], nil
}
