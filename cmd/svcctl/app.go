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

// main runs the verb that args name, says on stderr what went wrong, and returns
// the exit code.
func (p *program) main(ctx context.Context, args []string) int {
	err := p.app().RunContext(ctx, append([]string{"svcctl"}, arrange(p.verbs(), args)...))
	out := p.stderr
	if p.log != nil { // after serve: who does not read its log must not keep it from ending
		out = p.log
	}
	for _, line := range lines(err) {
		fmt.Fprintf(out, "svcctl: %s\n", line)
	}
	p.log.Flush(lastWords)
	return exitCode(err)
}

// app is the command line: the verbs of the table, with our own help and errors.
func (p *program) app() *cli.App {
	verbs := p.verbs()
	root := rootVerb(verbs)
	app := &cli.App{
		Name:            root.name,
		Flags:           root.cliFlags(),
		HideHelp:        true, // flag.ErrHelp comes to usage, which shows ours
		HideVersion:     true,
		Writer:          p.stdout,
		ErrWriter:       p.stderr,
		ExitErrHandler:  func(*cli.Context, error) {}, // main prints and exits
		OnUsageError:    p.usage(root),
		Action:          func(c *cli.Context) error { return p.bare(root, verbs, c.Args().Slice()) },
		CommandNotFound: func(*cli.Context, string) {},
	}
	for _, v := range append(verbs, p.completeVerb()) {
		app.Commands = append(app.Commands, &cli.Command{
			Name:         v.name,
			Usage:        v.summary,
			Flags:        v.cliFlags(),
			HideHelp:     true,
			OnUsageError: p.usage(v),
			Action: func(c *cli.Context) error {
				args := c.Args().Slice()
				if err := v.givenOnce(); err != nil {
					return err
				}
				if v.has("all-namespaces") && v.option("all-namespaces").on() && v.option("namespace").isSet() {
					return usagef("-A means the objects of all namespaces, and -n %s those of one: leave one of them out", v.option("namespace").text())
				}
				if v.args == "" && len(args) > 0 {
					return usagef("%s takes no argument, and %q is one: run `svcctl %s --help`", v.name, args[0], v.name)
				}
				return v.run(c.Context, v, args)
			},
		})
	}
	return app
}

// usage shows the help of a verb when it is asked for, and else says which flag is
// wrong.
func (p *program) usage(v *verb) cli.OnUsageErrorFunc {
	return func(_ *cli.Context, err error, _ bool) error {
		if errors.Is(err, flag.ErrHelp) {
			return p.print(v.help())
		}
		command, who := "svcctl "+v.name, v.name
		if v.name == "svcctl" {
			command = who
		}
		more := fmt.Sprintf("run `%s --help`", command)
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
func (p *program) bare(root *verb, verbs []*verb, args []string) error {
	if root.option("version").isSet() {
		return p.print("svcctl " + p.version + "\n")
	}
	if len(args) == 0 {
		_, _ = io.WriteString(p.stderr, root.help())
		return usagef("no verb is given: run `svcctl help`")
	}
	if other := elsewhere[args[0]]; other != "" {
		return usagef("there is no verb %q: %s", args[0], other)
	}
	var names []string
	for _, v := range verbs {
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
