package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"svcctl.io/svcctl/cmd/svcctl/box"
	"svcctl.io/svcctl/cmd/svcctl/change"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// run runs the verb that args select, prints its errors to stderr and returns the exit code.
func run(ctx context.Context, env *cli.Env, args []string) int {
	root := root()
	err := app(env, root).RunContext(ctx, append([]string{cli.RootName}, cli.NormalizeArgs(root, append(settings.ConnectOptions(), settings.NamespaceOption()), args)...))
	out := env.Err
	if env.Log != nil { // after serve: a reader of its log that is slow must not keep it from ending
		out = env.Log
	}
	for _, line := range cli.Lines(err) {
		fmt.Fprintf(out, "svcctl: %s\n", line)
	}
	env.Log.Flush(box.LastWords)
	return cli.ExitCode(err)
}

// app returns the command line interface with all verbs. Help and errors are those of package cli instead of urfave/cli.
func app(env *cli.Env, root *cli.Verb) *urfave.App {
	return &urfave.App{
		Name:            cli.RootName,
		Flags:           flags(root),
		Commands:        commandsOf(env, root),
		HideHelp:        true, // flag.ErrHelp comes to usage, which shows ours
		HideVersion:     true,
		Writer:          env.Out,
		ErrWriter:       env.Err,
		ExitErrHandler:  func(*urfave.Context, error) {}, // main prints and exits
		OnUsageError:    usage(env, root),
		Action:          func(c *urfave.Context) error { return bare(env, root, c.Args().Slice()) },
		CommandNotFound: func(*urfave.Context, string) {},
	}
}

// commandsOf converts the verbs below v for package urfave/cli.
func commandsOf(env *cli.Env, v *cli.Verb) (commands []*urfave.Command) {
	for _, v := range v.Verbs {
		commands = append(commands, &urfave.Command{
			Name:         v.Word(),
			Usage:        v.Summary,
			Category:     v.Group,
			Flags:        flags(v),
			Subcommands:  commandsOf(env, v),
			HideHelp:     true,
			OnUsageError: usage(env, v),
			Action:       func(c *urfave.Context) error { return act(c.Context, env, v, c.Args().Slice()) },
		})
	}
	return commands
}

// act runs a verb, after the checks that are common to all verbs.
func act(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := v.Check(); err != nil {
		return err
	}
	switch {
	case v.Has("all-namespaces") && v.Option("all-namespaces").On() && v.Option("namespace").IsSet():
		return cli.Usagef("-A means the objects of all namespaces, and -n %s those of one: leave one of them out", v.Option("namespace").Text())
	case len(v.Verbs) > 0 && (len(args) > 0 || v.Run == nil):
		return unknown(v, args)
	case v.Args == "" && len(args) > 0:
		return cli.Usagef("%s takes no argument, and %q is one: run `%s --help`", v.Name, args[0], v.Line())
	}
	return v.Run(ctx, env, v, args)
}

// unknown returns the error for a command line without a verb below v, or with one that does not exist.
func unknown(v *cli.Verb, args []string) error {
	var names []string
	for _, sub := range v.Verbs {
		if sub.Group != "" {
			names = append(names, sub.Word())
		}
	}
	if len(args) == 0 {
		return cli.Usagef("%s does what? Give one of %s", v.Name, strings.Join(names, ", "))
	}
	return cli.Usagef("%s has no word %q: %s", v.Name, args[0], output.DidYouMean("", args[0], names, "give one of "+strings.Join(names, ", ")))
}

// usage returns the handler of flag errors for a verb. It prints help if --help was given; otherwise it returns an error that names the wrong flag.
func usage(env *cli.Env, v *cli.Verb) urfave.OnUsageErrorFunc {
	return func(_ *urfave.Context, err error, _ bool) error {
		if errors.Is(err, flag.ErrHelp) {
			return env.Print(v.Help())
		}
		who, more := v.Name, fmt.Sprintf("run `%s --help`", v.Line())
		text := err.Error()
		if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
			name = strings.TrimLeft(name, "-")
			return cli.Usagef("%s has no flag --%s: %s", who, name, output.DidYouMean("--", name, object.Texts(v.Options, func(o *cli.Option) string { return o.Name }), more))
		}
		if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
			return cli.Usagef("%s: --%s needs a value: %s", who, strings.TrimLeft(name, "-"), more)
		}
		return cli.Usagef("%s: %s: %s", who, text, more)
	}
}

