package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

const groupToken = "Which token"

func tokenVerb() *cli.Verb {
	return &cli.Verb{
		Name: "admin token",
		Options: append([]*cli.Option{
			roleOption(groupToken, "role: admin may do everything, reader may get, list and watch all but Secrets, endpoints is for discover"),
			{Name: "duration", Arg: "DURATION", Def: "1h", Group: groupToken, Usage: "how long it is valid, as 30m or 12h; at most 720h"},
			{Name: "name", Arg: "NAME", Def: "none", Group: groupToken, Usage: "its purpose, which `svcctl journal` shows after your own name"},
			{Name: "revoke-all", Group: groupToken, Usage: "revoke all tokens issued so far, and issue none"},
		}, settings.SocketOptions()...),
		Run: runToken,
	}
}

// runToken prints a token, or revokes all.
func runToken(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	ask, err := tokenRequest(v)
	if err != nil {
		return err
	}
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
	token, err := appliance.Token(ctx, ask)
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

// roleOption is --role.
func roleOption(group, usage string) *cli.Option {
	return &cli.Option{Name: "role", Arg: "admin|endpoints|reader", Def: "your own", Words: []string{"admin", "endpoints", "reader"}, Group: group, Usage: usage}
}

// role is the role that the flag names, "" for one's own.
func role(v *cli.Verb) (string, error) {
	o := v.Option("role")
	if !o.IsSet() {
		return "", nil
	}
	if !slices.Contains(o.Words, o.Text()) {
		return "", cli.Usagef("--role %q: want %s", o.Text(), strings.Join(o.Words, " or "))
	}
	return o.Text(), nil
}

// tokenRequest returns the request that the flags ask for. The appliance validates the name and the
// longest lifetime.
func tokenRequest(v *cli.Verb) (wire.TokenRequest, error) {
	text := v.Option("duration").Text()
	life, err := time.ParseDuration(text)
	if err != nil || life < time.Second {
		return wire.TokenRequest{}, cli.Usagef("--duration %q: want a duration as 30m or 12h, at least 1s", text)
	}
	ask := wire.TokenRequest{Duration: wire.Duration(life)}
	if ask.Role, err = role(v); err != nil {
		return wire.TokenRequest{}, err
	}
	if o := v.Option("name"); o.IsSet() {
		ask.Name = o.Text()
	}
	return ask, nil
}

// execInfoEnv is the variable in which kubectl passes an ExecCredential to its credential plugins.
const execInfoEnv = "KUBERNETES_EXEC_INFO"

// The versions of ExecCredential that we speak: they differ in nothing that we say.
const (
	execCredentialV1      = "client.authentication.k8s.io/v1"
	execCredentialV1beta1 = "client.authentication.k8s.io/v1beta1"
)

// askEarly is the remaining lifetime at which a client asks for another token, so that a request
// that is under way at its end is not refused.
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

// execCredential is the token as a client wants it that asked with info.
func execCredential(info string, token *wire.Token) (string, error) {
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
