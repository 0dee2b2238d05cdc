package main

import (
	"context"
	_ "embed" // words.txt
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"svcctl.io/svcctl/cmd/svcctl/box"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// run runs the verb that args name, reports on stderr what went wrong, and returns
// the exit code.
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

// app is the command line of the verbs, with our own help and errors.
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

// commandsOf returns the verbs below v as package urfave/cli takes them.
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

// act runs the verb, unless its command line has an error that all verbs share.
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

// unknown is the error for a word that is no verb below v, or for none.
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

// usage shows the help of a verb when it is asked for, and else names the wrong flag.
func usage(env *cli.Env, v *cli.Verb) urfave.OnUsageErrorFunc {
	return func(_ *urfave.Context, err error, _ bool) error {
		if errors.Is(err, flag.ErrHelp) {
			return env.Print(v.Help())
		}
		who, more := v.Name, fmt.Sprintf("run `%s --help`", v.Line())
		text := err.Error()
		if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
			name = strings.TrimLeft(name, "-")
			return cli.Usagef("%s has no flag --%s: %s", who, name, output.DidYouMean("--", name, v.FlagNames(), more))
		}
		if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
			return cli.Usagef("%s: --%s needs a value: %s", who, strings.TrimLeft(name, "-"), more)
		}
		return cli.Usagef("%s: %s: %s", who, text, more)
	}
}

// bare answers `svcctl` without a verb, or with one that does not exist.
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

// words has the earlier spellings of verbs, and words of other tools, with their answers.
//
//go:embed words.txt
var words string

// moved has the earlier spellings of verbs, with those of now, and elsewhere the words of other tools.
var moved, elsewhere = answers(1), answers(2)

// answers reads a section of words.
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

// flags are the options of a verb as package urfave/cli takes them. A letter is a flag of its own there: of a flag with two
// names it refuses the second one.
func flags(v *cli.Verb) (all []urfave.Flag) {
	for _, o := range v.Options {
		all = append(all, &urfave.GenericFlag{Name: o.Name, Value: o})
		if o.Letter != "" {
			all = append(all, &urfave.GenericFlag{Name: o.Letter, Value: o})
		}
	}
	return all
}
