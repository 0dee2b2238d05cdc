package resource

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// WhichOptions say which objects of a kind a verb is about.
func WhichOptions() []*cli.Option {
	return []*cli.Option{
		settings.NamespaceOption(),
		{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "objects of all namespaces"},
		{Name: "selector", Letter: "l", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these labels: app=web,tier!=test, env in (a,b), !old"},
		{Name: "field-selector", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "objects with these fields: spec.type=LoadBalancer,metadata.name!=web"},
	}
}

// Selected are the targets of a verb with whichOptions and filesOptions.
func Selected(env *cli.Env, v *cli.Verb, args []string) ([]Target, error) {
	if v.Option("filename").IsSet() {
		return inFiles(env, v, args)
	}
	namespace, all := settings.Namespace(env, v), v.Option("all-namespaces").On()
	if all {
		namespace = ""
	}
	what, err := Targets(args, namespace)
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
