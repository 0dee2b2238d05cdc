package main

import (
	"slices"
	"strings"
)

// arrange puts a command line into the order that package flag reads: the verb, its
// flags as --name=value, then its arguments. So flags may stand anywhere, before the verb
// and between arguments, and letters may stand together or at their value, as in -Aw and
// -nshop, as kubectl has it. What it does not know it leaves alone.
func arrange(verbs []*verb, args []string) []string {
	before, args := beforeVerb(verbs, args)
	if len(args) == 0 {
		return before
	}
	i := slices.IndexFunc(verbs, func(v *verb) bool { return v.name == args[0] })
	if i < 0 {
		return append(before, args...)
	}
	out := append([]string{args[0]}, before...)
	if verbs[i].command {
		return append(out, args[1:]...)
	}
	var rest []string
	for args = args[1:]; len(args) > 0; {
		switch arg := args[0]; {
		case arg == "--":
			rest = append(rest, args[1:]...)
			args = nil
		case len(arg) > 1 && arg[0] == '-':
			var flags []string
			flags, args = verbs[i].flags(args)
			out = append(out, flags...)
		default:
			rest = append(rest, arg)
			args = args[1:]
		}
	}
	if len(rest) > 0 {
		out = append(append(out, "--"), rest...)
	}
	return out
}

// beforeVerb are the flags before the verb that say which appliance and which namespace
// it is about.
func beforeVerb(verbs []*verb, args []string) (flags, rest []string) {
	common := &verb{options: append(connectOptions(), namespaceOption())}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		name, _, _ := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		known := slices.ContainsFunc(common.options, func(o *option) bool {
			return o.name == name || o.letter != "" && strings.HasPrefix(name, o.letter) && !strings.HasPrefix(args[0], "--")
		})
		if !known {
			break
		}
		var found []string
		found, args = common.flags(args)
		flags = append(flags, found...)
	}
	return flags, args
}

// flags reads the flag, or the letters, that args begin with.
func (v *verb) flags(args []string) (flags, rest []string) {
	arg, rest := args[0], args[1:]
	long, isLong := strings.CutPrefix(arg, "--")
	if isLong {
		return v.flag(long, arg, rest)
	}
	letters := arg[1:]
	for letters != "" {
		o := v.lettered(letters[:1])
		if o == nil {
			// A long name with one dash, or none of ours: package flag says so.
			found, rest := v.flag(letters, "-"+letters, rest)
			return append(flags, found...), rest
		}
		value, given := strings.CutPrefix(letters[1:], "=")
		switch {
		case o.arg == "" && !given:
			flags = append(flags, "--"+o.name)
			letters = letters[1:]
			continue
		case value != "" || given:
			return append(flags, "--"+o.name+"="+value), rest
		case o.optional || len(rest) == 0:
			return append(flags, "--"+o.name), rest
		}
		return append(flags, "--"+o.name+"="+rest[0]), rest[1:]
	}
	return flags, rest
}

// flag reads a flag that has a long name; as is how it was written.
func (v *verb) flag(long, as string, rest []string) (flags, left []string) {
	name, _, given := strings.Cut(long, "=")
	if !v.has(name) || given {
		return []string{as}, rest
	}
	if o := v.option(name); o.arg == "" || o.optional || len(rest) == 0 {
		return []string{as}, rest
	}
	return []string{"--" + name + "=" + rest[0]}, rest[1:]
}

// lettered is the option with a letter, or nil.
func (v *verb) lettered(letter string) *option {
	for _, o := range v.options {
		if o.letter == letter {
			return o
		}
	}
	return nil
}
