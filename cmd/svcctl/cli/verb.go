package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/cmd/svcctl/output"
)

// Verb is a command of svcctl. One whose name has several words, as "announce drain", is below another verb. The root,
// "svcctl", has all verbs below it.
type Verb struct {
	Name     string
	Summary  string // one line for the list of verbs
	Group    string // the heading in the list of verbs; "": not listed
	Verbs    []*Verb
	Args     string // arguments in the usage line; "": it takes none
	About    string // paragraphs
	Options  []*Option
	Examples []Example
	Exits    string // what the exit codes mean here, one a line
	Words    []string
	// Command is set when the first argument is a command, to which everything after it belongs.
	Command bool
	Run     func(ctx context.Context, env *Env, v *Verb, args []string) error // nil: one of Verbs is required
}

// Word returns the last word of the name, by which Below finds the verb.
func (v *Verb) Word() string { return v.Name[strings.LastIndex(v.Name, " ")+1:] }

// Line returns the command line of the verb.
func (v *Verb) Line() string {
	if v.Name == RootName {
		return RootName
	}
	return RootName + " " + v.Name
}

// Below returns the verb with this word directly below v; nil if there is none.
func (v *Verb) Below(word string) *Verb {
	for _, sub := range v.Verbs {
		if sub.Word() == word {
			return sub
		}
	}
	return nil
}

// Find returns the verb that words name, and the words after its name.
func (v *Verb) Find(words []string) (*Verb, []string) {
	if len(words) > 0 {
		if sub := v.Below(words[0]); sub != nil {
			return sub.Find(words[1:])
		}
	}
	return v, words
}

// Example is a command line and its purpose.
type Example [2]string // what it is good for, and the command line

// Describe sets the texts of the verb and of those below it from sections "## NAME: ARGS", each with a summary, paragraphs, "Examples:"
// and "Exit codes:". An About that is set already is appended to the paragraphs.
func (v *Verb) Describe(texts string) {
	for section := range strings.SplitSeq(texts, "\n## ") {
		head, text, _ := strings.Cut(section, "\n")
		name, args, _ := strings.Cut(head, ": ")
		of, _ := v.Find(strings.Fields(name))
		if of.Name != name {
			continue
		}
		of.Args = args
		of.Summary, text, _ = strings.Cut(text, "\n")
		text, of.Exits, _ = strings.Cut(text, "\nExit codes:\n")
		text, examples, _ := strings.Cut(text, "\nExamples:\n")
		for _, one := range strings.Split("\n"+examples, "\n  # ")[1:] {
			purpose, line, _ := strings.Cut(one, "\n")
			of.Examples = append(of.Examples, Example{purpose, strings.TrimSpace(line)})
		}
		if of.Exits = strings.TrimRight(of.Exits, "\n"); of.About != "" {
			text += "\n" + of.About
		}
		of.About = text
	}
}

// Option returns the option with a name. It panics if the verb has none.
func (v *Verb) Option(name string) *Option {
	for _, o := range v.Options {
		if o.Name == name {
			return o
		}
	}
	panic(fmt.Sprintf("svcctl: verb %s has no option %s", v.Name, name))
}

// Has reports whether the verb has an option of that name.
func (v *Verb) Has(name string) bool {
	return slices.ContainsFunc(v.Options, func(o *Option) bool { return o.Name == name })
}

// Check refuses flags with one value that were given several times, and values that their options do not allow.
func (v *Verb) Check() error {
	var problems []error
	for _, o := range v.Options {
		switch {
		case len(o.Texts) == 1:
			problems = append(problems, Flatten(o.check())...)
		case o.Repeats || len(o.Texts) == 0:
		case o.Arg == "" || o.Optional && !slices.ContainsFunc(o.Texts, func(text string) bool { return text != "true" }):
			problems = append(problems, fmt.Errorf("--%s is given %d times: give it once", o.Name, len(o.Texts)))
		default:
			problems = append(problems, fmt.Errorf("--%s is given %d times (%s), and accepts one value: leave the others out", o.Name, len(o.Texts), strings.Join(o.Texts, ", ")))
		}
	}
	if len(problems) > 0 {
		return &UsageError{Problems: problems}
	}
	return nil
}

