package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// reasonInterference is the Reason of the problem that another program keeps changing our tables.
const reasonInterference = "ForeignInterference"

const (
	// More than fightHeals repairs within fightWindow mean that another program keeps changing our tables: a fight.
	fightHeals  = 5
	fightWindow = 10 * time.Second
	// During a fight the time between two repairs doubles from pauseFirst to pauseLast.
	pauseFirst = time.Second
	pauseLast  = 30 * time.Second
	// fightQuiet is the time without a foreign change after which one repair is made ahead of schedule during a fight. The fight may be over, and
	// clients are not served until the repair.
	fightQuiet = time.Second
	// fightPeace is the time without a change by another program after which a fight is over.
	fightPeace = time.Minute
)

// tamperGuard decides when our tables are repaired after another program changed them (a foreign change). A single foreign change is repaired at
// once. If foreign changes recur (a fight), repairs are made at growing intervals, and a problem is reported.
type tamperGuard struct {
	heals   []time.Time   // times of the repairs within the last fightWindow
	pause   time.Duration // interval between repairs during a fight; 0 if there is no fight
	next    time.Time     // earliest time of the next repair, except after fightQuiet without a foreign change
	hasty   bool          // the last repair was made ahead of next, so the following one must wait until next
	last    time.Time     // time of the last foreign change
	since   time.Time     // time of the first foreign change that is not repaired yet; zero if there is none
	culprit string        // name and process ID of the program that made the last foreign change before the fight
	renewal fastRenewal   // schedule of renewals of the fast path
}

// note records that another program has changed our tables.
func (i *tamperGuard) note(c kernel.Change, now time.Time) {
	i.last = now
	if i.since.IsZero() {
		i.since = now
	}
	if i.pause == 0 {
		i.culprit = "another program"
		if c.Comm != "" {
			i.culprit = fmt.Sprintf("%s (process %d)", c.Comm, c.PID)
		}
	}
}

// mayHeal reports whether our tables may be repaired now.
func (i *tamperGuard) mayHeal(now time.Time) bool { return i.pause == 0 || !now.Before(i.due()) }

// due returns the time of the next repair during a fight (i.pause > 0).
func (i *tamperGuard) due() time.Time {
	if quiet := i.last.Add(fightQuiet); !i.hasty && quiet.Before(i.next) {
		return quiet
	}
	return i.next
}

// healed records that our tables are as planned again. It returns the time since the first foreign change that had not been repaired, 0 if there was
// none. mended is set if a transaction was necessary. Only then does the call count as a repair.
func (i *tamperGuard) healed(now time.Time, mended bool) (took time.Duration) {
	if !i.since.IsZero() {
		took = now.Sub(i.since)
	}
	i.since = time.Time{}
	if !mended {
		return took
	}
	i.heals = append(slices.DeleteFunc(i.heals, func(at time.Time) bool { return now.Sub(at) >= fightWindow }), now)
	switch {
	case i.pause > 0:
		i.hasty = now.Before(i.next)
		i.pause = min(2*i.pause, pauseLast)
	case len(i.heals) > fightHeals:
		i.pause = pauseFirst
	}
	i.next = now.Add(i.pause)
	return took
}

// calm ends a fight if no other program has changed our tables for fightPeace.
func (i *tamperGuard) calm(now time.Time) {
	if i.pause > 0 && i.since.IsZero() && now.Sub(i.last) >= fightPeace {
		*i = tamperGuard{renewal: i.renewal}
	}
}

// until returns the time of the next repair, or of the end of the fight. needed is false if there is no fight.
func (i *tamperGuard) until() (at time.Time, needed bool) {
	switch {
	case i.pause == 0:
		return time.Time{}, false
	case !i.since.IsZero():
		return i.due(), true
	}
	return i.last.Add(fightPeace), true
}

// problem returns the problem to report during a fight. fight is false if there is none.
func (i *tamperGuard) problem() (p manifest.Problem, fight bool) {
	if i.pause == 0 {
		return p, false
	}
	return manifest.Problem{Reason: reasonInterference, Message: fmt.Sprintf(
		"%s keeps changing the tables of svcctl, more than %d times in %v; they are put right, but ever more rarely, up to every %v: "+
			"stop that program, or keep it off the tables ip svcctl and ip6 svcctl", i.culprit, fightHeals, fightWindow, pauseLast)}, true
}

// onForeignChange handles a change of nf_tables by another program, and reports whether the loop has to take a step for it.
func (l *Loop) onForeignChange(c kernel.Change) bool {
	renews := l.tamper.renewal.ask(l.planner.compiler)
	switch {
	case c.Lost:
		l.log.Warn("changes to nf_tables were missed; our tables are read again")
	case c.Ours:
		l.opts.Publisher.foreign++
		l.opts.Publisher.Metrics.ForeignChanged()
		if l.tamper.pause == 0 { // while it goes on, there is a problem
			l.log.Warn("our tables were changed by another program; they are put right", "pid", c.PID, "comm", c.Comm, "generation", c.Generation)
		}
		l.tamper.note(c, l.opts.Clock())
	default:
		return renews
	}
	l.observed.tampered = true
	return true
}

