package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/store/kind"
)

// completeName is the verb that completion scripts ask for what is not known to them.
const completeName = "__complete"

// completePatience bounds the wait of a completion.
const completePatience = 2 * time.Second

// completeVerb prints what the last of its arguments, which are a command line after
// svcctl, could become: kinds, and names that the appliance has. Help does not list it.
func (p *program) completeVerb() *verb {
	return &verb{name: completeName, args: "WORD...", command: true, run: p.runComplete}
}

// errNothing means that there is nothing to complete.
var errNothing = &exitError{code: exitNo}

// runComplete prints candidates, one a line.
func (p *program) runComplete(ctx context.Context, _ *verb, words []string) error {
	if len(words) < 2 {
		return errNothing
	}
	verbs := p.verbs()
	i := slices.IndexFunc(verbs, func(v *verb) bool { return v.name == words[0] })
	if i < 0 {
		return errNothing
	}
	v := verbs[i]
	before, current := apart(words[1:])
	args, awaits := v.read(before)
	c := &completing{p: p, v: v}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	var all []string
	var err error
	switch {
	case awaits != nil && awaits.name == "namespace":
		all, err = c.names(ctx, "namespaces", "", current)
	case awaits != nil || !takesObjects(v):
		return errNothing
	default:
		all, err = c.objects(ctx, args, current)
	}
	if err != nil {
		return errNothing // a completion has no place for what went wrong
	}
	for _, one := range all {
		if strings.HasPrefix(one, current) {
			if err := p.print(one + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// apart gives the words before the one that is to be completed, and that one. A flag and its
// value are two words: they may come as --flag=value and, from bash, as three.
func apart(words []string) (before []string, current string) {
	for i, word := range words {
		flag, value, joined := strings.Cut(word, "=")
		last := i == len(words)-1
		switch {
		case word == "=" && last:
			return before, ""
		case word == "=":
		case last && joined && strings.HasPrefix(word, "--"):
			return append(before, flag), value
		case last:
			return before, word
		default:
			before = append(before, word)
		}
	}
	return before, current
}

// takesObjects reports whether a verb is followed by kinds and names.
func takesObjects(v *verb) bool {
	return slices.Contains([]string{"get", "describe", "delete", "edit", "wait", "explain", "health", "out", "in"}, v.name)
}

// read gives the options their values, and tells the other words, and which option the
// next word is the value of.
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
			case given:
				o.texts = append(o.texts, value)
			case o.arg == "" || o.optional:
				o.texts = append(o.texts, "true")
			default:
				awaits = o // it can only be the last word
			}
		}
		words = rest
	}
	return args, awaits
}

// completing looks for candidates.
type completing struct {
	p *program
	v *verb
}

// objects are kinds for the first word, then names; or KIND/NAME.
func (c *completing) objects(ctx context.Context, args []string, current string) ([]string, error) {
	if word, _, slash := strings.Cut(current, "/"); slash {
		return c.names(ctx, word, word+"/", current)
	}
	if len(args) > 0 && strings.Contains(args[0], "/") {
		return nil, nil // the kind is to be written first
	}
	if len(args) > 0 {
		return c.names(ctx, args[0], "", current)
	}
	before := ""
	if i := strings.LastIndex(current, ","); i >= 0 {
		before = current[:i+1]
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

// maxCandidates bounds the names that are offered.
const maxCandidates = 2000

// errEnough ends a list.
var errEnough = errors.New("enough")

// names are the names of objects of a kind, with something before each, that go on from
// what is written.
func (c *completing) names(ctx context.Context, word, before, current string) ([]string, error) {
	k, ok := kindNamed(word)
	if !ok {
		return nil, unknownKind(word)
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	namespace := c.p.namespace(c.v)
	if !k.Namespaced || c.v.has("all-namespaces") && c.v.option("all-namespaces").on() {
		namespace = ""
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
		if !strings.HasPrefix(name, current) {
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

// client talks to the appliance that the words before name.
func (c *completing) client() (*client.Client, error) { return c.p.connect(c.v) }
