package appliance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/engine"
)

// Packaged reports whether systemd runs svcctl on this box.
func Packaged() wire.Packaged { return checkup.Packaged() }

// Left returns how many addresses and ports the rules in the kernel serve, and whether a running process owns them.
func Left() (frontends int, held bool, err error) {
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return 0, false, err
	}
	defer k.Close()
	have, err := k.ReadFrontends()
	if err != nil {
		return 0, false, err
	}
	held, err = k.SentinelHeld()
	return nft.CountFrontends(have), held, err
}

// Doctor checks everything on this host that the appliance depends on, and changes nothing. serving reports whether an appliance responds
// on cfg.Socket.
func Doctor(_ context.Context, cfg config.Config, serving bool) []checkup.Finding {
	findings, served, adopting := kernelFindings(serving)
	facts, err := checkup.Read(procPath)
	facts.Packaged = checkup.Packaged()
	if err != nil {
		findings = append(findings, checkup.Finding{Check: "settings", Level: checkup.Warning, Message: err.Error(), Advice: "run it as root"})
	}
	findings = append(findings, checkup.Examine(&facts)...)
	findings = append(findings, checkup.ExamineAnnouncing(&facts))
	if adopting {
		findings = append(findings, checkup.ExamineAdopting(&facts))
	}
	findings = append(findings, nodeFindings(&cfg, &facts)...)
	if cfg.API.TLSCert != "" {
		findings = append(findings, apiserver.CertificateOffline(cfg.API.TLSCert, cfg.API.TLSKey, time.Now()))
	}
	findings = append(findings, dataFinding(cfg.DataDir, serving, served))
	if free, readOnly, err := engine.Space(cfg.DataDir); err == nil { // where there is none, the data is the finding
		findings = append(findings, diskFinding(cfg.DataDir, free, readOnly))
	}
	for _, dir := range cfg.ManifestDirs() {
		findings = append(findings, manifestsFinding(dir))
	}
	return findings
}

// nodeFindings returns the findings about bridges of this host, and about its networks that overlap the service ranges.
func nodeFindings(c *config.Config, settings *checkup.Facts) []checkup.Finding {
	facts, err := node.Read()
	if err != nil {
		return []checkup.Finding{checkup.Doubt("service-range", err.Error(), "run it as root")}
	}
	return []checkup.Finding{checkup.ExamineBridges(settings, facts.Bridges()), checkup.ExamineDocker(facts.Bridges()), rangeFinding(c, &facts)}
}

// UplinkFinding returns the finding about VIPs with replies that leave by an uplink other than the one whose network contains the VIP.
func UplinkFinding(vips []netip.Addr) checkup.Finding {
	const check = "uplinks"
	list, err := node.MisroutedReplies(vips)
	if err != nil {
		return checkup.Doubt(check, err.Error(), "run it as root")
	}
	if len(list) == 0 {
		return checkup.Well(check, "replies from addresses of Services leave by the uplinks that have them")
	}
	first, others := list[0], ""
	if len(list) > 1 {
		others = fmt.Sprintf(", and %d more", len(list)-1)
	}
	return checkup.Doubt(check, fmt.Sprintf("replies from %s%s leave by %s, and the network of %s has the address: clients behind that uplink may get no answer", first.Addr, others, first.Leaves, first.Lies),
		"route replies by the mark of their original destination: `man 7 svcctl-uplinks` has the rules")
}

func rangeFinding(c *config.Config, facts *node.Facts) checkup.Finding {
	const check = "service-range"
	if problems := c.OverlapProblems(facts, nil); len(problems) > 0 {
		message, advice, _ := strings.Cut(problems[0].Message, "; ")
		return checkup.Fault(check, message, advice)
	}
	return checkup.Well(check, "no network of this host is in a service range")
}

// kernelFindings returns the findings about nf_tables and other programs that use it. served is the number of the appliance's addresses and
// ports in the kernel. adopting is set when connections of some Service are to survive a takeover by another box.
func kernelFindings(serving bool) (findings []checkup.Finding, served int, adopting bool) {
	k, err := kernel.Open(kernel.Options{})
	switch {
	case errors.Is(err, kernel.ErrPermission):
		return []checkup.Finding{{Check: "kernel", Level: checkup.Error, Message: err.Error(), Advice: "run `sudo svcctl doctor`"}}, 0, false
	case err != nil:
		return []checkup.Finding{{Check: "kernel", Level: checkup.Error, Message: err.Error(), Advice: "load the missing module, or run a kernel with the feature"}}, 0, false
	}
	defer k.Close()
	features := k.Probe()
	findings = []checkup.Finding{kernelFinding(features.Release, features.Missing())}
	if have, err := k.ReadFrontends(); err == nil { // what cannot be read is no evidence
		served, adopting = nft.CountFrontends(have), nft.Adopts(have)
		foreign, err := k.ForeignFlowtables()
		findings = append(findings, fastFinding(foreign, err, have)...)
	}
	return append(findings, otherInstance(k, serving, served), otherRules(k)), served, adopting
}

// otherInstance returns the finding about svcctl processes that serve in this network namespace. serving reports whether one responds on the
// configured socket. served is the number of addresses and ports in the kernel.
func otherInstance(k *kernel.Conn, serving bool, served int) checkup.Finding {
	const check = "instance"
	switch held, err := k.SentinelHeld(); {
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
	case served > 0:
		return checkup.Fault(check, fmt.Sprintf("svcctl is not running: %d addresses and ports stay in force, and changes wait", served), "run "+Packaged().Serve())
	}
	return checkup.Doubt(check, "svcctl is not running, and the kernel has none of its rules", "run "+Packaged().Serve())
}

