package main

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/appliance/config"
)

// config is the configuration for a verb: of each of its settings what its flag
// says, else its environment variable, else the file, else the default. What is
// given for a list replaces the list, it is not added. The error is a usageError
// with everything that is wrong; settings that the verb does not have are not judged.
func (p *program) config(v *verb) (config.Config, error) {
	cfg := config.Default()
	cfg.Version = p.version
	file, problems := p.configFile(v)
	sources := map[string]string{}
	for _, s := range settings() {
		if !v.has(s.name) {
			continue
		}
		g, ok := p.lookup(v.option(s.name), s, file)
		if !ok {
			continue
		}
		sources[s.name] = g.source
		if err := s.set(&cfg, g.texts); err != nil {
			for _, line := range lines(err) {
				problems = append(problems, fmt.Errorf("%s: %s", g.source, line))
			}
		}
	}
	for _, err := range flatten(cfg.Validate()) {
		e, ok := errors.AsType[*config.Error](err)
		switch {
		case ok && !v.has(e.Flag):
		case ok && sources[e.Flag] != "":
			problems = append(problems, fmt.Errorf("%s %q: %s", sources[e.Flag], e.Value, e.Problem))
		default:
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return cfg, &usageError{problems: problems}
	}
	return cfg, nil
}

// lookup finds what a setting was given. An environment variable that is empty
// counts as not set.
func (p *program) lookup(o *option, s setting, file map[string]given) (given, bool) {
	if o.isSet() {
		g := given{source: "--" + s.name}
		for _, t := range o.texts {
			g.texts = append(g.texts, s.split(t)...)
		}
		return g, true
	}
	if t, ok := p.lookupEnv(o.env); ok && t != "" {
		return given{texts: s.split(t), source: o.env}, true
	}
	g, ok := file[o.key]
	return g, ok
}

// flatten takes errors.Join apart.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, flatten(e)...)
		}
		return out
	}
	return []error{err}
}
