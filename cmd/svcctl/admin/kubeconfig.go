package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/watch"
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
			{Name: "embed-token", Arg: "DURATION", Def: "none", Bounds: &cli.Bounds{Least: time.Second, Most: math.MaxInt64, As: "168h, at least 1s"}, Group: groupKubeconfig,
				Usage: "include a token that is valid for this time, at most 720h"},
		}, settings.SocketOptions()...),
		Run: runKubeconfig,
	}
}

// The parts of a kubeconfig (k8s.io/client-go, clientcmd/api/v1) that are used here.
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
	role := v.Option("role").Given()
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
		if ca, err = watch.ReadNamed(o.Text(), settings.MaxPEM); err != nil {
			return fmt.Errorf("read the CA: %w", err)
		}
	}
	name := v.Option("name").Text()
	k := kubeconfig{APIVersion: "v1", Kind: "Config", CurrentContext: name,
		Clusters: []kubeCluster{{Name: name}}, Users: []kubeUser{{Name: name}}, Contexts: []kubeContext{{Name: name}}}
	k.Clusters[0].Cluster.Server, k.Clusters[0].Cluster.CA = server, ca
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = name, name
	if user := &k.Users[0].User; v.Option("embed-token").IsSet() {
		token, err := c.Token(ctx, wire.TokenRequest{Role: role, Duration: wire.Duration(v.Option("embed-token").Duration()), Name: "kubeconfig"})
		if err != nil {
			return err
		}
		user.Token = token.Token
	} else if user.Exec, err = tokenPlugin(socket, role); err != nil {
		return err
	}
	return env.PrintYAML(k)
}

// tokenPlugin returns the exec section of a kubeconfig. It makes kubectl run this program, by its absolute path, to get a token.
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

const groupToken = "Which token"

func tokenVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin token",
		Options: append([]*cli.Option{
			roleOption(groupToken, "role: admin may do everything, reader may get, list and watch all but Secrets, endpoints is for discover"),
			{Name: "duration", Arg: "DURATION", Def: "1h", Bounds: &cli.Bounds{Least: time.Second, Most: math.MaxInt64, As: "30m or 12h, at least 1s"}, Group: groupToken, Usage: "how long it is valid, as 30m or 12h; at most 720h"},
			{Name: "name", Arg: "NAME", Def: "none", Group: groupToken, Usage: "its purpose, which `svcctl journal` shows after your own name"},
			{Name: "revoke-all", Group: groupToken, Usage: "revoke all tokens issued so far, and issue none"},
		}, settings.SocketOptions()...),
		Run: runToken,
	}
}

// runToken prints a new token, or revokes all tokens.
func runToken(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	socket, err := settings.Socket(env, v)
	if err != nil {
		return err
	}
	appliance := client.New(socket)
	if v.Option("revoke-all").On() {
		for _, name := range []string{"role", "duration", "name"} {
			if v.Option(name).IsSet() {
				return cli.Usagef("token: --revoke-all gives no token, and --%s is about one: leave one of them out", name)
			}
		}
		done, err := appliance.RevokeTokens(ctx)
		if err != nil {
			return err
		}
		if done.Pending != "" {
			return errors.New("all tokens are revoked on this box, and not everywhere yet: " + done.Pending)
		}
		return env.Print("all tokens are revoked\n")
	}
	token, err := appliance.Token(ctx, wire.TokenRequest{ // the appliance checks the name and the longest lifetime
		Role: v.Option("role").Given(), Duration: wire.Duration(v.Option("duration").Duration()), Name: v.Option("name").Given()})
	if err != nil {
		return err
	}
	info, asked := env.LookupEnv(execInfoEnv)
	if !asked || info == "" {
		return env.Print(token.Token + "\n")
	}
	credential, err := execCredential(info, token)
	if err != nil {
		return err
	}
	return env.Print(credential + "\n")
}

// roleOption returns the option --role, under the help heading group.
func roleOption(group, usage string) *cli.Option {
	return &cli.Option{Name: "role", Arg: "admin|endpoints|reader", Def: "your own", Words: []string{"admin", "endpoints", "reader"}, Strict: true, Group: group, Usage: usage}
}

// execInfoEnv is the variable in which kubectl passes an ExecCredential to its credential plugins.
const execInfoEnv = "KUBERNETES_EXEC_INFO"

// The supported versions of ExecCredential. They do not differ in the fields that are used here.
const (
	execCredentialV1      = "client.authentication.k8s.io/v1"
	execCredentialV1beta1 = "client.authentication.k8s.io/v1beta1"
)

// askEarly is the remaining lifetime of a token at which a client requests a new one, so that requests are not rejected because the token expires on
// the way.
const askEarly = 30 * time.Second

// credentialDocument is an ExecCredential of client.authentication.k8s.io.
type credentialDocument struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Spec       struct{}          `json:"spec"`
	Status     *credentialStatus `json:"status,omitempty"`
}

type credentialStatus struct {
	Token               string    `json:"token"`
	ExpirationTimestamp time.Time `json:"expirationTimestamp"`
}

// execCredential returns a token as an ExecCredential, in the version that info (the value of KUBERNETES_EXEC_INFO) requests.
func execCredential(info string, token wire.Token) (string, error) {
	var asked credentialDocument
	if err := json.Unmarshal([]byte(info), &asked); err != nil {
		return "", fmt.Errorf("read %s: %w: unset it to get the token itself", execInfoEnv, err)
	}
	if asked.APIVersion != execCredentialV1 && asked.APIVersion != execCredentialV1beta1 {
		return "", fmt.Errorf("%s asks for %q: svcctl supports %s: make the kubeconfig again with `svcctl admin kubeconfig`", execInfoEnv, asked.APIVersion, execCredentialV1)
	}
	answer, err := json.Marshal(credentialDocument{
		Kind: "ExecCredential", APIVersion: asked.APIVersion,
		Status: &credentialStatus{Token: token.Token, ExpirationTimestamp: token.Expires.Add(-askEarly)},
	})
	if err != nil {
		return "", fmt.Errorf("encode an ExecCredential: %w", err)
	}
	return string(answer), nil
}
