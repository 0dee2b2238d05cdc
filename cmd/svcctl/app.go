package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"svcctl.io/svcctl/cmd/svcctl/output"
)

// main runs the verb that args name, reports on stderr what went wrong, and returns
// the exit code.
func (p *program) main(ctx context.Context, args []string) int {
	root := p.root()
	err := p.app(root).RunContext(ctx, append([]string{rootName}, normalizeArgs(root, args)...))
	out := p.stderr
	if p.log != nil { // after serve: a reader of its log that is slow must not keep it from ending
		out = p.log
	}
	for _, line := range lines(err) {
		fmt.Fprintf(out, "svcctl: %s\n", line)
	}
	p.log.Flush(lastWords)
	return exitCode(err)
}

// app is the command line of the verbs, with our own help and errors.
func (p *program) app(root *verb) *cli.App {
	return &cli.App{
		Name:            rootName,
		Flags:           root.cliFlags(),
		Commands:        p.commands(root),
		HideHelp:        true, // flag.ErrHelp comes to usage, which shows ours
		HideVersion:     true,
		Writer:          p.stdout,
		ErrWriter:       p.stderr,
		ExitErrHandler:  func(*cli.Context, error) {}, // main prints and exits
		OnUsageError:    p.usage(root),
		Action:          func(c *cli.Context) error { return p.bare(root, c.Args().Slice()) },
		CommandNotFound: func(*cli.Context, string) {},
	}
}

// commands are the verbs below v as package cli takes them.
func (p *program) commands(v *verb) (commands []*cli.Command) {
	for _, v := range v.verbs {
		commands = append(commands, &cli.Command{
			Name:         v.word(),
			Usage:        v.summary,
			Category:     v.group,
			Flags:        v.cliFlags(),
			Subcommands:  p.commands(v),
			HideHelp:     true,
			OnUsageError: p.usage(v),
			Action:       func(c *cli.Context) error { return v.act(c.Context, c.Args().Slice()) },
		})
	}
	return commands
}

// act runs the verb, unless its command line has an error that all verbs share.
func (v *verb) act(ctx context.Context, args []string) error {
	if err := v.givenOnce(); err != nil {
		return err
	}
	switch {
	case v.has("all-namespaces") && v.option("all-namespaces").on() && v.option("namespace").isSet():
		return usagef("-A means the objects of all namespaces, and -n %s those of one: leave one of them out", v.option("namespace").text())
	case len(v.verbs) > 0 && (len(args) > 0 || v.run == nil):
		return v.unknown(args)
	case v.args == "" && len(args) > 0:
		return usagef("%s takes no argument, and %q is one: run `%s --help`", v.name, args[0], v.line())
	}
	return v.run(ctx, v, args)
}

// unknown is the error for a word that is no verb below v, or for none.
func (v *verb) unknown(args []string) error {
	var names []string
	for _, sub := range v.verbs {
		if sub.group != "" {
			names = append(names, sub.word())
		}
	}
	if len(args) == 0 {
		return usagef("%s does what? Give one of %s", v.name, strings.Join(names, ", "))
	}
	return usagef("%s has no word %q: %s", v.name, args[0], output.DidYouMean("", args[0], names, "give one of "+strings.Join(names, ", ")))
}

// usage shows the help of a verb when it is asked for, and else says which flag is
// wrong.
func (p *program) usage(v *verb) cli.OnUsageErrorFunc {
	return func(_ *cli.Context, err error, _ bool) error {
		if errors.Is(err, flag.ErrHelp) {
			return p.print(v.help())
		}
		who, more := v.name, fmt.Sprintf("run `%s --help`", v.line())
		text := err.Error()
		if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
			name = strings.TrimLeft(name, "-")
			return usagef("%s has no flag --%s: %s", who, name, output.DidYouMean("--", name, v.flagNames(), more))
		}
		if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
			return usagef("%s: --%s needs a value: %s", who, strings.TrimLeft(name, "-"), more)
		}
		return usagef("%s: %s: %s", who, text, more)
	}
}

// bare answers `svcctl` without a verb, or with one that does not exist.
func (p *program) bare(root *verb, args []string) error {
	if root.option("version").isSet() {
		return p.print("svcctl " + p.version + "\n")
	}
	if len(args) == 0 {
		_, _ = io.WriteString(p.stderr, root.help())
		return usagef("no verb is given: run `svcctl help`")
	}
	if now := moved[args[0]]; now != "" {
		return usagef("`svcctl %s` is %s", args[0], now)
	}
	if other := elsewhere[args[0]]; other != "" {
		return usagef("there is no verb %q: %s", args[0], other)
	}
	var names []string
	for _, v := range root.verbs {
		names = append(names, v.name)
	}
	return usagef("there is no verb %q: %s", args[0], output.DidYouMean("", args[0], names, "run `svcctl help`"))
}

// elsewhere has words of other tools that are no verbs here, with what does the same. The nearest verb may do harm: restart
// is near to restore.
var elsewhere = map[string]string{
	"restart": "run `systemctl restart svcctl`; rules and connections stay",
	"reload":  "run `systemctl reload svcctl`; changed manifests need none",
	"start":   "run `systemctl start svcctl`, or `svcctl serve`",
	"stop":    "run `systemctl stop svcctl`; rules and connections stay",
	"enable":  "run `systemctl enable --now svcctl`",
	"logs":    "run `journalctl -u svcctl`; `svcctl journal` has changes of objects",
	"log":     "run `journalctl -u svcctl`; `svcctl journal` has changes of objects",
	"events":  "run `svcctl get events -A`",
	"ps":      "run `svcctl get svc -A`",
	"list":    "run `svcctl get svc -A`",
	"ls":      "run `svcctl get svc -A`",
	"show":    "run `svcctl get svc -A`, or `svcctl describe svc/NAME`",
	"create":  "run `svcctl apply -f FILE`, or `svcctl expose NAME --port PORT --to ADDRESS`",
	"check":   "run `svcctl doctor` for the box, or `svcctl validate -f FILE`",
	"undo":    "run `svcctl rollback`",
}