// healed records, after a step, that our tables were repaired, unless a repair is still pending or none was needed.
func (l *Loop) healed(done committed) {
	now := l.opts.Clock()
	defer l.tamper.calm(now)
	if l.observed.tampered || l.tamper.since.IsZero() {
		return
	}
	mended := done.transactions > 0
	took := l.tamper.healed(now, mended)
	if mended {
		l.opts.Publisher.Metrics.Healed(took)
		level := slog.LevelInfo
		if l.tamper.pause > 0 { // while it goes on, there is a problem
			level = slog.LevelDebug
		}
		l.log.Log(context.Background(), level, "our tables are put right", "dur", took.Round(time.Microsecond), "operations", done.operations)
	}
	// A flush deletes a sentinel without an owner (kernels before 5.12).
	if err := l.opts.HoldSentinel(); err != nil {
		l.log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
}

// adopting finds endpoints behind more than one frontend with Adopt set (nft.Frontend.Adopt). A packet from such an endpoint does not show which
// frontend its client used, so none of the frontends adopts connections of the endpoint. The zero value is ready to use.
type adopting struct {
	of     map[string]map[adoptedBy]struct{} // endpoints and their frontends by Service; by is the index by endpoint
	by     map[netip.AddrPort]map[adoptedBy]struct{}
	shared map[netip.AddrPort]bool // endpoints behind several frontends with Adopt set
}

// adoptedBy is an endpoint together with a frontend that has Adopt set.
type adoptedBy struct {
	endpoint          netip.AddrPort
	service, frontend string
}

// set replaces the ports of a Service, and updates shared.
func (a *adopting) set(service string, ports []nft.ServicePort) {
	var now map[adoptedBy]struct{}
	for i := range ports {
		for j := range ports[i].Frontends {
			fe := &ports[i].Frontends[j]
			if !fe.Adopt {
				continue
			}
			for _, ap := range ports[i].Reachable(fe) {
				if now == nil {
					now = map[adoptedBy]struct{}{}
				}
				now[adoptedBy{ap, service, fe.Text()}] = struct{}{}
			}
		}
	}
	before := a.of[service]
	if len(now)+len(before) == 0 {
		return // mostly
	}
	if a.of == nil {
		a.of, a.by, a.shared = map[string]map[adoptedBy]struct{}{}, map[netip.AddrPort]map[adoptedBy]struct{}{}, map[netip.AddrPort]bool{}
	}
	for use := range before {
		delete(a.by[use.endpoint], use)
	}
	for use := range now {
		if a.by[use.endpoint] == nil {
			a.by[use.endpoint] = map[adoptedBy]struct{}{}
		}
		a.by[use.endpoint][use] = struct{}{}
	}
	for _, touched := range []map[adoptedBy]struct{}{before, now} {
		for use := range touched {
			if a.shared[use.endpoint] = len(a.frontends(use.endpoint)) > 1; len(a.by[use.endpoint]) == 0 {
				delete(a.by, use.endpoint)
			}
			if !a.shared[use.endpoint] {
				delete(a.shared, use.endpoint)
			}
		}
	}
	if a.of[service] = now; len(now) == 0 {
		delete(a.of, service)
	}
}

// frontends returns the frontends with Adopt set that lead to an endpoint, sorted.
func (a *adopting) frontends(ap netip.AddrPort) (list []string) {
	for use := range a.by[ap] {
		list = append(list, use.frontend)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// problems returns one problem for each Service that has an endpoint in shared.
func (a *adopting) problems() (all []resolve.Problem) {
	shared := map[string][]netip.AddrPort{}
	for ap := range a.shared {
		for use := range a.by[ap] {
			if !slices.Contains(shared[use.service], ap) {
				shared[use.service] = append(shared[use.service], ap)
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(shared)) {
		endpoints := shared[service]
		slices.SortFunc(endpoints, netip.AddrPort.Compare)
		more := ""
		switch n := len(endpoints) - 1; {
		case n == 1:
			more = ", and 1 more endpoint is shared"
		case n > 1:
			more = fmt.Sprintf(", and %d more endpoints are shared", n)
		}
		all = append(all, resolve.Problem{
			Object: object.ServiceRef(service), Field: "metadata.annotations[" + object.AnnotationAdopt + "]", Reason: "SharedEndpoint", Warning: true,
			Message: fmt.Sprintf("the endpoint %s is behind %s, and its packets do not show which of them its client used: a connection on which it sends first after a takeover ends%s; give each address its own port or endpoints",
				endpoints[0], strings.Join(a.frontends(endpoints[0]), " and "), more),
		})
	}
	return all
}
