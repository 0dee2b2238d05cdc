package resource

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
)

// Target is an object, or all objects of a kind, that a command line names.
type Target struct {
	Kind      kind.Kind
	Namespace string // "": all namespaces, or a kind without
	Name      string // "": all
}

// Path returns the URL path of the target.
func (t Target) Path() string {
	if t.Name != "" {
		return fillPath(t.Kind.ObjectPath(), t.Namespace, t.Name)
	}
	return CollectionPath(t.Kind, t.Namespace)
}

// CollectionPath is the path of all objects of a namespace, or ("") of all.
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

// String returns its name in messages: service/web, endpointslice.discovery.k8s.io/web-1.
func (t Target) String() string { return FullName(t.Kind, t.Name) }

// named returns the target as the command line of a verb names it: service/web -n default.
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

// KindNamed is the kind that a word means: its plural, its singular, a short name, each
// also with its group after a dot.
func KindNamed(word string) (kind.Kind, bool) { return named(word, nil) }

// named is KindNamed with further kinds.
func named(word string, more []kind.Kind) (kind.Kind, bool) {
	word = strings.ToLower(word)
	for _, k := range append(kind.All(), more...) {
		if !k.Stored() {
			continue
		}
		for _, name := range append([]string{k.Plural, k.Singular()}, k.ShortNames...) {
			if word == name || k.Group != "" && (word == name+"."+k.Group || word == name+"."+k.Version+"."+k.Group) {
				return k, true
			}
		}
	}
	return kind.Kind{}, false
}

// everyKind is the word for the kinds that matter most to users.
const everyKind = "all"

// kindsNamed are the kinds of words with commas between them.
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
	return cli.Usagef("there is no kind %q: %s", word, output.DidYouMean("", word, kindWords(), serviceNamed(word)))
}

// serviceNamed is the hint for a word that is no kind: most often it names a Service.
func serviceNamed(word string) string {
	return "write a Service as svc/" + word + "; `svcctl get --help` lists the kinds"
}

// Plurals are the names of the kinds, each once.
func Plurals() []string {
	var words []string
	for _, k := range kind.All() {
		if k.Stored() {
			words = append(words, k.Plural)
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// kindWords returns all words for kinds.
func kindWords() []string {
	words := []string{everyKind}
	for _, k := range kind.All() {
		if k.Stored() {
			words = append(append(words, k.Plural, k.Singular()), k.ShortNames...)
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// Targets reads the arguments of a verb: KIND[,KIND] [NAME...] or KIND/NAME... . Kinds
// without namespaces have none. more are kinds besides those of the API.
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

// KindOfPath takes the kind off a path such as endpointslices.discovery.k8s.io.ports or
// svc.spec: the longest beginning that is one.
func KindOfPath(text string) (k kind.Kind, path []string, err error) {
	parts := strings.Split(text, ".")
	for n := len(parts); n > 0; n-- {
		if k, ok := KindNamed(strings.Join(parts[:n], ".")); ok {
			return k, parts[n:], nil
		}
	}
	word := parts[0]
	if strings.Count(text, ":") > 1 {
		return k, nil, cli.Usagef("%q is no address: an IPv6 address with a port is written as [ADDRESS]:PORT", text)
	}
	return k, nil, cli.Usagef("there is no kind %q: %s", word, output.DidYouMean("", word, kindWords(), serviceNamed(word)))
}

// WhichOptions say which objects of a kind a verb is about.
func WhichOptions() []*cli.Option {
	return []*cli.Option{
		settings.NamespaceOption(),
		{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "objects of all namespaces"},
		{Name: "selector", Letter: "l", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these labels: app=web,tier!=test, env in (a,b), !old"},
		{Name: "field-selector", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these fields: spec.type=LoadBalancer,metadata.name!=web"},
	}
}

// Selected are the targets of a verb with WhichOptions and FilesOptions; more are kinds besides those of the API.
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

// inFiles are the objects that the files of a verb name. A file that cannot be read, or a
// document of it, is an error: the answer would be about something else.
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

// checkSelectors judges the selectors of a verb.
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

// Selectors are the selectors of a verb, as the server takes them.
func Selectors(v *cli.Verb) url.Values {
	q := url.Values{}
	for name, key := range map[string]string{"selector": "labelSelector", "field-selector": "fieldSelector"} {
		if text := v.Option(name).Text(); text != "" {
			q.Set(key, text)
		}
	}
	return q
}

// NothingFound returns the text for an empty list, as kubectl has it.
func NothingFound(namespace string) string {
	if namespace == "" {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", namespace)
}

// OneService reads svc/NAME.
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
