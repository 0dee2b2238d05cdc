package main

import (
	"fmt"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance"
)

const groupConnect = "Which appliance"

// The most bytes of files that an operator names: a token, and a bundle of certificates.
const (
	maxToken = 64 << 10
	maxPEM   = 4 << 20
)

// socketOptions returns the options by which a verb finds the appliance of this box.
func socketOptions() []*option {
	o := []*option{{name: "config", arg: argFile, env: configEnv, group: groupConnect,
		usage: "YAML file of `svcctl serve`, for its socket"}}
	for _, s := range settings() {
		if s.name == "socket" {
			socket := s.option()
			socket.group, socket.usage = groupConnect, "unix socket of the appliance"
			o = append(o, socket)
		}
	}
	return o
}

// connectOptions returns the options by which a verb finds an appliance, local or remote.
func connectOptions() []*option {
	return append(socketOptions(),
		&option{name: "server", arg: "HOST:PORT", env: "SVCCTL_SERVER", group: groupConnect,
			usage: "remote appliance, at its --listen, instead of the socket"},
		&option{name: "token-file", arg: argFile, env: "SVCCTL_TOKEN_FILE", group: groupConnect,
			usage: "file with the bearer token for --server"},
		&option{name: "token", arg: "TOKEN", env: "SVCCTL_TOKEN", group: groupConnect,
			usage: "the bearer token itself, which others on this machine can then see"},
		&option{name: "ca", arg: argFile, env: "SVCCTL_CA", group: groupConnect,
			usage: "file with the certificate that --server is checked with"},
	)
}

// namespaceOption is -n.
func namespaceOption() *option {
	return &option{name: "namespace", letter: "n", arg: "NAMESPACE", def: "default", env: "SVCCTL_NAMESPACE",
		group: groupWhich, usage: "namespace of the objects"}
}

// given returns the text of an option, from its flag or its environment variable, and which of the
// two; an empty variable counts as not set.
func (p *program) given(o *option) (text, source string) {
	if o.isSet() {
		return o.text(), "--" + o.name
	}
	if text, ok := p.lookupEnv(o.env); ok && text != "" {
		return text, o.env
	}
	return "", ""
}

// namespace is the namespace that a verb is about.
func (p *program) namespace(v *verb) string {
	o := v.option("namespace")
	if text, source := p.given(o); source != "" && text != "" {
		return text
	}
	return o.def
}

// client returns the client of the appliance. Its warnings go to stderr. Errors are usageErrors.
func (p *program) client(v *verb) (*client.Client, error) {
	c, err := p.connect(v)
	if err != nil {
		return nil, err
	}
	var said sync.Map // each text once, as kubectl has it: a verb may ask several times
	c.Warned = func(text string) {
		if _, before := said.LoadOrStore(text, true); !before {
			fmt.Fprintf(p.stderr, "Warning: %s\n", text)
		}
	}
	return c, nil
}

func (p *program) connect(v *verb) (*client.Client, error) {
	url, source := p.given(v.option("server"))
	socketFlag := v.option("socket").isSet()
	switch {
	case socketFlag && source == "--server":
		return nil, usagef("--socket and --server name two appliances: leave one of them out")
	case url == "" || socketFlag:
		socket, err := p.socket(v)
		if err != nil {
			return nil, err
		}
		c := client.New(socket)
		if bool(p.packaged) && !socketFlag { // else it may be another one than that of the unit
			c.Start = p.packaged.Serve()
		}
		return c, nil
	}
	server := client.Server{URL: url}
	token, tokenSource := p.given(v.option("token"))
	file, fileSource := p.given(v.option("token-file"))
	switch {
	case tokenSource == "--token" || tokenSource != "" && fileSource != "--token-file":
		server.Token = token
	case file != "":
		content, err := appliance.ReadFile(file, maxToken)
		if err != nil {
			return nil, usagef("%s: %v", fileSource, err)
		}
		if server.Token = strings.TrimSpace(string(content)); server.Token == "" {
			return nil, usagef("%s: %s is empty", fileSource, file)
		}
	}
	if ca, caSource := p.given(v.option("ca")); ca != "" {
		content, err := appliance.ReadFile(ca, maxPEM)
		if err != nil {
			return nil, usagef("%s: %v", caSource, err)
		}
		server.CA = content
	}
	c, err := client.Remote(server)
	if err != nil {
		return nil, usagef("%s: %v", source, err)
	}
	return c, nil
}