// FlagNames returns the long names of the verb's options.
func (v *Verb) FlagNames() []string {
	var names []string
	for _, o := range v.Options {
		names = append(names, o.Name)
	}
	return names
}

// Help returns the verb's help text.
func (v *Verb) Help() string {
	var b strings.Builder
	usage := v.Line()
	fmt.Fprintf(&b, "%s: %s\n\n", usage, v.Summary)
	switch {
	case v.Args != "":
		usage += " " + v.Args
	case v.Run == nil:
		usage += " WORD [FLAGS]"
	default:
		usage += " [FLAGS]" // no verb has both
	}
	fmt.Fprintf(&b, "Usage: %s\n", usage)
	for paragraph := range strings.SplitSeq(strings.Trim(v.About, "\n"), "\n\n") {
		if paragraph == "" {
			continue
		}
		if strings.HasPrefix(paragraph, "  ") { // a table, broken by hand
			fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(paragraph, "\n"))
			continue
		}
		fmt.Fprintf(&b, "\n%s", output.Wrap(paragraph, "", output.HelpWidth))
	}
	v.helpVerbs(&b)
	v.helpOptions(&b)
	if len(v.Examples) > 0 {
		b.WriteString("\nExamples:\n")
		for i, e := range v.Examples {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(output.Wrap(e[0], "  # ", output.HelpWidth))
			fmt.Fprintf(&b, "  %s\n", e[1])
		}
	}
	if v.Exits != "" {
		fmt.Fprintf(&b, "\nExit codes:\n%s\n", v.Exits)
	}
	if v.Name != RootName { // which has it at its head
		b.WriteString("\n`svcctl status` finds a problem, `explain` gives the reason, `trace` proves it.\n")
	}
	return b.String()
}

// helpVerbs writes the verbs below v, under the headings of their groups.
func (v *Verb) helpVerbs(b *strings.Builder) {
	group := ""
	for _, sub := range v.Verbs {
		if sub.Group == "" {
			continue
		}
		if sub.Group != group {
			group = sub.Group
			fmt.Fprintf(b, "\n%s:\n", group)
		}
		fmt.Fprintf(b, "  %s%s\n", output.Pad(sub.Word(), 15), sub.Summary)
	}
}

// helpOptions writes the options under their headings, in the order of the table.
func (v *Verb) helpOptions(b *strings.Builder) {
	group := ""
	for i, o := range v.Options {
		if i == 0 || o.Group != group {
			group = o.Group
			fmt.Fprintf(b, "\n%s:\n", group)
		}
		left := "  --" + o.Name
		if o.Letter != "" {
			left = "  -" + o.Letter + ", --" + o.Name
		}
		switch {
		case o.Optional:
			left += "[=" + o.Arg + "]"
		case o.Arg != "":
			left += " " + o.Arg
		}
		usage := o.Usage
		if o.Def != "" {
			usage += " (default: " + o.Def + ")"
		}
		fmt.Fprintf(b, "%s\n%s", left, output.Wrap(usage, "        ", output.HelpWidth))
	}
}

