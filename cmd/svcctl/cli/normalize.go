package cli

import (
	"slices"
	"strings"
)

// NormalizeArgs puts a command line into the order that package flag reads: the words of the verb, its
// flags as --name=value, then its arguments. So flags may stand anywhere, before the verb, between its words
// and between arguments, and letters may stand together or at their value, as in -Aw and
// -nshop, as kubectl has it. Flags before the verb are those of common. Unknown words and flags stay as they are.
func NormalizeArgs(root *Verb, common []*Option, args []string) []string {
	v, flags, args := (&Verb{Options: common}).Descend(root, args)
	if v == root {
		return args
	}
	out := append(strings.Fields(v.Name), flags...)
	if v.Command {
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
			flags, args = v.Flags(args)
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

// Descend returns the verb below v that args name, the flags before and between its words, which are those of common,
// and the rest.
func (common *Verb) Descend(v *Verb, args []string) (found *Verb, flags, rest []string) {
	for rest = args; len(rest) > 0; {
		if sub := v.Below(rest[0]); sub != nil {
			all := &Verb{Options: slices.Clone(sub.Options)}
			for _, s := range sub.Verbs {
				all.Options = append(all.Options, s.Options...)
			}
			found, more, rest := all.Descend(sub, rest[1:])
			return found, append(flags, more...), rest
		}
		name, _, _ := strings.Cut(strings.TrimLeft(rest[0], "-"), "=")
		if len(v.Verbs) == 0 || len(rest[0]) < 2 || rest[0][0] != '-' || !common.Has(name) && (strings.HasPrefix(rest[0], "--") || name == "" || common.lettered(name[:1]) == nil) {
			break
		}
		var more []string
		more, rest = common.Flags(rest)
		flags = append(flags, more...)
	}
	return v, flags, rest
}

// Flags reads the flag, or the letters, that args begin with.
func (v *Verb) Flags(args []string) (flags, rest []string) {
	arg, rest := args[0], args[1:]
	if long, isLong := strings.CutPrefix(arg, "--"); isLong {
		return v.flag(long, arg, rest)
	}
	letters := arg[1:]
	for letters != "" {
		o := v.lettered(letters[:1])
		if o == nil {
			// A long name with one dash, or an unknown one: package flag refuses it.
			found, rest := v.flag(letters, "-"+letters, rest)
			return append(flags, found...), rest
		}
		switch value, given := strings.CutPrefix(letters[1:], "="); {
		case o.Arg == "" && !given:
			flags = append(flags, "--"+o.Name)
			letters = letters[1:]
			continue
		case value != "" || given:
			return append(flags, "--"+o.Name+"="+value), rest
		case o.Optional || len(rest) == 0:
			return append(flags, "--"+o.Name), rest
		}
		return append(flags, "--"+o.Name+"="+rest[0]), rest[1:]
	}
	return flags, rest
}

// flag reads a flag that has a long name; as is how it was written.
func (v *Verb) flag(long, as string, rest []string) (flags, left []string) {
	name, _, given := strings.Cut(long, "=")
	if !v.Has(name) || given {
		return []string{as}, rest
	}
	if o := v.Option(name); o.Arg == "" || o.Optional || len(rest) == 0 {
		return []string{as}, rest
	}
	return []string{"--" + name + "=" + rest[0]}, rest[1:]
}

// lettered is the option with a letter, or nil.
func (v *Verb) lettered(letter string) *Option {
	for _, o := range v.Options {
		if o.Letter == letter {
			return o
		}
	}
	return nil
}
