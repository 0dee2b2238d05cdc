package settings

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// Load returns the configuration for a verb: for each of its settings the value of its
// flag, else of its environment variable, else of the file, else the default. A value
// for a list replaces the list. The error is a usageError
// with everything that is wrong; settings that the verb does not have are not judged.
func Load(env *cli.Env, v *cli.Verb) (config.Config, error) {
	cfg := config.Default()
	cfg.Version = env.Version
	file, problems := configFile(env, v)
	sources := map[string]string{}
	for _, s := range Settings() {
		if !v.Has(s.Name) {
			continue
		}
		g, ok := Lookup(env, v.Option(s.Name), s, file)
		if !ok {
			continue
		}
		sources[s.Name] = g.source
		if err := s.Set(&cfg, g.Texts); err != nil {
			for _, line := range cli.Lines(err) {
				problems = append(problems, fmt.Errorf("%s: %s", g.source, line))
			}
		}
	}
	for _, err := range cli.Flatten(cfg.Validate()) {
		e, ok := errors.AsType[*config.Error](err)
		switch {
		case ok && !v.Has(e.Flag):
		case ok && sources[e.Flag] != "":
			problems = append(problems, fmt.Errorf("%s %q: %s", sources[e.Flag], e.Value, e.Problem))
		default:
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return cfg, &cli.UsageError{Problems: problems}
	}
	return cfg, nil
}

// Lookup finds what a setting was given. An environment variable that is empty
// counts as not set.
func Lookup(env *cli.Env, o *cli.Option, s Setting, file map[string]given) (given, bool) {
	if o.IsSet() {
		g := given{source: "--" + s.Name}
		for _, t := range o.Texts {
			g.Texts = append(g.Texts, s.Split(t)...)
		}
		return g, true
	}
	if t, ok := env.LookupEnv(o.Env); ok && t != "" {
		return given{Texts: s.Split(t), source: o.Env}, true
	}
	g, ok := file[o.Key]
	return g, ok
}

// ConfigOption is --config.
func ConfigOption() *cli.Option {
	return &cli.Option{Name: "config", Arg: cli.ArgFile, Env: ConfigEnv, Group: GroupPlaces,
		Usage: "YAML file with any of the settings below; flags and environment variables come before it"}
}

// Socket is the path of the appliance's socket.
func Socket(env *cli.Env, v *cli.Verb) (string, error) {
	cfg, err := Load(env, v)
	if err != nil {
		return "", err
	}
	return cfg.API.Socket, nil
}

// SettingsAbout is the paragraph about the sources of settings in the help of serve and plan.
const SettingsAbout = `Every flag is also an environment variable and a key of the file given with
--config: --node-name is SVCCTL_NODE_NAME and nodeName, --cluster-cidr is
SVCCTL_CLUSTER_CIDR and clusterCIDR. The flag takes precedence, then the variable, then the
file, then the default. Lists are repeated flags, text with commas, or YAML lists; a given
list replaces that of lower precedence.`

// SettingOptions are the options of all settings, or of those that a plan needs.
func SettingOptions(plan bool) []*cli.Option {
	o := []*cli.Option{ConfigOption()}
	for _, s := range Settings() {
		if !plan || !s.ServeOnly {
			o = append(o, s.Option())
		}
	}
	return o
}
