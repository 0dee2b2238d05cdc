package appliance

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/appliance/checkup"
)

// without has what it means for Services that the kernel lacks a feature (nft/kernel.Features), and what brings it. Where
// nothing follows, means is empty.
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

// kernelFinding is about a kernel that has all that is needed, and lacks some features.
func kernelFinding(release string, missing []string) Finding {
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
