package box

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func DiscoverVerb() *cli.Verb {
	return &cli.Verb{
		Name: "discover",
		Options: slices.Concat([]*cli.Option{
			{Name: "from", Arg: "[NAME=]KIND[+URL]", Def: "dns", Repeats: true, Group: cli.GroupHow,
				Usage: "provider, by its kind, with the name that annotations have for it, the kind without one; repeatable"},
		}, settings.Options("", "node-name", "log-level", "log-format"), settings.ConnectOptions()),
		Run: runDiscover,
	}
}

// runDiscover follows providers until a signal stops it.
func runDiscover(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	d := discover.Config{Node: cfg.NodeName}
	if d.Client, err = settings.Connect(env, v); err != nil {
		return err
	}
	environ := map[string]string{}
	for _, entry := range env.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		environ[name] = value
	}
	from := v.Option("from").Texts
	if len(from) == 0 {
		from = []string{"dns"}
	}
	for _, text := range from {
		p, err := discover.Open(text, d.Node, environ)
		if err != nil {
			return cli.Usagef("--from %s: %v", text, err)
		}
		if slices.ContainsFunc(d.Providers, func(other discover.Provider) bool { return other.Name == p.Name }) {
			return cli.Usagef("--from %s: there are two providers %q: give one another name, as %s2=%s", text, p.Name, p.Name, text)
		}
		d.Providers = append(d.Providers, p)
	}
	log := openLog(env, &cfg.Log)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, stop := stopOnSignal(ctx, signals, log, "endpoints stay as they are until it is started again", func(code int) {
		env.Log.Flush(LastWords)
		os.Exit(code)
	})
	defer stop()
	return env.Discover(ctx, d, log)
}
