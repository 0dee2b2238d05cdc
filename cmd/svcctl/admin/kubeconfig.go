package admin

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

const groupKubeconfig = "What is in it"

func kubeconfigVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin kubeconfig",
		Options: append([]*cli.Option{
			{Name: "server", Arg: "URL", Def: "where the appliance listens", Group: groupKubeconfig,
				Usage: "address of the appliance for clients, as https://gw1.example:6443"},
			{Name: "ca", Arg: cli.ArgFile, Def: "the appliance's own", Group: groupKubeconfig,
				Usage: "certificate that the appliance's is checked with, PEM, for a certificate given with --tls-cert"},
			{Name: "name", Arg: "NAME", Def: "svcctl", Group: groupKubeconfig, Usage: "name of the context, the cluster and the user"},
			roleOption(groupKubeconfig, "role of the tokens"),
			{Name: "embed-token", Arg: "DURATION", Def: "none", Group: groupKubeconfig,
				Usage: "include a token that is valid for this time, at most 720h"},
		}, settings.SocketOptions()...),
		Run: runKubeconfig,
	}
}

// The documents of a kubeconfig (k8s.io/client-go, clientcmd/api/v1), as far as they are used.
type kubeconfig struct {
	APIVersion     string        `json:"apiVersion"`
	Kind           string        `json:"kind"`
	Clusters       []kubeCluster `json:"clusters"`
	Users          []kubeUser    `json:"users"`
	Contexts       []kubeContext `json:"contexts"`
	CurrentContext string        `json:"current-context"`
}

type kubeCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server string `json:"server"`
		CA     []byte `json:"certificate-authority-data,omitempty"`
	} `json:"cluster"`
}

type kubeUser struct {
	Name string `json:"name"`
	User struct {
		Token string    `json:"token,omitempty"`
		Exec  *kubeExec `json:"exec,omitempty"`
	} `json:"user"`
}

type kubeExec struct {
	APIVersion         string   `json:"apiVersion"`
	Command            string   `json:"command"`
	Args               []string `json:"args"`
	InteractiveMode    string   `json:"interactiveMode"`
	ProvideClusterInfo bool     `json:"provideClusterInfo"`
}

type kubeContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

// runKubeconfig prints a kubeconfig.
func runKubeconfig(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	life, err := embeddedLife(v)
	if err != nil {
		return err
	}
	role, err := role(v)
	if err != nil {
		return err
	}
	socket, err := settings.Socket(env, v)
	if err != nil {
		return err
	}
	c := client.New(socket)
	where, err := client.Call(ctx, c, wire.GetEndpoint, wire.None{})
	if err != nil {
		return err
	}
	server, ca := where.Server, []byte(where.CertificateAuthority)
	if o := v.Option("server"); o.IsSet() {
		server = o.Text()
		if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" {
			return cli.Usagef("--server %q: want the URL of the appliance, as https://gw1.example:6443", server)
		}
	}
	if o := v.Option("ca"); o.IsSet() {
		if ca, err = appliance.ReadFile(o.Text(), settings.MaxPEM); err != nil {
			return fmt.Errorf("read the CA: %w", err)
		}
	}
	name := v.Option("name").Text()
	k := kubeconfig{APIVersion: "v1", Kind: "Config", CurrentContext: name,
		Clusters: []kubeCluster{{Name: name}}, Users: []kubeUser{{Name: name}}, Contexts: []kubeContext{{Name: name}}}
	k.Clusters[0].Cluster.Server, k.Clusters[0].Cluster.CA = server, ca
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = name, name
	if user := &k.Users[0].User; life > 0 {
		token, err := c.Token(ctx, wire.TokenRequest{Role: role, Duration: wire.Duration(life), Name: "kubeconfig"})
		if err != nil {
			return err
		}
		user.Token = token.Token
	} else if user.Exec, err = tokenPlugin(socket, role); err != nil {
		return err
	}
	return env.PrintYAML(k)
}

// embeddedLife returns the lifetime of the token in the kubeconfig; 0: without a token.
func embeddedLife(v *cli.Verb) (time.Duration, error) {
	o := v.Option("embed-token")
	if !o.IsSet() {
		return 0, nil
	}
	life, err := time.ParseDuration(o.Text())
	if err != nil || life < time.Second {
		return 0, cli.Usagef("--embed-token %q: want a duration as 168h, at least 1s", o.Text())
	}
	return life, nil
}

// tokenPlugin has kubectl run this program for its tokens, wherever it is started.
func tokenPlugin(socket, role string) (*kubeExec, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of svcctl: %w", err)
	}
	if socket, err = filepath.Abs(socket); err != nil {
		return nil, fmt.Errorf("find the path of the socket: %w", err)
	}
	args := []string{"admin", "token", "--socket", socket}
	if role != "" {
		args = append(args, "--role", role)
	}
	return &kubeExec{APIVersion: execCredentialV1, Command: self, Args: args, InteractiveMode: "Never"}, nil
}
