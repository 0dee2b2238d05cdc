package cli

import (
	"slices"
	"strings"
	"time"
)

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
	// optional is set when it may stand without its value, as a switch.
	Optional bool
	// repeats is set when it may be given several times.
	Repeats bool
	Texts   []string // what it was given, in order
}

// What an option's value is, for completion.
const (
	ArgFile = "FILE"
	ArgDir  = "DIR"
	ArgPath = "PATH"
)

// IsSet reports whether the flag was given.
func (o *Option) IsSet() bool { return o.Texts != nil }

// Text is the value given last, else the default.
func (o *Option) Text() string {
	if len(o.Texts) == 0 {
		return o.Def
	}
	return o.Texts[len(o.Texts)-1]
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

// CheckOutput judges the verb's -o.
func CheckOutput(vb *Verb) error {
	o := vb.Option("output")
	if !slices.Contains(o.Words, o.Text()) {
		return Usagef("-o %q: want one of %s", o.Text(), strings.Join(o.Words, ", "))
	}
	return nil
}

const (
	GroupWhich  = "Which objects"
	GroupHow    = "How to do it"
	GroupOutput = "What to print"
)

// OutputOption is -o.
func OutputOption(words ...string) *Option {
	return &Option{Name: "output", Letter: "o", Arg: strings.Join(words, "|"), Def: words[0], Words: words, Group: GroupOutput, Usage: "form of the output"}
}

// maxTimeout is the appliance's limit of a wait.
const maxTimeout = time.Hour

// Duration reads the value of an option. The error is a usageError.
func Duration(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTimeout {
		return 0, Usagef("--%s %q: want a duration as 500ms, 30s or 2m, at most 1h", name, text)
	}
	return d, nil
}
