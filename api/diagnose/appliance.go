package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// programmed checks that the present version is in the kernel.
func (d *diagnosis) programmed() {
	for _, p := range d.problems() {
		if p.Reason == refusedByKernel {
			d.add(Bad, "change the Service; if it looks right, that is a fault of svcctl: please report it", "the kernel does not take it: %s", p.Message)
			return
		}
	}
	programmed := d.Status.Revision.Programmed
	wide := ""
	if d.Wide {
		wide = fmt.Sprintf(" (revision %d; all up to %d is programmed)", d.version(), programmed)
	}
	switch {
	case !d.Status.Ready:
		d.add(Bad, "wait: `svcctl wait --for ready`", "the appliance is not ready: %s", d.Status.Reason)
	case d.Status.RulesAway:
		d.add(Bad, "stop the program that changes them: `svcctl status` names it", "its rules are not in the kernel: %s", cmp.Or(strings.TrimPrefix(d.Status.Reason, "the rules are not in force: "),
			"another program has changed the tables of svcctl, and they are about to be put right"))
	case d.State != nil && d.State.NotStored != nil:
		at := d.State.NotStored
		d.add(Bad, "`svcctl status` tells what keeps it; it is tried again by itself", "what %s says now is not stored yet, and an earlier version is in force: %s", at.File, at.Why)
	case d.isNewer():
		d.add(Bad, "wait, and look at `svcctl status`: `svcctl wait --for synced`", "its present version is not in the kernel yet%s", wide)
	default:
		d.good("its present version is in the kernel%s", wide)
	}
}

// boxReasons are problems that are about the box, which may keep any Service from
// answering, and what they mean.
var boxReasons = map[string]string{
	"MassRemovalHeld":     "what vanished from the manifests is kept in force",
	"UnknownServicesHeld": "what the kernel serves and no object declares is kept in force",
	"DiskFull":            "changes cannot be stored",
	"ForeignInterference": "", // said in another way
	"Host":                "a setting of the box",
}

// appliance adds findings about the box itself.
func (d *diagnosis) appliance() {
	told := 0
	for _, p := range d.Status.Problems {
		what, is := boxReasons[p.Reason]
		if !is || p.Object != "" {
			continue
		}
		told++
		if p.Reason == "ForeignInterference" {
			what, _, _ := strings.Cut(p.Message, ": stop that program")
			d.add(Bad, "stop that program, or keep it off the tables ip svcctl and ip6 svcctl", "another program changes the tables again and again, and clients fail whenever it does: %s", what)
			continue
		}
		next := "`svcctl doctor` tells more"
		switch p.Reason {
		case "MassRemovalHeld":
			next = "put the files back, or let them go: `svcctl release`"
		case "UnknownServicesHeld":
			next = "put the data directory back, or apply the objects again, or let them go: `svcctl release`"
		case "DiskFull":
			next = "free space on that disk"
		}
		d.add(Doubt, next, "%s: %s", what, p.Message)
	}
	if !d.Status.Synced && d.Status.Ready && d.Status.Reason != "" && !d.Status.RulesAway {
		d.add(Doubt, "", "the appliance is behind: %s", d.Status.Reason)
		return
	}
	if told == 0 {
		d.good("the settings of the box are as they should be; rules of other programs are not looked at: see `svcctl doctor`")
	}
}

// Nobody returns the findings about an address that no Service has.
func Nobody(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	q := f.Question
	what := q.Address.String()
	if !q.Address.IsValid() {
		what = fmt.Sprintf("port %d%s of this box", q.Port, slashed(q.Protocol))
	}
	d.add(Bad, "`svcctl get services -A -o wide` lists the Services with their addresses", "no Service answers at %s", what)
	if f.Allocations != nil {
		d.place(q)
	}
	for _, p := range f.Status.Problems {
		if p.Severity == wire.SeverityError && q.Address.IsValid() && strings.Contains(p.Message, q.Address.String()) {
			d.add(Bad, "mend it where it is written", "a problem names it: %s", p.String())
		}
	}
	d.appliance()
	return d.findings
}

// place adds the range that contains an address or port without a holder.
func (d *diagnosis) place(q Question) {
	for _, pool := range d.Allocations.Pools {
		for _, h := range pool.Holders {
			if q.Address.IsValid() && h.Value == q.Address.String() {
				d.add(Bad, "wait for it, or run `svcctl alloc check`", "it is held by %s, which does not answer on it", strings.Join(h.Services, ", "))
				return
			}
		}
		if q.Address.IsValid() && inRange(q.Address, pool.Range) {
			if pool.Kind == wire.PoolClusterIP {
				d.add(Doubt, "", "it lies in the range of cluster IPs %s and no Service has it: clients get no answer", pool.Range)
			} else {
				d.add(Doubt, "", "it lies in the pool of load balancer IPs %s and no Service has it: clients get no answer, unless it is on a network of the box", pool.Range)
			}
			return
		}
	}
	if q.Address.IsValid() {
		d.add(Doubt, "", "it lies in none of the appliance's ranges: packets to it are not ours")
	}
}

// inRange reports whether an address lies in 10.0.0.0/8 or 10.0.0.1-10.0.0.9.
func inRange(addr netip.Addr, text string) bool {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Contains(addr)
	}
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		return false
	}
	a, err1 := netip.ParseAddr(first)
	b, err2 := netip.ParseAddr(last)
	return err1 == nil && err2 == nil && a.BitLen() == addr.BitLen() && a.Compare(addr) <= 0 && addr.Compare(b) <= 0
}
