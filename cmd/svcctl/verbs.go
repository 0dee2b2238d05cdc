package main

const rootName = "svcctl"

// The groups of verbs in help.
const (
	groupServe  = "Serve"
	groupChange = "Change"
	groupLook   = "Look"
	groupAdmin  = "Admin"
	groupWords  = "Words" // of verbs below a verb
)

// root returns svcctl itself with all verbs below it, in the order of help. Each call makes new ones: their
// options keep what they are given.
func (p *program) root() *verb {
	root := &verb{
		name:    rootName,
		summary: "Kubernetes Services on a plain Linux machine, compiled to nftables",
		args:    "VERB [FLAGS]",
		about: `It reads Services, with their EndpointSlices, Endpoints or Pods, from directories of YAML
and from clients of its Kubernetes API: ` + "`svcctl apply`" + `, kubectl. It allocates
addresses and ports, and programs the kernel to balance their traffic. No cluster is needed.

When something does not work: ` + "`svcctl status`" + ` finds it, ` + "`svcctl explain`" + ` gives the
reason, and ` + "`svcctl trace`" + ` proves it, packet by packet. The other verbs of Look show details.

` + "`svcctl VERB --help` or `svcctl help VERB`" + ` describes a verb.`,
		options: []*option{{name: "version", usage: "print the version", group: "Flags"}},
		examples: []example{
			{"The ruleset of a directory. Needs no privilege and changes nothing.", "svcctl plan -f examples/quickstart"},
			{"Program it, and follow changes of the files.", "sudo svcctl serve --manifests examples/quickstart"},
			{"Whether everything is in force.", "sudo svcctl status"},
			{"Why does this address not answer?", "sudo svcctl explain 10.96.0.10:80"},
		},
		exits: `  0  done
  1  the answer is no, or something was refused: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
	}
	add := func(group string, verbs ...*verb) {
		for _, v := range verbs {
			v.group = group
			root.verbs = append(root.verbs, v)
		}
	}
	add(groupServe, p.serveVerb(), p.doctorVerb(), p.downVerb(), p.dashboardVerb(), p.announceVerb(), p.fleetVerb())
	add(groupChange, p.applyVerb(), p.deleteVerb(), p.editVerb(), p.exposeVerb(), p.importVerb(), p.validateVerb(), p.diffVerb(), p.planVerb(),
		p.confirmVerb(), p.rollbackVerb(), p.outVerb(), p.inVerb())
	add(groupLook, p.statusVerb(), p.explainVerb(), p.getVerb(), p.describeVerb(), p.waitVerb(), p.healthVerb(), p.topVerb(), p.traceVerb(), p.journalVerb())
	add(groupAdmin, p.adminVerb())
	add("", p.versionVerb(), p.completionVerb(), p.helpVerb(), p.completeVerb())
	return root
}

// adminVerb has the verbs of the care for an appliance.
func (p *program) adminVerb() *verb {
	return &verb{
		name:    "admin",
		summary: "back up and restore; addresses; access to the API",
		about: `Rare tasks of administrators: copies of the state, the use of addresses and ports, and
access to the API for kubectl, curl and programs.`,
		verbs: words(p.exportVerb(), p.restoreVerb(), p.allocVerb(), p.pinVerb(), p.kubeconfigVerb(), p.tokenVerb(), p.envVerb()),
	}
}

// words lists verbs below another one.
func words(verbs ...*verb) []*verb {
	for _, v := range verbs {
		v.group = groupWords
	}
	return verbs
}
