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
		Name:    "discover",
		Summary: "follow endpoints in DNS, Consul, Nomad, Docker, targets",
		About: `Asks providers for the endpoints of the Services that name them in the annotation
svcctl.io/endpoints-from, as consul:web?tag=prod, and writes them as EndpointSlices. The
kinds of providers are dns, consul, nomad, docker (Podman too) and targets (the JSON of
Prometheus' file_sd and http_sd). Without --from it is dns, with the resolvers of
/etc/resolv.conf. Addresses and credentials of consul, nomad and docker come from the
environment, as their own command line tools have them: CONSUL_HTTP_ADDR,
CONSUL_HTTP_TOKEN_FILE, NOMAD_ADDR, NOMAD_TOKEN, DOCKER_HOST and so on.

A failure changes nothing: endpoints stay while a provider, this process or ` + "`svcctl serve`" + `
is away. The last endpoints of a Service go when answers were empty for 30 s; those of most
Services at once stay until ` + "`svcctl confirm --removals`" + `. ` + "`svcctl status`" + ` has the problems.

It is a separate process and needs no capability: access to the socket as root, as a
member of --socket-group or as the user svcctl-discover; or --server with a token of
` + "`svcctl admin token --role endpoints`" + `. It runs until SIGTERM or SIGINT.`,
		Options: slices.Concat([]*cli.Option{
			{Name: "from", Arg: "[NAME=]KIND[+URL]", Def: "dns", Repeats: true, Group: cli.GroupHow,
				Usage: "provider, by its kind, with the name that annotations have for it, the kind without one; repeatable"},
		}, settings.Options("", "node-name", "log-level", "log-format"), settings.ConnectOptions()),
		Examples: []cli.Example{
			{"Names of DNS.", "svcctl discover"},
			{"The agents and the daemon of this box.", "svcctl discover --from consul --from nomad --from docker"},
			{"A file that a script writes, and another data center.", "svcctl discover --from targets+file:///srv/web.json --from eu=consul+https://consul.eu:8501"},
			{"On the host of the containers.", "svcctl discover --from docker --server gw1:6443 --ca gw1.crt --token-file token"},
		},
		Exits: `  0  stopped by a signal
  1  could not start, or its token is not valid any more: stderr has the reason
  2  wrong usage or configuration`,
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
