package appliance

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/manifest"
)

// The reasons of problems with the fast path. reasonFastPath means that this kernel does not support it, reasonFastPathKernel that the kernel may
// misbehave with it.
const (
	reasonFastPath       = "FastPath"
	reasonFastPathKernel = "FastPathKernel"
)

// fastPath is the result of testing this kernel for flowtables. The zero value means that the settings do not request a fast path.
type fastPath struct{ kernel.FastPath }

// tryFastPath tests the kernel for flowtables, if the settings ask for a fast path.
func tryFastPath(cfg *config.Config, k *kernel.Conn, log *slog.Logger) (f fastPath) {
	if cfg.Box(nil).Fast == nil {
		return f
	}
	if f.FastPath = k.FastPath(); f.Lacks != "" {
		log.Error("there is no fast path, and everything else works", "err", f.Lacks)
	}
	return f
}

// limit removes the flowtable from a host whose kernel does not support it.
func (f fastPath) limit(host *reconcile.Host) {
	if f.Lacks != "" {
		host.Box.Fast, host.Resolve.FastPath.Lacks = nil, f.Lacks
	}
}

// problems returns the problems that the test of the kernel found.
func (f fastPath) problems() (list []manifest.Problem) {
	if f.Lacks != "" {
		list = append(list, manifest.Problem{Reason: reasonFastPath, Message: f.Lacks + "; until then --fast-path has no effect, and everything else works"})
	}
	if f.Doubt != "" {
		list = append(list, manifest.Problem{Reason: reasonFastPathKernel, Warning: true, Message: f.Doubt})
	}
	return list
}

// countFast registers the metrics of the fast path, if the settings ask for one.
func countFast(a *assembly) {
	if a.cfg.Box(nil).Fast == nil {
		return
	}
	a.metrics.Scraped("fast path", func(to metrics.Samples) {
		of, box := a.grants.Served()
		frontends, devices := 0, 0
		if box.Fast != nil {
			devices = len(box.Fast.Devices)
			for _, ports := range of {
				for i := range ports {
					if ports[i].Fast {
						frontends += len(ports[i].Frontends)
					}
				}
			}
		}
		to.Set("svcctl_fast_path_frontends", float64(frontends))
		to.Set("svcctl_fast_path_devices", float64(devices))
	})
}

// fastFinding returns the checkup's finding about flowtables. It lists the flowtables of other programs (foreign) or, if there are none, the
// interfaces in this box's own flowtables (have). It returns nil if there are neither. err is the error of reading foreign.
func fastFinding(foreign []kernel.ForeignFlowtable, err error, have nft.Ruleset) []checkup.Finding {
	const check = "fast-path"
	if err != nil {
		return []checkup.Finding{checkup.Doubt(check, err.Error(), "try again")}
	}
	var others []string
	for _, w := range foreign {
		others = append(others, fmt.Sprintf("table %s %s, flowtable %s of %s", w.Family, w.Table, w.Name, cmp.Or(strings.Join(w.Devices, ", "), "no interface")))
	}
	devices := map[string]bool{}
	for _, table := range have {
		for _, w := range table.Flowtables {
			for _, d := range w.Devices {
				devices[d.Name] = true
			}
		}
	}
	switch {
	case len(others) > 0:
		return []checkup.Finding{checkup.Doubt(check, "packets of established connections pass the rules by, also of Services: "+strings.Join(others, "; "),
			"take Services out of that program's flowtable, unless they may skip rules (`man 7 svcctl-fastpath`)")}
	case len(devices) > 0:
		return []checkup.Finding{checkup.Well(check, "connections are fast between "+strings.Join(slices.Sorted(maps.Keys(devices)), ", "))}
	}
	return nil
}
