package main

import "svcctl.io/svcctl/cmd/svcctl/output"

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
		list += "  " + output.Pad(v.name, 15) + v.summary + "\n"
	}
	return &verb{
		name:    "svcctl",
		summary: "svcctl: Kubernetes Services on a plain Linux machine, compiled to nftables",
		args:    "VERB [FLAGS]",
		about: list + `
It reads Services, with their EndpointSlices, Endpoints or Pods, from directories of YAML
and from clients of its Kubernetes API: ` + "`svcctl apply`" + `, kubectl. It allocates
addresses and ports, and programs the kernel to balance their traffic. No cluster is needed.

` + "`svcctl help VERB` or `svcctl VERB --help` describes a verb.",
		options: []*option{{name: "version", usage: "print the version", group: "Flags"}},
		examples: []example{
			{"See what a directory would become. Needs no privilege and changes nothing.", "svcctl plan -f examples/quickstart"},
			{"Make it so, and keep it so while the files change.", "sudo svcctl serve --manifests examples/quickstart"},
			{"Whether everything is in force.", "sudo svcctl status"},
			{"Why does this address not answer?", "sudo svcctl explain 10.96.0.10:80"},
		},
		exits: `  0  done
  1  the answer is no, or something was refused: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
	}
}
