package settings

import (
	"fmt"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

const GroupConnect = "Which appliance"

// The most bytes of files that an operator names: a token, and a bundle of certificates.
const (
	maxToken = 64 << 10
	MaxPEM   = 4 << 20
)

// SocketOptions returns the options by which a verb finds the appliance of this box.
func SocketOptions() []*cli.Option {
	socket := Options(GroupConnect, "socket")[0]
	socket.Usage = "unix socket of the appliance"
	return []*cli.Option{{Name: "config", Arg: cli.ArgFile, Env: ConfigEnv, Group: GroupConnect,
		Usage: "YAML file of `svcctl serve`, for its socket"}, socket}
}

// ConnectOptions returns the options by which a verb finds an appliance, local or remote.
func ConnectOptions() []*cli.Option {
	return append(SocketOptions(),
		&cli.Option{Name: "server", Arg: "HOST:PORT", Env: "SVCCTL_SERVER", Group: GroupConnect,
			Usage: "remote appliance, at its --listen, instead of the socket"},
		&cli.Option{Name: "token-file", Arg: cli.ArgFile, Env: "SVCCTL_TOKEN_FILE", Group: GroupConnect,
			Usage: "file with the bearer token for --server"},
		&cli.Option{Name: "token", Arg: "TOKEN", Env: "SVCCTL_TOKEN", Group: GroupConnect,
			Usage: "the bearer token itself, which others on this machine can then see"},
		&cli.Option{Name: "ca", Arg: cli.ArgFile, Env: "SVCCTL_CA", Group: GroupConnect,
			Usage: "file with the certificate that --server is checked with"},
	)
}

// NamespaceOption is -n.
func NamespaceOption() *cli.Option {
	return &cli.Option{Name: "namespace", Letter: "n", Arg: "NAMESPACE", Def: "default", Env: "SVCCTL_NAMESPACE",
		Group: cli.GroupWhich, Usage: "namespace of the objects"}
}

// Given returns the text of an option, from its flag or its environment variable, and which of the
// two; an empty variable counts as not set.
func Given(env *cli.Env, o *cli.Option) (text, source string) {
	if o.IsSet() {
		return o.Text(), "--" + o.Name
	}
	if text, ok := env.LookupEnv(o.Env); ok && text != "" {
		return text, o.Env
	}
	return "", ""
}

// Namespace is the namespace that a verb is about.
func Namespace(env *cli.Env, v *cli.Verb) string {
	o := v.Option("namespace")
	if text, source := Given(env, o); source != "" && text != "" {
		return text
	}
	return o.Def
}

// Client returns the client of the appliance. Its warnings go to stderr. Errors are usageErrors.
func Client(env *cli.Env, v *cli.Verb) (*client.Client, error) {
	c, err := Connect(env, v)
	if err != nil {
		return nil, err
	}
	var said sync.Map // each text once, as kubectl has it: a verb may ask several times
	c.Warned = func(text string) {
		if _, before := said.LoadOrStore(text, true); !before {
			fmt.Fprintf(env.Err, "Warning: %s\n", text)
		}
	}
	return c, nil
}

func Connect(env *cli.Env, v *cli.Verb) (*client.Client, error) {
	url, source := Given(env, v.Option("server"))
	switch socketFlag := v.Option("socket").IsSet(); {
	case socketFlag && source == "--server":
		return nil, cli.Usagef("--socket and --server name two appliances: leave one of them out")
	case url == "" || socketFlag:
		socket, err := Socket(env, v)
		if err != nil {
			return nil, err
		}
		c := client.New(socket)
		if bool(env.Packaged) && !socketFlag { // else it may be another one than that of the unit
			c.Start = env.Packaged.Serve()
		}
		return c, nil
	}
	server := client.Server{URL: url}
	token, tokenSource := Given(env, v.Option("token"))
	switch file, fileSource := Given(env, v.Option("token-file")); {
	case tokenSource == "--token" || tokenSource != "" && fileSource != "--token-file":
		server.Token = token
	case file != "":
		content, err := appliance.ReadFile(file, maxToken)
		if err != nil {
			return nil, cli.Usagef("%s: %v", fileSource, err)
		}
		if server.Token = strings.TrimSpace(string(content)); server.Token == "" {
			return nil, cli.Usagef("%s: %s is empty", fileSource, file)
		}
	}
	if ca, caSource := Given(env, v.Option("ca")); ca != "" {
		content, err := appliance.ReadFile(ca, MaxPEM)
		if err != nil {
			return nil, cli.Usagef("%s: %v", caSource, err)
		}
		server.CA = content
	}
	c, err := client.Remote(server)
	if err != nil {
		return nil, cli.Usagef("%s: %v", source, err)
	}
	return c, nil
}
