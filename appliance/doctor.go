package appliance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
)

// Finding is the result of one check of Doctor.
type Finding = checkup.Finding

// Doctor examines everything on this host that the appliance depends on, and changes
// nothing. serving tells whether an appliance answers on cfg.Socket.
func Doctor(_ context.Context, cfg Config, serving bool) []Finding {
	findings := kernelFindings(serving)
	facts, err := checkup.Read(procPath)
	if err != nil {
		findings = append(findings, Finding{Check: "settings", Level: checkup.Warning, Message: err.Error(), Advice: "run it as root"})
	}
	findings = append(findings, checkup.Examine(&facts)...)
	if cfg.TLSCert != "" {
		findings = append(findings, certificateOffline(cfg.TLSCert, cfg.TLSKey, time.Now()))
	}
	findings = append(findings, dataFinding(cfg.DataDir, serving))
	for _, dir := range cfg.Manifests {
		findings = append(findings, manifestsFinding(dir))
	}
	return findings
}

// kernelFindings are about nf_tables and who else uses it.
func kernelFindings(serving bool) []Finding {
	k, err := kernel.Open(kernel.Options{})
	switch {
	case errors.Is(err, kernel.ErrPermission):
		return []Finding{{Check: "kernel", Level: checkup.Error, Message: err.Error(), Advice: "run `sudo svcctl doctor`"}}
	case err != nil:
		return []Finding{{Check: "kernel", Level: checkup.Error, Message: err.Error(), Advice: "load what is missing, or run a kernel that has it"}}
	}
	defer k.Close()
	features := k.Probe()
	message := "Linux " + features.Release + " has all that is needed"
	if missing := features.Missing(); len(missing) > 0 {
		message += "; it could do without, but lacks: " + strings.Join(missing, ", ")
	}
	findings := []Finding{{Check: "kernel", Level: checkup.OK, Message: message}}
	if !features.Owner {
		findings[0].Level = checkup.Warning
		findings[0].Advice = "Linux 5.12 and later protect established connections when somebody flushes the ruleset"
	}
	return append(findings, otherInstance(k, serving), otherRules(k))
}

// otherInstance looks for an svcctl that serves elsewhere.
func otherInstance(k *kernel.Conn, serving bool) Finding {
	const check = "instance"
	held, err := k.SentinelHeld()
	switch {
	case err != nil:
		return checkup.Doubt(check, err.Error(), "try again")
	case held && !serving:
		return checkup.Fault(check, "an svcctl serves in this network namespace, and not on this socket",
			"give its --socket or its --config; if it is none of yours, stop it before you start another one")
	case serving && !held:
		return checkup.Doubt(check, "an svcctl answers on the socket, but holds no sentinel table in this network namespace",
			"see whether it serves in another namespace, and what it logged at its start")
	case serving:
		return checkup.Well(check, "one svcctl serves")
	}
	return checkup.Well(check, "no svcctl serves")
}

// otherRules looks at the base chains of others that can come into our way: what drops
// forwarded packets, and what translates them too.
func otherRules(k *kernel.Conn) Finding {
	const check = "rulesets"
	chains, err := k.BaseChains()
	if err != nil {
		return checkup.Doubt(check, err.Error(), "try again")
	}
	var dropping, translating []string
	for _, c := range chains {
		switch {
		case c.Ours():
		case c.Drops && slices.Contains([]string{"forward", "prerouting", "postrouting"}, c.Hook):
			dropping = append(dropping, c.String())
		case c.Type == "nat" && slices.Contains([]string{"prerouting", "output", "postrouting"}, c.Hook):
			translating = append(translating, c.String())
		}
	}
	var messages, advice []string
	if len(dropping) > 0 {
		messages = append(messages, "dropping what they do not accept: "+strings.Join(dropping, ", "))
		advice = append(advice, "accept there what goes to Services (`ct status dnat accept`) and comes back (`ct state established,related accept`)")
	}
	if len(translating) > 0 {
		messages = append(messages, "translating addresses too: "+strings.Join(translating, ", "))
		advice = append(advice, "see that these rules are about other addresses: the first one that translates a connection wins")
	}
	if len(messages) == 0 {
		return checkup.Well(check, fmt.Sprintf("no rules of others are in the way (%d base chains)", len(chains)))
	}
	return checkup.Doubt(check, strings.Join(messages, "; "), strings.Join(advice, "; "))
}

func dataFinding(dir string, serving bool) Finding {
	const check = "data"
	state, err := store.Inspect(dir)
	switch {
	case err != nil:
		return checkup.Fault(check, err.Error(), "nothing can be allocated until then")
	case state == store.DirectoryInUse && !serving:
		return checkup.Doubt(check, "data directory "+dir+" is in use, and nobody answers on the socket",
			"give the --socket of the svcctl that uses it, or wait if it is just starting")
	case state == store.DirectoryAbsent && serving:
		return checkup.Doubt(check, "data directory "+dir+" does not exist, but an svcctl serves", "give its --data-dir or its --config")
	case state == store.DirectoryAbsent:
		return checkup.Well(check, "data directory "+dir+" is not there yet: the first start makes it")
	}
	return checkup.Well(check, "data directory "+dir+" is "+string(state))
}

func manifestsFinding(dir string) Finding {
	const check = "manifests"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return checkup.Fault(check, err.Error(), "make the directory, or correct --manifests; until then what it held last stays in force")
	}
	return checkup.Well(check, fmt.Sprintf("%s can be read (%d entries)", dir, len(entries)))
}
