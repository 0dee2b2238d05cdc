package main

// configOption is --config.
func configOption() *option {
	return &option{name: "config", arg: argFile, env: configEnv, group: groupPlaces,
		usage: "YAML file with any of the settings below; flags and environment variables come before it"}
}

const (
	groupWhich  = "Which objects"
	groupHow    = "How to do it"
	groupOutput = "What to print"
)

// outputOption is -o.
func outputOption(words ...string) *option {
	arg := ""
	for i, w := range words {
		if i > 0 {
			arg += "|"
		}
		arg += w
	}
	return &option{name: "output", letter: "o", arg: arg, def: words[0], words: words, group: groupOutput,
		usage: "form of the output"}
}

// socket is the path of the appliance's socket.
func (p *program) socket(v *verb) (string, error) {
	cfg, err := p.config(v)
	if err != nil {
		return "", err
	}
	return cfg.API.Socket, nil
}

// settingsAbout is the paragraph about the sources of settings in the help of serve and plan.
const settingsAbout = `Every flag is also an environment variable and a key of the file given with
--config: --node-name is SVCCTL_NODE_NAME and nodeName, --cluster-cidr is
SVCCTL_CLUSTER_CIDR and clusterCIDR. The flag takes precedence, then the variable, then the
file, then the default. Lists are repeated flags, text with commas, or YAML lists; a given
list replaces that of lower precedence.`

// settingOptions are the options of all settings, or of those that a plan needs.
func settingOptions(plan bool) []*option {
	o := []*option{configOption()}
	for _, s := range settings() {
		if !plan || !s.serveOnly {
			o = append(o, s.option())
		}
	}
	return o
}
