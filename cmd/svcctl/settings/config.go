package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
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
		switch e, ok := errors.AsType[*config.Error](err); {
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

// ConfigEnv is the environment variable that stands in for --config.
const ConfigEnv = "SVCCTL_CONFIG"

// MaxConfigFile bounds the configuration file, in bytes.
const MaxConfigFile = 1 << 20

// configFile reads the file that --config names: what it gives, by key, and
// everything that is wrong with it.
func configFile(env *cli.Env, v *cli.Verb) (map[string]given, []error) {
	path := v.Option("config").Text()
	if path == "" {
		path, _ = env.LookupEnv(ConfigEnv)
	}
	if path == "" {
		return nil, nil
	}
	data, err := appliance.ReadFile(path, MaxConfigFile)
	if err != nil {
		return nil, []error{fmt.Errorf("read the configuration: %w", err)}
	}
	return parseConfig(path, data)
}

// parseConfig reads a configuration: one mapping of setting keys to a value or a
// list of values. A key without a value counts as not there.
func parseConfig(path string, data []byte) (map[string]given, []error) {
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // nothing but comments
	case err != nil:
		return nil, []error{fmt.Errorf("%s: %w", path, err)}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, []error{fmt.Errorf("%s: more than one document: put everything into the first", path)}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, []error{fmt.Errorf("%s:%d: want keys and values, as `zone: zone-a`", path, root.Line)}
	}
	known := map[string]Setting{}
	var keys []string
	for _, s := range Settings() {
		known[s.Key()] = s
		keys = append(keys, s.Key())
	}
	out := map[string]given{}
	var problems []error
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		s, ok := known[key.Value]
		source := fmt.Sprintf("%s:%d: %s", path, key.Line, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			problems = append(problems, fmt.Errorf("%s:%d: there is no setting %q: %s",
				path, key.Line, key.Value, output.DidYouMean("", key.Value, keys, "`svcctl help serve` lists them")))
			continue
		case seen[key.Value] > 0:
			problems = append(problems, fmt.Errorf("%s: is on line %d already: leave one of the two", source, seen[key.Value]))
			continue
		}
		seen[key.Value] = key.Line
		texts, err := configValue(s, value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", source, err))
			continue
		}
		if texts != nil {
			out[key.Value] = given{Texts: texts, source: source}
		}
	}
	return out, problems
}

// configValue returns the texts of a key's value: nil for null.
func configValue(s Setting, value *yaml.Node) ([]string, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil, nil
	case value.Kind == yaml.ScalarNode:
		return s.Split(value.Value), nil
	case value.Kind != yaml.SequenceNode || !s.List:
		want := "a single value"
		if s.List {
			want = "a list of values, or one text with commas"
		}
		return nil, fmt.Errorf("want %s", want)
	}
	texts := []string{}
	for _, item := range value.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			return nil, fmt.Errorf("line %d: want a text", item.Line)
		}
		texts = append(texts, item.Value)
	}
	return texts, nil
}

// given has the texts of a setting, and their source.
type given struct {
	Texts  []string
	source string // "--zone", "SVCCTL_ZONE" or "svcctl.yaml:7: zone"
}
