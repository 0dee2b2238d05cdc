// Package settings is the table of the settings of the appliance: each a flag, an environment variable and a key of the
// file given with --config. Load makes a config.Config of them, and Client a client of the appliance that the
// flags of a verb name.
//
// A setting comes from its flag, else its environment variable, else the file, else its default. All problems
// are reported at once.
//
//	cfg, err := settings.Load(env, v)
//	c := env.Client(v)
package settings
