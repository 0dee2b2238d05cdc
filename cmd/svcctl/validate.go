package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/report"
	"svcctl.io/svcctl/store/manifest"
)

// The forms that validate prints in besides text and json.
const (
	formJUnit = "junit"
	formSARIF = "sarif"
)

func (p *program) validateVerb() *verb {
	return &verb{
		name:    "validate",
		summary: "check manifests as serve would, or print their schema",
		args:    "FILE|DIR|-... [FLAGS]",
		about: `Reads manifests as ` + "`svcctl serve`" + ` would, starting from nothing, and prints every
problem as FILE:LINE:COLUMN: what is wrong, sorted by place. It needs no privilege and no
appliance, and changes nothing. An error is an object or field that would be refused. The
addresses and other state of the box are not known here. Without settings it takes those of
/etc/svcctl/svcctl.yaml where the package runs svcctl; else it judges neither pools nor source
sets, and prints how many problems that leaves out.

--schema prints a JSON Schema (draft 7) of the documents that files may have: Services,
EndpointSlices, Endpoints, Pods and Lists of them, every field with its meaning, and the
annotations that have an effect. Editors complete and check files with it.

` + settingsAbout,
		options: append([]*option{
			{name: "filename", letter: "f", arg: argPath, group: groupWhich, repeats: true, usage: "the same as an argument; repeatable"},
			outputOption(formText, formJSON, formJUnit, formSARIF),
			{name: "strict", group: groupOutput, usage: "exit with 1 for warnings too"},
			{name: "schema", group: groupOutput, usage: "print the JSON Schema of manifests, and check none"},
		}, settingOptions(true)...),
		examples: []example{
			{"A directory, in a git hook: no output without problems.", "svcctl validate manifests/"},
			{"With the settings of the real appliance, for a report in CI.", "svcctl validate --config svcctl.yaml -o junit manifests/ > report.xml"},
			{"The output of a generator.", "kustomize build | svcctl validate --strict -"},
			{"For the YAML language server, in the settings of an editor or as the first line of a file.",
				"svcctl validate --schema > ~/svcctl.json  # yaml-language-server: $schema=svcctl.json"},
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
	args = slices.Concat(v.option("filename").texts, args)
	if v.option("schema").on() {
		if len(args) > 0 || v.option("output").isSet() || v.option("strict").isSet() {
			return usagef("validate: --schema prints the schema and checks no manifest: leave out the files, -o and --strict")
		}
		return p.printSchema()
	}
	blind := p.givenNothing(v)
	if blind && p.settingsFile != "" {
		if _, err := appliance.ReadFile(p.settingsFile, maxConfigFile); err == nil {
			v.option("config").texts, blind = []string{p.settingsFile}, false
			fmt.Fprintf(p.stderr, "svcctl: with the settings of %s: --config names others\n", p.settingsFile)
		}
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
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
	if all := len(planned.Problems); blind {
		planned.Problems = slices.DeleteFunc(planned.Problems, ofTheBox)
		if n := all - len(planned.Problems); n > 0 {
			fmt.Fprintf(p.stderr, "svcctl: %s left out, about pools and source sets, which are settings of the box: give --config FILE\n", was(n, "problem"))
		}
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

// ofTheBox reports whether a problem is about a pool or source set, which may be there on the box.
func ofTheBox(q manifest.Problem) bool {
	return q.Reason == "Pending" || q.Reason == "UnknownSourceSet"
}

// givenNothing reports whether no setting is given, by a flag, the environment or a file.
func (p *program) givenNothing(v *verb) bool {
	env, _ := p.lookupEnv(configEnv)
	return v.option("config").text() == "" && env == "" && !slices.ContainsFunc(settings(), func(s setting) bool {
		if !v.has(s.name) || s.name == "manifests" { // which says what is judged
			return false
		}
		_, given := p.lookup(v.option(s.name), s, nil)
		return given
	})
}
