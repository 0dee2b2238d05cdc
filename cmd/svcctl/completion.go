package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// scripts are the completion scripts of the shells: each asks completeName what a command line may go on with.
//
//go:embed completion
var scripts embed.FS

func (p *program) completionVerb() *verb {
	shells := []string{"bash", "zsh", "fish"}
	return &verb{
		name:    "completion",
		summary: "print a completion script for bash, zsh or fish",
		args:    "bash|zsh|fish",
		about: `The script completes verbs and their words, flags, the values of flags with a fixed set, kinds,
and, from the appliance, the names of namespaces and objects, and the addresses of endpoints
for ` + "`svcctl out` and `svcctl in`" + `.`,
		words: shells,
		examples: []example{
			{"For this shell.", "source <(svcctl completion bash)"},
			{"For every bash on this machine.", "svcctl completion bash > /etc/bash_completion.d/svcctl"},
			{"For zsh, in a directory of $fpath.", "svcctl completion zsh > /usr/local/share/zsh/site-functions/_svcctl"},
			{"For fish.", "svcctl completion fish > ~/.config/fish/completions/svcctl.fish"},
		},
		exits: `  0  done
  2  wrong usage`,
		run: func(_ context.Context, _ *verb, args []string) error {
			if len(args) != 1 {
				return usagef("completion for which shell? Give one of %s", strings.Join(shells, ", "))
			}
			script, err := scripts.ReadFile("completion/svcctl." + args[0])
			if err != nil {
				return usagef("there is no completion for %q: give one of %s", args[0], strings.Join(shells, ", "))
			}
			return p.print(string(script))
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

// completeVerb prints what the last of its arguments, which are a command line after svcctl, could become: a candidate a
// line, with its description after a tab, or completeFiles or completeDirs.
func (p *program) completeVerb() *verb {
	return &verb{name: completeName, args: "WORD...", command: true, run: p.runComplete}
}

// errNothing means that there is nothing to complete.
var errNothing = &exitError{code: exitNo}

// runComplete prints candidates.
func (p *program) runComplete(ctx context.Context, _ *verb, words []string) error {
	if len(words) == 0 {
		return errNothing
	}
	before, current := words[:len(words)-1], words[len(words)-1]
	if name, value, joined := strings.Cut(current, "="); joined && strings.HasPrefix(name, "--") {
		before, current = append(slices.Clone(before), name+"="), value
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	candidates, err := (&completing{p: p, current: current}).candidates(ctx, before)
	if err != nil {
		return errNothing // a completion has no place for an error
	}
	for _, one := range candidates {
		if strings.HasPrefix(one, current) || one == completeFiles || one == completeDirs {
			if err := p.print(one + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// completing is one completion.
type completing struct {
	p       *program
	v       *verb
	current string // the word that is to be completed, or the value of --flag=value
}

// candidates returns what the current word may become after those before it.
func (c *completing) candidates(ctx context.Context, before []string) ([]string, error) {
	root := c.p.root()
	root.options = slices.Concat(root.options, connectOptions(), []*option{namespaceOption()})
	v, flags, rest := root.descend(root, before)
	c.v = v
	args, awaits := v.read(append(flags, rest...))
	files := strings.Contains(v.args, "FILE")
	switch {
	case awaits != nil:
		return c.values(ctx, awaits)
	case strings.HasPrefix(c.current, "-"):
		return v.flagCandidates(), nil
	case v.name == "help":
		v, args = root.find(args)
		return v.candidates(), nil
	case len(v.verbs) > 0 && len(args) == 0:
		return v.candidates(), nil
	case len(v.words) > 0 && len(args) == 0:
		return v.words, nil
	case strings.Contains(v.args, "svc/NAME") && len(args) == 0:
		return c.names(ctx, "svc", "svc/")
	case v.name == "out" || v.name == "in":
		return c.addresses(ctx, args, v.name == "in")
	case strings.Contains(v.args, "KIND"):
		return c.objects(ctx, args)
	case strings.Contains(v.args, "DIR") && !files:
		return []string{completeDirs}, nil
	case files:
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// candidates are the verbs below v.
func (v *verb) candidates() (all []string) {
	for _, sub := range v.verbs {
		if sub.group != "" {
			all = append(all, sub.word()+"\t"+sub.summary)
		}
	}
	return all
}

// flagCandidates are the flags of the verb.
func (v *verb) flagCandidates() []string {
	all := []string{"--help\texplain the verb"}
	for _, o := range v.options {
		all = append(all, "--"+o.name+"\t"+o.usage)
	}
	return all
}

// values are the values of an option.
func (c *completing) values(ctx context.Context, o *option) ([]string, error) {
	switch {
	case len(o.words) > 0:
		return o.words, nil
	case o.name == "namespace":
		return c.names(ctx, "namespaces", "")
	case o.arg == argDir:
		return []string{completeDirs}, nil
	case o.arg == argFile, o.arg == argPath, o.arg == "FILE|DIR":
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// read gives the options their values, and returns the other words, and the option of which the
// next word is the value.
func (v *verb) read(words []string) (args []string, awaits *option) {
	for len(words) > 0 {
		if !strings.HasPrefix(words[0], "-") || words[0] == "-" {
			args, words = append(args, words[0]), words[1:]
			continue
		}
		flags, rest := v.flags(words)
		for _, f := range flags {
			name, value, given := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			if !v.has(name) {
				continue
			}
			o := v.option(name)
			switch {
			case given && value == "" && len(rest) == 0 || !given && o.arg != "" && !o.optional:
				awaits = o // it can only be the last word
			case given:
				o.texts = append(o.texts, value)
			default:
				o.texts = append(o.texts, "true")
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
	k, ok := kindNamed(word)
	if !ok {
		return nil, unknownKind(word)
	}
	client, err := c.p.connect(c.v)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if k.Namespaced && !(c.v.has("all-namespaces") && c.v.option("all-namespaces").on()) {
		namespace = c.p.namespace(c.v)
	}
	var names []string
	_, err = client.Each(ctx, collectionPath(k, namespace), nil, func(raw json.RawMessage) error {
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

// addresses are the addresses that may be taken out of the Service that args begin with, or return to it, but for those that
// args have.
func (c *completing) addresses(ctx context.Context, args []string, back bool) (all []string, err error) {
	t, err := c.p.oneService(c.v, args[0])
	if err != nil {
		return nil, err
	}
	var appliance *client.Client
	if appliance, err = c.p.connect(c.v); err != nil {
		return nil, err
	}
	var svc object.Service
	if err := typed(ctx, appliance, t.path(), &svc); err != nil {
		return nil, err
	}
	taken, err := addressesOf(strings.FieldsFunc(svc.Metadata.Annotations[outAnnotation], func(r rune) bool { return r == ',' || r == ' ' }))
	if err != nil {
		return nil, err
	}
	out := strings.Split(joinAddrs(taken), ",")
	if back {
		all = out
	} else {
		endpoints, err := slicesOf(ctx, appliance, t.namespace, t.name)
		if err != nil {
			return nil, err
		}
		for _, s := range endpoints {
			for _, e := range s.Endpoints {
				all = append(all, e.Addresses...)
			}
		}
		args = append(args, out...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(addr string) bool { return slices.Contains(args, addr) }), nil
}