// bare handles a command line without a verb, or with one that does not exist.
func bare(env *cli.Env, root *cli.Verb, args []string) error {
	if root.Option("version").IsSet() {
		return env.Print("svcctl " + env.Version + "\n")
	}
	if len(args) == 0 {
		_, _ = io.WriteString(env.Err, root.Help())
		return cli.Usagef("no verb is given: run `svcctl help`")
	}
	if now := moved[args[0]]; now != "" {
		return cli.Usagef("`svcctl %s` is %s", args[0], now)
	}
	if other := elsewhere[args[0]]; other != "" {
		return cli.Usagef("there is no verb %q: %s", args[0], other)
	}
	if _, is := resource.KindNamed(args[0]); is {
		return cli.Usagef("there is no verb %q: run `svcctl get %s`", args[0], args[0])
	}
	var names []string
	for _, v := range root.Verbs {
		// What changes something is suggested for a slip only, not for another word.
		if v.Group != groupChange || output.IsSlip(args[0], v.Name) {
			names = append(names, v.Name)
		}
	}
	return cli.Usagef("there is no verb %q: %s", args[0], output.DidYouMean("", args[0], names, "run `svcctl help`"))
}

// words is the content of words.txt. Its sections have former names of verbs, and words from other tools, each with the text to answer.
//
//go:embed words.txt
var words string

// moved maps former names of verbs to the current names. elsewhere maps words from other tools to a hint.
var moved, elsewhere = answers(1), answers(2)

// answers parses a section of words. The result maps each word to its text.
func answers(section int) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(strings.Split(words, "\n# ")[section]) {
		if list, answer, is := strings.Cut(strings.TrimSpace(line), " = "); is {
			for word := range strings.FieldsSeq(list) {
				all[word] = answer
			}
		}
	}
	return all
}

// flags converts the options of a verb to flags of urfave/cli. A one-letter name becomes a separate flag, because urfave/cli rejects a flag that is
// given under both its names.
func flags(v *cli.Verb) (all []urfave.Flag) {
	for _, o := range v.Options {
		all = append(all, &urfave.GenericFlag{Name: o.Name, Value: o})
		if o.Letter != "" {
			all = append(all, &urfave.GenericFlag{Name: o.Letter, Value: o})
		}
	}
	return all
}

// scripts holds the completion scripts of the shells. Each runs the verb completeName to get the possible next words.
//
//go:embed completion
var scripts embed.FS

func completionVerb() *cli.Verb {
	shells := []string{"bash", "zsh", "fish"}
	return &cli.Verb{
		Name:  "completion",
		Words: shells,
		Run: func(_ context.Context, env *cli.Env, _ *cli.Verb, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("completion for which shell? Give one of %s", strings.Join(shells, ", "))
			}
			script, err := scripts.ReadFile("completion/svcctl." + args[0])
			if err != nil {
				return cli.Usagef("there is no completion for %q: give one of %s", args[0], strings.Join(shells, ", "))
			}
			return env.Print(string(script))
		},
	}
}

const (
	// completeName is the name of the hidden verb that completion scripts run.
	completeName = "__complete"
	// completePatience is the maximum time for a completion.
	completePatience = 2 * time.Second
	// maxCandidates is the maximum number of names offered for completion.
	maxCandidates = 2000
	// Printed instead of candidates: the shell then completes names of files or of directories.
	completeFiles, completeDirs = ":files", ":dirs"
)

// errNothing means that nothing can be completed.
var errNothing = &cli.ExitError{Code: cli.ExitNo}

