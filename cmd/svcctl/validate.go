package main

import (
	"context"
	"io"
	"slices"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/report"
)

// The forms that validate prints in besides text and json.
const (
	formJUnit = "junit"
	formSARIF = "sarif"
)

func (p *program) validateVerb() *verb {
	return &verb{
		name:    "validate",
		summary: "check manifests as serve would, for CI and hooks",
		args:    "FILE|DIR|-... [FLAGS]",
		about: `Reads manifests as ` + "`svcctl serve`" + ` would, starting from nothing, and prints every
problem as FILE:LINE:COLUMN: what is wrong, sorted by place. It needs no privilege and no
appliance, and changes nothing. An error is an object or field that would be refused. The
addresses and other state of the box are not known here.

` + settingsAbout,
		options: append([]*option{
			{name: "filename", letter: "f", arg: argPath, group: groupWhich, repeats: true, usage: "the same as an argument; repeatable"},
			outputOption(formText, formJSON, formJUnit, formSARIF),
			{name: "strict", group: groupOutput, usage: "exit with 1 for warnings too"},
		}, settingOptions(true)...),
		examples: []example{
			{"A directory, in a git hook: no output without problems.", "svcctl validate manifests/"},
			{"With the settings of the real appliance, for a report in CI.", "svcctl validate --config svcctl.yaml -o junit manifests/ > report.xml"},
			{"The output of a generator.", "kustomize build | svcctl validate --strict -"},
		},
		exits: `  0  no error
  1  there are errors (with --strict: or warnings), or a file cannot be read
  2  wrong usage or configuration`,
		run: p.runValidate,
	}
}

// runValidate prints the problems of manifests.
func (p *program) runValidate(_ context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
	args = slices.Concat(v.option("filename").texts, args)
	if len(args) == 0 {
		args = cfg.ManifestDirs()
	}
	if len(args) == 0 {
		return usagef("validate what? Give files or directories, or - for stdin")
	}
	if twice := slices.Index(args, "-"); twice >= 0 && slices.Contains(args[twice+1:], "-") {
		return usagef("stdin can be read once, and - is given twice")
	}
	planned, err := p.plan(cfg, args, p.stdin, io.Discard)
	if err != nil {
		return err
	}
	found := report.Of(planned.Files, planned.Problems)
	text := found.Lines()
	switch v.option("output").text() {
	case formJSON:
		text, err = output.JSON(found)
	case formJUnit:
		text, err = found.JUnit()
	case formSARIF:
		text, err = found.SARIF(p.version)
	}
	if err != nil {
		return err
	}
	if err := p.print(text); err != nil {
		return err
	}
	return found.Verdict(v.option("strict").on())
}
