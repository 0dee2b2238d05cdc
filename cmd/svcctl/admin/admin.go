package admin

import (
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// AdminVerb has the verbs of the care for an appliance.
func AdminVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "admin",
		Verbs: cli.Words(exportVerb(), restoreVerb(), allocVerb(), pinVerb(), kubeconfigVerb(), tokenVerb(), envVerb()),
	}
}