// List returns the values of an option that may be given several times or with commas.
func (v *Verb) List(name string) []string {
	var all []string
	for _, text := range v.Option(name).Texts {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

const RootName = "svcctl"

// groupWords is the group of verbs that are below another verb: their heading in its help.
const groupWords = "Words"

// Words sets the group of verbs that are below another verb, and returns them.
func Words(verbs ...*Verb) []*Verb {
	for _, v := range verbs {
		v.Group = groupWords
	}
	return verbs
}

// The forms that objects are printed in.
const (
	FormText     = "text"
	FormTable    = "table"
	FormWide     = "wide"
	FormYAML     = "yaml"
	FormJSON     = "json"
	FormName     = "name"
	FormJSONPath = "jsonpath"
	FormColumns  = "custom-columns"
)

// Option is one flag of a verb. It keeps every text it is given and judges none of
// them, so that all problems are printed together.
type Option struct {
	Name   string
	Letter string // a one-letter name, "" for none
	Arg    string // what stands for the value in help; "" for a switch
	Usage  string
	Def    string   // the default as help shows it; "" for none
	Env    string   // the environment variable that stands in for it
	Key    string   // its key in the file given with --config
	Group  string   // the heading it stands under in help
	Words  []string // the values it takes, when they are few
	// Strict is set when no values other than Words are valid.
	Strict bool
	Number [2]int  // the least and the greatest value of a number
	Bounds *Bounds // of a duration
	// Optional is set when it may stand without its value, as a switch.
	Optional bool
	// Repeats is set when it may be given several times.
	Repeats bool
	Texts   []string // the values that were given, in order
}

// check refuses a value that is outside the option's words or bounds.
func (o *Option) check() error {
	text := o.Text()
	switch n, err := strconv.Atoi(text); {
	case o.Strict && !slices.Contains(o.Words, text):
		flag := "--" + o.Name
		if o.Name == "output" {
			flag = "-o"
		}
		return fmt.Errorf("%s %q: want one of %s", flag, text, strings.Join(o.Words, ", "))
	case o.Number[1] > 0 && (err != nil || n < o.Number[0] || n > o.Number[1]):
		return fmt.Errorf("--%s %q: want a number from %d to %d", o.Name, text, o.Number[0], o.Number[1])
	case o.Bounds != nil:
		_, err = o.Bounds.Read(o.Name, text)
		return err
	}
	return nil
}

// Int returns the value of an option with a Number that Check has accepted.
func (o *Option) Int() int {
	n, _ := strconv.Atoi(o.Text())
	return n
}

// Duration returns the value of an option with Bounds that Check has accepted.
func (o *Option) Duration() time.Duration {
	d, _ := time.ParseDuration(o.Text())
	return d
}

// The values of Option.Arg for which the shell completes paths.
const (
	ArgFile = "FILE"
	ArgDir  = "DIR"
	ArgPath = "PATH"
)

// IsSet reports whether the flag was given.
func (o *Option) IsSet() bool { return o.Texts != nil }

// Text returns the value that was given last, else the default.
func (o *Option) Text() string {
	if len(o.Texts) == 0 {
		return o.Def
	}
	return o.Texts[len(o.Texts)-1]
}

// Given returns the value that was given last, "" if none was.
func (o *Option) Given() string {
	if !o.IsSet() {
		return ""
	}
	return o.Text()
}

// On reports whether a switch was given, and not as --switch=false.
func (o *Option) On() bool { return o.IsSet() && o.Text() == "true" }

// Set implements flag.Value.
func (o *Option) Set(text string) error {
	o.Texts = append(o.Texts, text)
	return nil
}

// String implements flag.Value.
func (o *Option) String() string { return strings.Join(o.Texts, ",") }

// IsBoolFlag reports to package flag whether the flag needs no value.
func (o *Option) IsBoolFlag() bool { return o.Arg == "" || o.Optional }

const (
	GroupWhich  = "Which objects"
	GroupHow    = "How to do it"
	GroupOutput = "What to print"
)

// OutputOption returns -o with the given forms.
func OutputOption(words ...string) *Option {
	return &Option{Name: "output", Letter: "o", Arg: strings.Join(words, "|"), Def: words[0], Words: words, Strict: true, Group: GroupOutput, Usage: "form of the output"}
}

// Bounds are the limits of a duration, in steps of Step if that is not 0. As describes them in errors, with examples.
type Bounds struct {
	Least, Most, Step time.Duration
	As                string
}

// Wait has the bounds of a timeout: the appliance lets a request wait for an hour at most.
var Wait = &Bounds{Least: 1, Most: time.Hour, As: "500ms, 30s or 2m, at most 1h"}

// Read reads a duration, the value of an option. The error is a UsageError.
func (b *Bounds) Read(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < b.Least || d > b.Most || d%max(b.Step, 1) != 0 {
		return 0, Usagef("--%s %q: want a duration as %s", name, text, b.As)
	}
	return d, nil
}

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

// flag parses a flag with a long name; as is its spelling on the command line, for errors.
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

// lettered returns the option with a letter, or nil.
func (v *Verb) lettered(letter string) *Option {
	for _, o := range v.Options {
		if o.Letter == letter {
			return o
		}
	}
	return nil
}
