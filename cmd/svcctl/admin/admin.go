package admin

import (
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// AdminVerb has the verbs of the care for an appliance.
func AdminVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "admin",
		Summary: "back up and restore; addresses; access to the API",
		About: `Rare tasks of administrators: copies of the state, the use of addresses and ports, and
access to the API for kubectl, curl and programs.`,
		Verbs: cli.Words(exportVerb(), restoreVerb(), allocVerb(), pinVerb(), kubeconfigVerb(), tokenVerb(), envVerb()),
	}
}
