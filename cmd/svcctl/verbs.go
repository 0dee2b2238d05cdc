package main

// verbs are the verbs, in the order help lists them. Each call makes new ones: their
// options keep what they are given.
func (p *program) verbs() []*verb {
	return []*verb{
		p.serveVerb(), p.planVerb(), p.pinVerb(), p.validateVerb(), p.schemaVerb(), p.statusVerb(), p.waitVerb(),
		p.exposeVerb(), p.importVerb(), p.applyVerb(), p.diffVerb(), p.getVerb(), p.describeVerb(), p.editVerb(), p.deleteVerb(),
		p.trialVerb(), p.confirmVerb(), p.rolloutVerb(), p.rollbackVerb(), p.exportVerb(), p.restoreVerb(),
		p.explainVerb(), p.traceVerb(), p.topVerb(), p.connsVerb(), p.dashboardVerb(), p.healthVerb(), p.outVerb(), p.inVerb(), p.allocVerb(),
		p.announceVerb(), p.announcementsVerb(), p.drainVerb(), p.undrainVerb(), p.fleetVerb(), p.sourceVerb(),
		p.kubeconfigVerb(), p.tokenVerb(), p.journalVerb(),
		p.envVerb(), p.releaseVerb(), p.doctorVerb(), p.downVerb(), p.versionVerb(), p.completionVerb(), p.helpVerb(),
	}
}

// rootVerb is `svcctl` itself: its help lists the verbs.
func rootVerb(verbs []*verb) *verb {
	list := ""
	for _, v := range verbs {
		list += "  " + pad(v.name, 15) + v.summary + "\n"
	}
	return &verb{
		name:    "svcctl",
		summary: "svcctl: Kubernetes Services on a plain Linux machine, compiled to nftables",
		args:    "VERB [FLAGS]",
		about: list + `
It reads Services, and the EndpointSlices, Endpoints or Pods behind them, from
directories of YAML, or takes them from clients of its API, which is that of
Kubernetes: ` + "`svcctl apply`" + `, kubectl. It gives them addresses and ports, and programs
the kernel to balance their traffic. No cluster is needed.

` + "`svcctl help VERB` or `svcctl VERB --help` tells more about a verb.",
		options: []*option{{name: "version", usage: "print the version", group: "Flags"}},
		examples: []example{
			{"See what a directory would become. Needs no privilege and changes nothing.", "svcctl plan -f examples/quickstart"},
			{"Make it so, and keep it so while the files change.", "sudo svcctl serve --manifests examples/quickstart"},
			{"Is everything in force?", "sudo svcctl status"},
			{"Why does this address not answer?", "sudo svcctl explain 10.96.0.10:80"},
		},
		exits: `  0  done
  1  the answer is no, or something was refused: stderr says what
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
	}
}

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

// settingsAbout tells, in the help of serve and plan, where settings come from.
const settingsAbout = `Every flag is also an environment variable and a key of the file given with
--config: --node-name is SVCCTL_NODE_NAME and nodeName, --cluster-cidr is
SVCCTL_CLUSTER_CIDR and clusterCIDR. The flag counts first, then the variable,
then the file, then the default. Lists are flags given several times, text with
commas, or YAML lists; a list that is given replaces the one behind it.`

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

// pad fills s with blanks to width characters.
func pad(s string, width int) string {
	for len(s) < width {
		s += " "
	}
	return s
}
