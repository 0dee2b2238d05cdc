package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"svcctl.io/svcctl/cmd/svcctl/output"
)

// verb is a verb, or with several words one below another verb, as "announce drain". The root, "svcctl", has all verbs
// below it.
type verb struct {
	name     string
	summary  string // one line for the list of verbs
	group    string // the heading in the list of verbs; "": not listed
	verbs    []*verb
	args     string // arguments in the usage line; "": it takes none
	about    string // paragraphs
	options  []*option
	examples []example
	exits    string // what the exit codes mean here, one a line
	words    []string
	// command is set when the first argument is a command, to which everything after it belongs.
	command bool
	run     func(ctx context.Context, v *verb, args []string) error // nil: one of verbs is required
}

// word returns the last word of the name, which finds the verb below its parent.
func (v *verb) word() string { return v.name[strings.LastIndex(v.name, " ")+1:] }

// line returns the command line of the verb.
func (v *verb) line() string {
	if v.name == rootName {
		return rootName
	}
	return rootName + " " + v.name
}

// below returns the verb of a word directly below v; nil: there is none.
func (v *verb) below(word string) *verb {
	for _, sub := range v.verbs {
		if sub.word() == word {
			return sub
		}
	}
	return nil
}

// find returns the verb that words name, and the words after its name.
func (v *verb) find(words []string) (*verb, []string) {
	if len(words) > 0 {
		if sub := v.below(words[0]); sub != nil {
			return sub.find(words[1:])
		}
	}
	return v, words
}

// example is a command line and what it is good for.
type example struct{ what, line string }

// option is the option of that name, which the verb must have.
func (v *verb) option(name string) *option {
	for _, o := range v.options {
		if o.name == name {
			return o
		}
	}
	panic(fmt.Sprintf("svcctl: verb %s has no option %s", v.name, name))
}

// has reports whether the verb has an option of that name.
func (v *verb) has(name string) bool {
	for _, o := range v.options {
		if o.name == name {
			return true
		}
	}
	return false
}

// givenOnce refuses a flag that takes one value and was given several times.
func (v *verb) givenOnce() error {
	var problems []error
	for _, o := range v.options {
		switch {
		case o.repeats || len(o.texts) < 2:
		case o.arg == "" || o.optional && !slices.ContainsFunc(o.texts, func(text string) bool { return text != "true" }):
			problems = append(problems, fmt.Errorf("--%s is given %d times: give it once", o.name, len(o.texts)))
		default:
			problems = append(problems, fmt.Errorf("--%s is given %d times (%s), and accepts one value: leave the others out", o.name, len(o.texts), strings.Join(o.texts, ", ")))
		}
	}
	if len(problems) > 0 {
		return &usageError{problems: problems}
	}
	return nil
}

// flagNames are the long names of the verb's options.
func (v *verb) flagNames() []string {
	var names []string
	for _, o := range v.options {
		names = append(names, o.name)
	}
	return names
}

// cliFlags are the verb's options as package cli takes them.
func (v *verb) cliFlags() []cli.Flag {
	var flags []cli.Flag
	for _, o := range v.options {
		flags = append(flags, cliFlag{o})
	}
	return flags
}

// help is the verb's help text.
func (v *verb) help() string {
	var b strings.Builder
	usage := v.line()
	fmt.Fprintf(&b, "%s: %s\n\n", usage, v.summary)
	switch {
	case v.args != "":
		usage += " " + v.args
	case v.run == nil:
		usage += " WORD [FLAGS]"
	default:
		usage += " [FLAGS]" // no verb has both
	}
	fmt.Fprintf(&b, "Usage: %s\n", usage)
	for paragraph := range strings.SplitSeq(strings.Trim(v.about, "\n"), "\n\n") {
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
	if len(v.examples) > 0 {
		b.WriteString("\nExamples:\n")
		for i, e := range v.examples {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(output.Wrap(e.what, "  # ", output.HelpWidth))
			fmt.Fprintf(&b, "  %s\n", e.line)
		}
	}
	if v.exits != "" {
		fmt.Fprintf(&b, "\nExit codes:\n%s\n", v.exits)
	}
	return b.String()
}

// helpVerbs writes the verbs below v, under the headings of their groups.
func (v *verb) helpVerbs(b *strings.Builder) {
	group := ""
	for _, sub := range v.verbs {
		if sub.group == "" {
			continue
		}
		if sub.group != group {
			group = sub.group
			fmt.Fprintf(b, "\n%s:\n", group)
		}
		fmt.Fprintf(b, "  %s%s\n", output.Pad(sub.word(), 15), sub.summary)
	}
}

// helpOptions writes the options under their headings, in the order of the table.
func (v *verb) helpOptions(b *strings.Builder) {
	group := ""
	for i, o := range v.options {
		if i == 0 || o.group != group {
			group = o.group
			fmt.Fprintf(b, "\n%s:\n", group)
		}
		left := "  --" + o.name
		if o.letter != "" {
			left = "  -" + o.letter + ", --" + o.name
		}
		switch {
		case o.optional:
			left += "[=" + o.arg + "]"
		case o.arg != "":
			left += " " + o.arg
		}
		usage := o.usage
		if o.def != "" {
			usage += " (default: " + o.def + ")"
		}
		fmt.Fprintf(b, "%s\n%s", left, output.Wrap(usage, "        ", output.HelpWidth))
	}
}

// list are the values of an option that may be given several times or with commas.
func (v *verb) list(name string) []string {
	var all []string
	for _, text := range v.option(name).texts {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}