// runComplete prints the candidates of a shell completion.
func runComplete(ctx context.Context, env *cli.Env, _ *cli.Verb, words []string) error {
	if len(words) == 0 {
		return errNothing
	}
	before, current := words[:len(words)-1], words[len(words)-1]
	if name, value, joined := strings.Cut(current, "="); joined && strings.HasPrefix(name, "--") {
		before, current = append(slices.Clone(before), name+"="), value
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	candidates, err := (&completing{env: env, current: current}).candidates(ctx, before)
	if err != nil {
		return errNothing // a completion has no place for an error
	}
	for _, one := range candidates {
		if strings.HasPrefix(one, current) || one == completeFiles || one == completeDirs {
			if err := env.Print(one + "\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

// completing is the state of completing one word of a command line.
type completing struct {
	env     *cli.Env
	v       *cli.Verb
	current string // the word to complete, or, in --flag=value, the value
}

// candidates returns the possible values of the current word, given the words before it.
func (c *completing) candidates(ctx context.Context, before []string) ([]string, error) {
	root := root()
	root.Options = slices.Concat(root.Options, settings.ConnectOptions(), []*cli.Option{settings.NamespaceOption()})
	v, flags, rest := root.Descend(root, before)
	c.v = v
	args, awaits := read(v, append(flags, rest...))
	switch files := strings.Contains(v.Args, "FILE"); {
	case awaits != nil:
		return c.values(ctx, awaits)
	case strings.HasPrefix(c.current, "-"):
		return flagCandidates(v), nil
	case v.Name == "help":
		v, _ = root.Find(args)
		return candidates(v), nil
	case len(v.Verbs) > 0 && len(args) == 0:
		return candidates(v), nil
	case len(v.Words) > 0 && len(args) == 0:
		return v.Words, nil
	case strings.Contains(v.Args, "TO[:PORT]"), strings.Contains(v.Args, "ADDRESS[:PORT]") && resource.IsAddress(c.current):
		return c.addresses(ctx, false)
	case strings.Contains(v.Args, "svc/NAME") && len(args) == 0:
		return c.names(ctx, "svc", "svc/")
	case v.Name == "out" || v.Name == "in":
		t, err := resource.OneService(c.env, v, args[0])
		if err != nil {
			return nil, err
		}
		appliance, err := settings.Connect(c.env, v)
		if err != nil {
			return nil, err
		}
		return change.OutCandidates(ctx, appliance, t, args, v.Name == "in")
	case strings.Contains(v.Args, "KIND"):
		return c.objects(ctx, args)
	case strings.Contains(v.Args, "DIR") && !files:
		return []string{completeDirs}, nil
	case files:
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// candidates returns the names of the verbs below v, each with a tab and its summary.
func candidates(v *cli.Verb) (all []string) {
	for _, sub := range v.Verbs {
		if sub.Group != "" {
			all = append(all, sub.Word()+"\t"+sub.Summary)
		}
	}
	return all
}

// flagCandidates returns the flags of a verb, each with a tab and its description.
func flagCandidates(v *cli.Verb) []string {
	all := []string{"--help\texplain the verb"}
	for _, o := range v.Options {
		all = append(all, "--"+o.Name+"\t"+o.Usage)
	}
	return all
}

// values returns the possible values of an option.
func (c *completing) values(ctx context.Context, o *cli.Option) ([]string, error) {
	switch {
	case len(o.Words) > 0:
		return o.Words, nil
	case o.Name == "namespace":
		return c.names(ctx, "namespaces", "")
	case o.Name == "endpoint":
		return c.addresses(ctx, true)
	case o.Arg == cli.ArgDir:
		return []string{completeDirs}, nil
	case o.Arg == cli.ArgFile, o.Arg == cli.ArgPath, o.Arg == "FILE|DIR":
		return []string{completeFiles}, nil
	}
	return nil, errNothing
}

// addresses returns the addresses and ports of Services, or of endpoints.
func (c *completing) addresses(ctx context.Context, endpoints bool) ([]string, error) {
	appliance, err := settings.Connect(c.env, c.v)
	if err != nil {
		return nil, err
	}
	return resource.Addresses(ctx, appliance, endpoints)
}

// read sets the options of v from the words of a command line. It returns the other words, and the option whose value is to be completed next, nil if
// there is none.
func read(v *cli.Verb, words []string) (args []string, awaits *cli.Option) {
	for len(words) > 0 {
		if !strings.HasPrefix(words[0], "-") || words[0] == "-" {
			args, words = append(args, words[0]), words[1:]
			continue
		}
		flags, rest := v.Flags(words)
		for _, f := range flags {
			name, value, given := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			if !v.Has(name) {
				continue
			}
			switch o := v.Option(name); {
			case given && value == "" && len(rest) == 0 || !given && o.Arg != "" && !o.Optional:
				awaits = o // it can only be the last word
			case given:
				o.Texts = append(o.Texts, value)
			default:
				o.Texts = append(o.Texts, "true")
			}
		}
		words = rest
	}
	return args, awaits
}

// objects returns kinds to complete the first argument, and names of objects of the kind for further arguments and after "KIND/".
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
	words := resource.KindWords(func(k kind.Kind) []string { return append([]string{k.Plural}, k.ShortNames...) })
	return object.Texts(words, func(word string) string { return before + word }), nil
}

// errEnough stops reading a list when there are maxCandidates names.
var errEnough = errors.New("enough")

// names returns the names of objects that begin with the current word, each with before as a prefix. word names the kind.
func (c *completing) names(ctx context.Context, word, before string) ([]string, error) {
	k, ok := resource.KindNamed(word)
	if !ok {
		return nil, resource.UnknownKind(word)
	}
	appliance, err := settings.Connect(c.env, c.v)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if k.Namespaced && !(c.v.Has("all-namespaces") && c.v.Option("all-namespaces").On()) {
		namespace = settings.Namespace(c.env, c.v)
	}
	var names []string
	_, err = appliance.Each(ctx, resource.CollectionPath(k, namespace), nil, func(raw json.RawMessage) error {
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
