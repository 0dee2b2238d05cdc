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

// Verb is a command of svcctl. All verbs are below the root, "svcctl". A verb below another verb than the root has a name of several words, such as
// "announce drain".
type Verb struct {
	Name     string
	Summary  string // one line for the list of verbs
	Group    string // the heading in the list of verbs; "" hides the verb
	Verbs    []*Verb
	Args     string // arguments in the usage line; "" if there are none
	About    string // paragraphs of the help text
	Options  []*Option
	Examples []Example
	Exits    string // the meaning of the exit codes for this verb, one per line
	Words    []string
	// Command is set when the first argument is another program's command. All later arguments and flags then belong to it.
	Command bool
	Run     func(ctx context.Context, env *Env, v *Verb, args []string) error // nil if one of Verbs must be given
}

// Word returns the last word of the name, which identifies the verb below its parent.
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

// Find returns the verb below v that words select, and the remaining words.
func (v *Verb) Find(words []string) (*Verb, []string) {
	if len(words) > 0 {
		if sub := v.Below(words[0]); sub != nil {
			return sub.Find(words[1:])
		}
	}
	return v, words
}

// Example is a command line and its purpose.
type Example [2]string // the purpose, and the command line

// Describe sets the help texts of v and of the verbs below it. texts has sections "## NAME: ARGS", each with a summary, paragraphs, "Examples:" and
// "Exit codes:". An About that is already set is appended to the paragraphs.
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

// Option returns the option with the given name. It panics if the verb has none.
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

// Check returns an error for flags that were repeated but take one value, and for values that their options do not allow.
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

// helpVerbs writes the verbs below v, under their group headings.
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

// helpOptions writes the options under their group headings, in the order of Options.
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

// List returns the values of an option that can be repeated or have a comma-separated list.
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

// groupWords is the group, and so the help heading, of verbs below a verb other than the root.
const groupWords = "Words"

// Words sets the group of verbs that are below another verb, and returns them.
func Words(verbs ...*Verb) []*Verb {
	for _, v := range verbs {
		v.Group = groupWords
	}
	return verbs
}

// The output formats for objects.
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

// Option is one flag of a verb. It stores all given values without checking them, so that Check can report all problems together.
type Option struct {
	Name   string
	Letter string // a one-letter name, "" for none
	Arg    string // placeholder for the value in help; "" for a switch
	Usage  string
	Def    string   // the default, as shown in help; "" if there is none
	Env    string   // the environment variable used if the flag is not given
	Key    string   // its key in the configuration file (--config)
	Group  string   // the heading in help
	Words  []string // the possible or suggested values
	// Strict is set when only the values in Words are valid.
	Strict bool
	Number [2]int  // minimum and maximum of a number
	Bounds *Bounds // limits of a duration
	// Optional is set when the flag can be given without its value, like a switch.
	Optional bool
	// Repeats is set when the flag can be given several times.
	Repeats bool
	Texts   []string // the given values, in order
}

// check returns an error if the value is not allowed by Words, Number or Bounds.
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

// Int returns the value of an option with Number, after Check.
func (o *Option) Int() int {
	n, _ := strconv.Atoi(o.Text())
	return n
}

// Duration returns the value of an option with Bounds, after Check.
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

// Text returns the last given value, or the default if there is none.
func (o *Option) Text() string {
	if len(o.Texts) == 0 {
		return o.Def
	}
	return o.Texts[len(o.Texts)-1]
}

// Given returns the last given value, "" if there is none.
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

// IsBoolFlag reports whether the flag needs no value. It is an optional method of flag.Value.
func (o *Option) IsBoolFlag() bool { return o.Arg == "" || o.Optional }

const (
	GroupWhich  = "Which objects"
	GroupHow    = "How to do it"
	GroupOutput = "What to print"
)

// OutputOption returns the option -o with these formats; the first is the default.
func OutputOption(words ...string) *Option {
	return &Option{Name: "output", Letter: "o", Arg: strings.Join(words, "|"), Def: words[0], Words: words, Strict: true, Group: GroupOutput, Usage: "form of the output"}
}

// Bounds are the limits of a duration. If Step is not 0, the duration must be a multiple of it. As describes the limits in errors.
type Bounds struct {
	Least, Most, Step time.Duration
	As                string
}

// Wait holds the bounds of a timeout. A request to the appliance can wait for at most an hour.
var Wait = &Bounds{Least: 1, Most: time.Hour, As: "500ms, 30s or 2m, at most 1h"}

// Read parses the value of the option name as a duration. The error is a UsageError.
func (b *Bounds) Read(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < b.Least || d > b.Most || d%max(b.Step, 1) != 0 {
		return 0, Usagef("--%s %q: want a duration as %s", name, text, b.As)
	}
	return d, nil
}

// NormalizeArgs reorders a command line for package flag: the words of the verb, its flags as --name=value, then its arguments. On the command line,
// flags can be before the verb, between its words and between arguments, and one-letter flags can be combined or joined with their value (-Aw,
// -nshop), as in kubectl. common has the flags that are allowed before the verb. Unknown words and flags are left as they are.
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

// Descend returns the verb below v that args select, the flags before and between its words, and the rest of args. Flags before the first word must
// be options of common. Flags after a word must be options of the verb selected so far, or of a verb directly below it.
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

// Flags parses the flag, or the combined one-letter flags, at the start of args. It returns them as --name=value, and the rest of args.
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

// lettered returns the option with a one-letter name, nil if there is none.
func (v *Verb) lettered(letter string) *Option {
	for _, o := range v.Options {
		if o.Letter == letter {
			return o
		}
	}
	return nil
}
