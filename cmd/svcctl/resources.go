package main

import (
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
)

// target is an object, or all objects of a kind, that a command line names.
type target struct {
	kind      kind.Kind
	namespace string // "": all namespaces, or a kind without
	name      string // "": all
}

// path returns the URL path of the target.
func (t target) path() string {
	if t.name != "" {
		return objectPath(t.kind, t.namespace, t.name)
	}
	return collectionPath(t.kind, t.namespace)
}

// objectPath is the path of one object.
func objectPath(k kind.Kind, namespace, name string) string {
	return fillPath(k.ObjectPath(), namespace, name)
}

// collectionPath is the path of all objects of a namespace, or ("") of all.
func collectionPath(k kind.Kind, namespace string) string {
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
func (t target) String() string { return fullName(t.kind, t.name) }

// named returns the target as the command line of a verb names it: service/web -n default.
func (t target) named() string {
	if t.namespace == "" {
		return t.String()
	}
	return t.String() + " -n " + t.namespace
}

func fullName(k kind.Kind, name string) string {
	word := k.Singular()
	if k.Group != "" {
		word += "." + k.Group
	}
	return word + "/" + name
}

// kindNamed is the kind that a word means: its plural, its singular, a short name, each
// also with its group after a dot.
func kindNamed(word string) (kind.Kind, bool) {
	word = strings.ToLower(word)
	for _, k := range kind.All() {
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
func kindsNamed(words string) ([]kind.Kind, error) {
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
		k, ok := kindNamed(word)
		if !ok {
			return nil, unknownKind(word)
		}
		add(k)
	}
	return kinds, nil
}

func unknownKind(word string) error {
	if isBoxes(word) {
		return usagef("boxes are no objects: `svcctl get boxes` lists those of a fleet, and each has a Node, as `svcctl describe node NAME` shows it")
	}
	return usagef("there is no kind %q: %s", word, output.DidYouMean("", word, kindWords(), serviceNamed(word)))
}

// serviceNamed is the hint for a word that is no kind: most often it names a Service.
func serviceNamed(word string) string {
	return "a Service is named as svc/" + word + "; the kinds are " + strings.Join(plurals(), ", ")
}

// plurals are the names of the kinds, each once.
func plurals() []string {
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

// targets reads the arguments of a verb: KIND[,KIND] [NAME...] or KIND/NAME... . Kinds
// without namespaces have none.
func targets(args []string, namespace string) ([]target, error) {
	in := func(k kind.Kind, name string) target {
		if !k.Namespaced {
			return target{kind: k, name: name}
		}
		return target{kind: k, namespace: namespace, name: name}
	}
	var all []target
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			word, name, slash := strings.Cut(arg, "/")
			k, ok := kindNamed(word)
			switch {
			case !slash || name == "" || strings.Contains(name, "/"):
				return nil, usagef("%q is not of the form KIND/NAME, as the other arguments are", arg)
			case !ok:
				return nil, unknownKind(word)
			}
			all = append(all, in(k, name))
		}
		return all, nil
	}
	kinds, err := kindsNamed(args[0])
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if len(args) == 1 {
			all = append(all, in(k, ""))
		}
		for _, name := range args[1:] {
			if strings.Contains(name, "/") || name == "" {
				return nil, usagef("%q is no name: give either KIND NAME... or KIND/NAME...", name)
			}
			all = append(all, in(k, name))
		}
	}
	return all, nil
}

// kindOfPath takes the kind off a path such as endpointslices.discovery.k8s.io.ports or
// svc.spec: the longest beginning that is one.
func kindOfPath(text string) (k kind.Kind, path []string, err error) {
	parts := strings.Split(text, ".")
	for n := len(parts); n > 0; n-- {
		if k, ok := kindNamed(strings.Join(parts[:n], ".")); ok {
			return k, parts[n:], nil
		}
	}
	word := parts[0]
	if strings.Count(text, ":") > 1 {
		return k, nil, usagef("%q is no address: an IPv6 address with a port is written as [ADDRESS]:PORT", text)
	}
	return k, nil, usagef("there is no kind %q: %s", word, output.DidYouMean("", word, kindWords(), serviceNamed(word)))
}
