package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/cmd/svcctl/change"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
)

// scripts are the completion scripts of the shells: each asks completeName what a command line may go on with.
//
//go:embed completion
var scripts embed.FS

func completionVerb() *cli.Verb {
	shells := []string{"bash", "zsh", "fish"}
	return &cli.Verb{
		Name:  "completion",
		Words: shells,
		Run: func(_ context.Context, env *cli.Env, _ *cli.Verb, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("completion for which shell? Give one of %s", strings.Join(shells, ", "))
			}
			script, err := scripts.ReadFile("completion/svcctl." + args[0])
			if err != nil {
				return cli.Usagef("there is no completion for %q: give one of %s", args[0], strings.Join(shells, ", "))
			}
			return env.Print(string(script))
		},
	}
}

const (
	// completeName is the verb that the scripts run.
	completeName = "__complete"
	// completePatience bounds the wait of a completion.
	completePatience = 2 * time.Second
	// maxCandidates bounds the names that are offered.
	maxCandidates = 2000
	// The candidates are files, or directories: the shell lists them.
	completeFiles, completeDirs = ":files", ":dirs"
)

// errNothing means that there is nothing to complete.
var errNothing = &cli.ExitError{Code: cli.ExitNo}

// runComplete prints candidates.
func runComplete(ctx context.Context, env *cli.Env, _ *cli.Verb, words []string) error {
	if len(words) == 0 {
		return errNothing
	}
	before, current := words[:len(words)-1], words[len(words)-1]
	if name, value, joined := strings.Cut(current, "="); joined && strings.HasPrefix(name, "--") {
		before, current = append(slices.Clone(before), name+"="), value
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	candidates, err := (&completing{env: env, current: current}).candidates(ctx, before)
	if err != nil {
		return errNothing // a completion has no place for an error
	}
	for _, one := range candidates {
		if strings.HasPrefix(one, current) || one == completeFiles || one == completeDirs {
			if err := env.Print(one + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// completing is one completion.
type completing struct {
	env     *cli.Env
	v       *cli.Verb
	current string // the word that is to be completed, or the value of --flag=value
}

// candidates returns what the current word may become after those before it.
func (c *completing) candidates(ctx context.Context, before []string) ([]string, error) {
	root := root()
	root.Options = slices.Concat(root.Options, settings.ConnectOptions(), []*cli.Option{settings.NamespaceOption()})
	v, flags, rest := root.Descend(root, before)
	c.v = v
	args, awaits := read(v, append(flags, rest...))
	switch files := strings.Contains(v.Args, "FILE"); {
	case awaits != nil:
		return c.values(ctx, awaits)
	case strings.HasPrefix(c.current, "-"):
		return flagCandidates(v), nil
	case v.Name == "help":
		v, _ = root.Find(args)
		return candidates(v), nil
	case len(v.Verbs) > 0 && len(args) == 0:
		return candidates(v), nil
	case len(v.Words) > 0 && len(args) == 0:
		return v.Words, nil
	case strings.Contains(v.Args, "TO[:PORT]"), strings.Contains(v.Args, "ADDRESS[:PORT]") && resource.IsAddress(c.current):
		return c.addresses(ctx, false)
	case strings.Contains(v.Args, "svc/NAME") && len(args) == 0:
		return c.names(ctx, "svc", "svc/")
	case v.Name == "out" || v.Name == "in":
		t, err := resource.OneService(c.env, v, args[0])
		if err != nil {
			return nil, err
		}
		appliance, err := settings.Connect(c.env, v)
		if err != nil {
			return nil, err
		}
		return change.OutCandidates(ctx, appliance, t, args, v.Name == "in")
	case strings.Contains(v.Args, "KIND"):
		return c.objects(ctx, args)
	case strings.Contains(v.Args, "DIR") && !files:
		return []string{completeDirs}, nil
	case files:
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// candidates are the verbs below v.
func candidates(v *cli.Verb) (all []string) {
	for _, sub := range v.Verbs {
		if sub.Group != "" {
			all = append(all, sub.Word()+"\t"+sub.Summary)
		}
	}
	return all
}

// flagCandidates are the flags of the verb.
func flagCandidates(v *cli.Verb) []string {
	all := []string{"--help\texplain the verb"}
	for _, o := range v.Options {
		all = append(all, "--"+o.Name+"\t"+o.Usage)
	}
	return all
}

// values are the values of an option.
func (c *completing) values(ctx context.Context, o *cli.Option) ([]string, error) {
	switch {
	case len(o.Words) > 0:
		return o.Words, nil
	case o.Name == "namespace":
		return c.names(ctx, "namespaces", "")
	case o.Name == "endpoint":
		return c.addresses(ctx, true)
	case o.Arg == cli.ArgDir:
		return []string{completeDirs}, nil
	case o.Arg == cli.ArgFile, o.Arg == cli.ArgPath, o.Arg == "FILE|DIR":
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// addresses are those of Services, with their ports, or of endpoints.
func (c *completing) addresses(ctx context.Context, endpoints bool) ([]string, error) {
	appliance, err := settings.Connect(c.env, c.v)
	if err != nil {
		return nil, err
	}
	return resource.Addresses(ctx, appliance, endpoints)
}

// read gives the options their values, and returns the other words, and the option of which the
// next word is the value.
func read(v *cli.Verb, words []string) (args []string, awaits *cli.Option) {
	for len(words) > 0 {
		if !strings.HasPrefix(words[0], "-") || words[0] == "-" {
			args, words = append(args, words[0]), words[1:]
			continue
		}
		flags, rest := v.Flags(words)
		for _, f := range flags {
			name, value, given := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			if !v.Has(name) {
				continue
			}
			switch o := v.Option(name); {
			case given && value == "" && len(rest) == 0 || !given && o.Arg != "" && !o.Optional:
				awaits = o // it can only be the last word
			case given:
				o.Texts = append(o.Texts, value)
			default:
				o.Texts = append(o.Texts, "true")
			}
		}
		words = rest
	}
	return args, awaits
}

// objects are kinds for the first word, then names; or KIND/NAME.
func (c *completing) objects(ctx context.Context, args []string) ([]string, error) {
	if word, _, slash := strings.Cut(c.current, "/"); slash {
		return c.names(ctx, word, word+"/")
	}
	if len(args) > 0 && strings.Contains(args[0], "/") {
		return nil, errNothing // the kind is to be written first
	}
	if len(args) > 0 {
		return c.names(ctx, args[0], "")
	}
	before := ""
	if i := strings.LastIndex(c.current, ","); i >= 0 {
		before = c.current[:i+1]
	}
	var words []string
	for _, k := range kind.All() {
		if k.Stored() {
			words = append(words, before+k.Plural)
			for _, short := range k.ShortNames {
				words = append(words, before+short)
			}
		}
	}
	slices.Sort(words)
	return slices.Compact(words), nil
}

// errEnough ends a list.
var errEnough = errors.New("enough")

// names are the names of objects of a kind, with something before each, that begin with the current word.
func (c *completing) names(ctx context.Context, word, before string) ([]string, error) {
	k, ok := resource.KindNamed(word)
	if !ok {
		return nil, resource.UnknownKind(word)
	}
	appliance, err := settings.Connect(c.env, c.v)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if k.Namespaced && !(c.v.Has("all-namespaces") && c.v.Option("all-namespaces").On()) {
		namespace = settings.Namespace(c.env, c.v)
	}
	var names []string
	_, err = appliance.Each(ctx, resource.CollectionPath(k, namespace), nil, func(raw json.RawMessage) error {
		var o struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		name := before + o.Metadata.Name
		if !strings.HasPrefix(name, c.current) {
			return nil
		}
		if names = append(names, name); len(names) == maxCandidates {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return names, err
}