// otherRules returns the finding about base chains of other programs that may interfere: those that drop forwarded packets or translate
// addresses.
func otherRules(k *kernel.Conn) checkup.Finding {
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
		advice = append(advice, "check that these rules have other addresses: the first one that translates a connection wins")
	}
	if len(messages) == 0 {
		return checkup.Well(check, fmt.Sprintf("no rules of others are in the way (%d base chains)", len(chains)))
	}
	return checkup.Doubt(check, strings.Join(messages, "; "), strings.Join(advice, "; "))
}

func dataFinding(dir string, serving bool, served int) checkup.Finding {
	const check = "data"
	var state engine.DirectoryState
	err := engine.AsOwner(dir, func() (err error) {
		state, err = engine.Inspect(dir)
		return err
	})
	switch {
	case err != nil:
		return checkup.Fault(check, err.Error(), "nothing can be allocated until then")
	case state == engine.DirectoryInUse && !serving:
		return checkup.Doubt(check, "data directory "+dir+" is in use, and no process answers on the socket",
			"give the --socket of the svcctl that uses it, or wait if it is just starting")
	case state == engine.DirectoryAbsent && serving:
		return checkup.Doubt(check, "data directory "+dir+" does not exist, but an svcctl serves", "give its --data-dir or its --config")
	case state == engine.DirectoryAbsent && served > 0:
		return checkup.Fault(check, fmt.Sprintf("data directory %s has no state.db, but the kernel serves %d addresses and ports of svcctl", dir, served),
			"if it is not mounted, or was moved, put it back before svcctl starts; if it is lost, start svcctl and apply the objects again: "+
				"what the kernel serves stays in force until then, or until `svcctl confirm --removals`; `svcctl down` removes all of it")
	case state == engine.DirectoryAbsent:
		return checkup.Well(check, "data directory "+dir+" is not there yet: the first start makes it")
	}
	return checkup.Well(check, "data directory "+dir+" is "+string(state))
}

// scarce is the free space of a disk, in bytes, below which Doctor warns.
const scarce = 4 << 20

// diskFinding returns the finding about the file system of the data directory.
func diskFinding(dir string, free int64, readOnly bool) checkup.Finding {
	const check = "disk"
	switch {
	case readOnly:
		return checkup.Fault(check, "the file system of "+dir+" is read-only: nothing can be stored, and what is in force stays in force",
			"see why (`dmesg`), and mount it writable")
	case free < scarce:
		return checkup.Doubt(check, fmt.Sprintf("the file system of %s has %d KiB left: when it is full nothing can be stored, and what is in force stays in force", dir, free>>10),
			"free space there")
	}
	return checkup.Well(check, fmt.Sprintf("the file system of %s has %d MiB left", dir, free>>20))
}

func manifestsFinding(dir string) checkup.Finding {
	const check = "manifests"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return checkup.Fault(check, err.Error(), "create the directory, or correct --manifests; until then its last content stays in force")
	}
	return checkup.Well(check, fmt.Sprintf("%s can be read (%d entries)", dir, len(entries)))
}

// without maps a feature that the kernel lacks (nft/kernel.Features) to the consequence for Services ("" for none), and to what provides
// the feature.
var without = map[string]struct{ means, brings string }{
	"destroy element":       {"", "Linux 6.3"},
	"table flag persist":    {"", "Linux 6.9"},
	"table flag owner":      {"a foreign flush of the ruleset resets established connections, and a second svcctl is only found by the data directory", "Linux 5.12"},
	"connection timeouts":   {"svcctl.io/idle-timeout has no effect", "Linux 4.19 with CONFIG_NF_CONNTRACK_TIMEOUT"},
	"jhash":                 {"Services with weights or a hash (svcctl.io/balance) cannot be programmed", "CONFIG_NFT_HASH"},
	"counters of elements":  {"`svcctl top` and the metrics have no counts of Services and refusals", "Linux 5.7 with CONFIG_NFT_COUNTER and CONFIG_NFT_OBJREF"},
	"rate limits":           {"svcctl.io/rate-limit and client-rate-limit have no effect", "CONFIG_NFT_LIMIT"},
	"counts of connections": {"svcctl.io/client-connections has no effect", "Linux 4.18 with CONFIG_NFT_CONNLIMIT"},
}

// kernelFinding returns the finding about a kernel that has all required features and lacks some optional ones.
func kernelFinding(release string, missing []string) checkup.Finding {
	const check = "kernel"
	message := "Linux " + release + " has all that is needed"
	var names, means, brings []string
	for _, name := range missing {
		names = append(names, fmt.Sprintf("%s (%s)", name, without[name].brings))
		if w := without[name]; w.means != "" {
			means = append(means, w.means)
			brings = append(brings, w.brings)
		}
	}
	if len(names) > 0 {
		message += "; it could do without, but lacks: " + strings.Join(names, ", ")
	}
	if len(means) == 0 {
		return checkup.Well(check, message)
	}
	return checkup.Doubt(check, message+": "+strings.Join(means, "; "), "run a kernel that has it: "+strings.Join(brings, ", "))
}
