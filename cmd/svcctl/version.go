package main

import (
	"context"
	"fmt"
	"runtime"
)

// versionInfo is the output of `svcctl version -o json`.
type versionInfo struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"` // linux/amd64
}

func (p *program) versionVerb() *verb {
	return &verb{
		name:    "version",
		summary: "print the version of this program",
		about: "`svcctl status` has the version of the running appliance, which may differ.\n\n" +
			"With -o json or yaml the fields are version, goVersion and platform.",
		options: []*option{outputOption("text", "json", "yaml")},
		run:     p.runVersion,
	}
}

// runVersion prints the version.
func (p *program) runVersion(_ context.Context, v *verb, _ []string) error {
	info := versionInfo{Version: p.version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return p.output(v, info, func() string {
		return fmt.Sprintf("svcctl %s (%s, %s)\n", info.Version, info.GoVersion, info.Platform)
	})
}

func (p *program) helpVerb() *verb {
	return &verb{
		name:    "help",
		summary: "explain svcctl, or one of its verbs",
		args:    "[VERB]",
		about:   "Without a verb it lists all verbs.",
		examples: []example{
			{"All flags of the appliance.", "svcctl help serve"},
			{"A verb of two words.", "svcctl help announce drain"},
		},
		run: p.runHelp,
	}
}

// runHelp prints the help of a verb, or of svcctl.
func (p *program) runHelp(_ context.Context, _ *verb, args []string) error {
	root := p.root()
	v, rest := root.find(args)
	switch {
	case len(rest) == 0:
		return p.print(v.help())
	case v == root:
		return p.bare(root, rest)
	case len(v.verbs) > 0:
		return v.unknown(rest)
	}
	return usagef("%s has no words of its own, and %q is one: run `%s --help`", v.name, rest[0], v.line())
}
