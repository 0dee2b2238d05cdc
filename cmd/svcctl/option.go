package main

import (
	"flag"
	"strings"

	"github.com/urfave/cli/v2"
)

// option is one flag of a verb. It keeps every text it is given and judges none of
// them, so that all problems can be told together.
type option struct {
	name   string
	letter string // a one-letter name, "" for none
	arg    string // what stands for the value in help; "" for a switch
	usage  string
	def    string   // the default as help shows it; "" for none
	env    string   // the environment variable that stands in for it
	key    string   // its key in the file given with --config
	group  string   // the heading it stands under in help
	words  []string // the values it takes, when they are few
	// optional is set when it may stand without its value, as a switch.
	optional bool
	// repeats is set when it may be given several times.
	repeats bool
	texts   []string // what it was given, in order
}

// What an option's value is, for completion.
const (
	argFile = "FILE"
	argDir  = "DIR"
	argPath = "PATH"
)

// isSet reports whether the flag was given.
func (o *option) isSet() bool { return o.texts != nil }

// text is the value given last, else the default.
func (o *option) text() string {
	if len(o.texts) == 0 {
		return o.def
	}
	return o.texts[len(o.texts)-1]
}

// on reports whether a switch was given, and not as --switch=false.
func (o *option) on() bool { return o.isSet() && o.text() == "true" }

// names are the long name and the letter.
func (o *option) names() []string {
	if o.letter == "" {
		return []string{o.name}
	}
	return []string{o.name, o.letter}
}

// cliFlag makes an option a flag of package cli.
type cliFlag struct{ *option }

var _ cli.Flag = cliFlag{}

// Apply implements cli.Flag.
func (f cliFlag) Apply(set *flag.FlagSet) error {
	for _, name := range f.names() {
		set.Var(optionValue{f.option}, name, f.usage)
	}
	return nil
}

// Names implements cli.Flag. The letter is not among them: package cli refuses a
// flag that is given by two of its names, which is fine here.
func (f cliFlag) Names() []string { return []string{f.name} }

// IsSet implements cli.Flag.
func (f cliFlag) IsSet() bool { return f.isSet() }

// String implements cli.Flag.
func (f cliFlag) String() string { return "--" + f.name }

// optionValue makes an option the value of a flag of package flag.
type optionValue struct{ o *option }

// Set implements flag.Value.
func (v optionValue) Set(text string) error {
	v.o.texts = append(v.o.texts, text)
	return nil
}

// String implements flag.Value.
func (v optionValue) String() string {
	if v.o == nil {
		return ""
	}
	return strings.Join(v.o.texts, ",")
}

// IsBoolFlag reports to package flag whether it needs no value.
func (v optionValue) IsBoolFlag() bool { return v.o.arg == "" || v.o.optional }
