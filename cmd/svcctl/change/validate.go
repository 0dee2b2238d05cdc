package change

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/report"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
	"svcctl.io/svcctl/watch"
)

// printSchema prints a JSON Schema (draft 7) for the documents in manifest files.
func printSchema(env *cli.Env) error {
	var hints []schema.Hint
	for _, r := range annotation.Table() {
		if strings.HasSuffix(r.Key, "*") || r.Effect == annotation.Kept {
			continue
		}
		h := schema.Hint{Key: r.Key, Kinds: r.Kinds, Label: r.Label, Text: r.Text}
		if r.Values != "" {
			h.Text += ". Values: " + r.Values
		}
		if h.Kinds == nil {
			h.Kinds = []string{object.KindService}
		}
		hints = append(hints, h)
	}
	return env.Print(string(schema.JSONSchema(hints)))
}

// The output formats of validate in addition to text and json.
const (
	formJUnit = "junit"
	formSARIF = "sarif"
)

func ValidateVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "validate",
		About: settings.SettingsAbout,
		Options: append([]*cli.Option{
			{Name: "filename", Letter: "f", Arg: cli.ArgPath, Group: cli.GroupWhich, Repeats: true, Usage: "the same as an argument; repeatable"},
			cli.OutputOption(cli.FormText, cli.FormJSON, formJUnit, formSARIF),
			{Name: "strict", Group: cli.GroupOutput, Usage: "exit with 1 for warnings too"},
			{Name: "schema", Group: cli.GroupOutput, Usage: "print the JSON Schema of manifests, and check none"},
		}, settings.SettingOptions(true)...),
		Run: runValidate,
	}
}

// runValidate prints the problems of manifests.
func runValidate(_ context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	args = slices.Concat(v.Option("filename").Texts, args)
	if v.Option("schema").On() {
		if len(args) > 0 || v.Option("output").IsSet() || v.Option("strict").IsSet() {
			return cli.Usagef("validate: --schema prints the schema and checks no manifest: leave out the files, -o and --strict")
		}
		return printSchema(env)
	}
	blind := givenNothing(env, v)
	if blind && env.SettingsFile != "" {
		if _, err := watch.ReadNamed(env.SettingsFile, settings.MaxConfigFile); err == nil {
			v.Option("config").Texts, blind = []string{env.SettingsFile}, false
			fmt.Fprintf(env.Err, "svcctl: with the settings of %s: --config names others\n", env.SettingsFile)
		}
	}
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = cfg.ManifestDirs()
	}
	if len(args) == 0 {
		return cli.Usagef("validate what? Give files or directories, or - for stdin")
	}
	if twice := slices.Index(args, "-"); twice >= 0 && slices.Contains(args[twice+1:], "-") {
		return cli.Usagef("stdin can be read once, and - is given twice")
	}
	files, problems, err := env.Plan(cfg, args, env.In, io.Discard)
	if err != nil {
		return err
	}
	if all := len(problems); blind {
		problems = slices.DeleteFunc(problems, func(q manifest.Problem) bool { return q.Reason == "Pending" || q.Reason == "UnknownSourceSet" }) // the box may have them
		if n := all - len(problems); n > 0 {
			fmt.Fprintf(env.Err, "svcctl: %s left out, about pools and source sets, which are settings of the box: give --config FILE\n", output.Was(n, "problem"))
		}
	}
	found := report.Of(files, problems)
	text := found.Lines()
	switch v.Option("output").Text() {
	case cli.FormJSON:
		text, err = output.JSON(found)
	case formJUnit:
		text, err = found.JUnit()
	case formSARIF:
		text, err = found.SARIF(env.Version)
	}
	if err != nil {
		return err
	}
	if err := env.Print(text); err != nil {
		return err
	}
	return found.Verdict(v.Option("strict").On())
}

// givenNothing reports whether no setting is given by a flag, an environment variable or a file. The setting manifests does not count.
func givenNothing(p *cli.Env, v *cli.Verb) bool {
	env, _ := p.LookupEnv(settings.ConfigEnv)
	return v.Option("config").Text() == "" && env == "" && !slices.ContainsFunc(settings.Settings(), func(s settings.Setting) bool {
		if !v.Has(s.Name) || s.Name == "manifests" { // manifests names the input
			return false
		}
		_, given := settings.Lookup(p, v.Option(s.Name), nil)
		return given
	})
}
