package main

import (
	"slices"
	"strings"
)

// normalizeArgs puts a command line into the order that package flag reads: the words of the verb, its
// flags as --name=value, then its arguments. So flags may stand anywhere, before the verb, between its words
// and between arguments, and letters may stand together or at their value, as in -Aw and
// -nshop, as kubectl has it. Unknown words and flags stay as they are.
func normalizeArgs(root *verb, args []string) []string {
	common := &verb{options: append(connectOptions(), namespaceOption())}
	v, flags, args := common.descend(root, args)
	if v == root {
		return args
	}
	out := append(strings.Fields(v.name), flags...)
	if v.command {
		return append(out, args...)
	}
	var rest []string
	for len(args) > 0 {
		switch arg := args[0]; {
		case arg == "--":
			rest = append(rest, args[1:]...)
			args = nil
		case len(arg) > 1 && arg[0] == '-':
			var flags []string
			flags, args = v.flags(args)
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

// descend returns the verb below v that args name, the flags before and between its words, which are those of common,
// and the rest.
func (common *verb) descend(v *verb, args []string) (found *verb, flags, rest []string) {
	for rest = args; len(rest) > 0; {
		if sub := v.below(rest[0]); sub != nil {
			all := &verb{options: slices.Clone(sub.options)}
			for _, s := range sub.verbs {
				all.options = append(all.options, s.options...)
			}
			found, more, rest := all.descend(sub, rest[1:])
			return found, append(flags, more...), rest
		}
		name, _, _ := strings.Cut(strings.TrimLeft(rest[0], "-"), "=")
		if len(v.verbs) == 0 || len(rest[0]) < 2 || rest[0][0] != '-' || !common.has(name) && (strings.HasPrefix(rest[0], "--") || name == "" || common.lettered(name[:1]) == nil) {
			break
		}
		var more []string
		more, rest = common.flags(rest)
		flags = append(flags, more...)
	}
	return v, flags, rest
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
