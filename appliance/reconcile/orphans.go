package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// reasonOrphans is the Reason of the problem that the kernel serves frontends that no object declares.
const reasonOrphans = "UnknownServicesHeld"

// Orphans holds the frontends that the kernel serves although no object declares them, because the data directory has lost its state.db or is not
// mounted. They stay in force, as Service ports without a Service, until an object declares them or `svcctl confirm --removals` releases them.
type Orphans struct {
	box   nft.Box // the configuration for recovering Service ports from a ruleset
	ports map[string]nft.ServicePort
	// changed holds the keys of ports with changes that take has not returned yet.
	changed map[string]bool
	byKey   map[frontend]string
	byAddr  map[netip.Addr]map[string]bool
	byName  map[string][]string // keys of the ports that name a Service, because they have session affinity, by Service
}

// frontend identifies a frontend in the kernel's maps.
type frontend struct {
	family nft.Family
	proto  nft.Protocol
	addr   netip.Addr // the zero Addr for a node port
	port   uint16
	last   uint16 // last port of a range; 0 for a single port
}

// FindOrphans returns the frontends that the kernel serves but the store has lost, or nil if there are none. It looks for them if the store has no
// Services, or if orphans are still reserved from an earlier start. It reserves their addresses and ports in the store. If release is set
// (--allow-mass-removal), it returns nil, so that they are removed.
func FindOrphans(objects *store.Store, read func() (nft.Ruleset, uint32, error), box nft.Box, release bool, log *slog.Logger) (*Orphans, error) {
	if !objects.Blank() && !objects.HasReserved() {
		return nil, nil
	}
	have, _, err := read()
	if err != nil {
		return nil, fmt.Errorf("read what is in force: %w", err)
	}
	o := &Orphans{box: box}
	o.adopt(have)
	if len(o.ports) > 0 && release {
		log.Warn("the kernel serves what the data directory does not have; as --allow-mass-removal is given, it is removed", "frontends", o.frontends())
	}
	if len(o.ports) == 0 || release {
		o, err = nil, objects.Unreserve()
	} else {
		err = objects.Reserve(o.reserved())
	}
	if err != nil { // the disk may be full: what the kernel serves is held all the same
		log.Warn("after a restart, addresses that the kernel serves and no object declares may not be recognized", "err", err)
	}
	return o, nil
}

// adopt makes all frontends in the kernel's ruleset orphans. The first plan then removes those that Services declare.
func (o *Orphans) adopt(have nft.Ruleset) {
	o.ports, o.changed = map[string]nft.ServicePort{}, map[string]bool{}
	o.byKey, o.byAddr, o.byName = map[frontend]string{}, map[netip.Addr]map[string]bool{}, map[string][]string{}
	for i, p := range nft.Recover(have, &o.box) {
		key := fmt.Sprintf("?%d", i) // no Service has that name
		o.ports[key], o.changed[key] = p, true
		if parts := strings.SplitN(p.ID, "/", 3); len(parts) > 1 {
			service := parts[0] + "/" + parts[1]
			o.byName[service] = append(o.byName[service], key)
		}
		for j := range p.Frontends {
			fe := frontendOf(&p, &p.Frontends[j])
			o.byKey[fe] = key
			if fe.addr.IsValid() {
				if o.byAddr[fe.addr] == nil {
					o.byAddr[fe.addr] = map[string]bool{}
				}
				o.byAddr[fe.addr][key] = true
			}
		}
	}
}

func frontendOf(p *nft.ServicePort, fe *nft.Frontend) frontend {
	return frontend{p.Family, p.Protocol, fe.Addr, fe.Port, fe.Last}
}

// frontends returns the number of orphaned frontends.
func (o *Orphans) frontends() int {
	n := 0
	if o != nil {
		for _, p := range o.ports {
			n += len(p.Frontends)
		}
	}
	return n
}

// reserved returns the orphaned frontends in the form in which the store reserves them.
func (o *Orphans) reserved() (all []store.ReservedFrontend) {
	for _, key := range slices.Sorted(maps.Keys(o.ports)) {
		p := o.ports[key]
		var endpoints []netip.Addr
		for _, ap := range p.Serving {
			endpoints = append(endpoints, ap.Addr())
		}
		for _, fe := range p.Frontends {
			port := alloc.Port{Protocol: p.Protocol.Name(), Number: fe.Port}
			all = append(all, store.ReservedFrontend{Addr: fe.Addr, Port: port, Endpoints: endpoints})
		}
	}
	return all
}

// claimFrontends removes from the orphans everything that a declared Service explains: its frontends, all frontends at its cluster IPs, since a
// cluster IP belongs to one Service only, and all frontends whose session affinity names the Service.
func (o *Orphans) claimFrontends(service string, ports []nft.ServicePort) {
	if len(ports) > 0 {
		for _, key := range o.byName[service] {
			o.drop(key, func(frontend) bool { return true })
		}
	}
	for i := range ports {
		o.claimEgress(&ports[i].Egress)
		for j := range ports[i].Frontends {
			fe := frontendOf(&ports[i], &ports[i].Frontends[j])
			if key, is := o.byKey[fe]; is {
				o.drop(key, func(f frontend) bool { return f == fe })
			}
			if fe.addr.IsValid() && slices.ContainsFunc(o.box.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(fe.addr) }) {
				for key := range maps.Clone(o.byAddr[fe.addr]) {
					o.drop(key, func(f frontend) bool { return f.addr == fe.addr })
				}
			}
		}
	}
}

// drop removes from an orphaned port the frontends for which goes returns true.
func (o *Orphans) drop(key string, goes func(frontend) bool) {
	p := o.ports[key]
	var kept []nft.Frontend
	for i := range p.Frontends {
		fe := frontendOf(&p, &p.Frontends[i])
		if !goes(fe) {
			kept = append(kept, p.Frontends[i])
			continue
		}
		delete(o.byKey, fe)
	}
	if len(kept) == len(p.Frontends) {
		return
	}
	for _, fe := range p.Frontends {
		if !slices.ContainsFunc(kept, func(k nft.Frontend) bool { return k.Addr == fe.Addr }) {
			delete(o.byAddr[fe.Addr], key)
		}
	}
	o.changed[key] = true
	if p.Frontends = kept; len(kept) > 0 {
		o.ports[key] = p
	} else {
		delete(o.ports, key)
	}
}

// take returns the orphaned ports that have changed since the last call, each as a Service with a key that begins with "?". A Service without ports
// means that the orphan was removed.
func (o *Orphans) take() (changed []Service) {
	for _, key := range slices.Sorted(maps.Keys(o.changed)) {
		svc := Service{Key: key}
		if p, is := o.ports[key]; is {
			svc.Ports = []nft.ServicePort{p}
		}
		changed = append(changed, svc)
	}
	clear(o.changed)
	return changed
}

// problem returns the problem to report while there are orphans. It returns false if there are none.
func (o *Orphans) problem(dataDir string) (p manifest.Problem, is bool) {
	n := o.frontends()
	if n == 0 {
		return p, false
	}
	var examples []string
	for _, fe := range o.reserved() {
		at := fmt.Sprintf("node port %d", fe.Port.Number)
		if fe.Addr.IsValid() {
			at = netip.AddrPortFrom(fe.Addr, fe.Port.Number).String()
		}
		if examples = append(examples, at+"/"+fe.Port.Protocol); len(examples) == 3 && n > 3 {
			examples = append(examples, "...")
			break
		}
	}
	return manifest.Problem{Reason: reasonOrphans, Message: fmt.Sprintf(
		"data directory %s was new or empty at the start, but the kernel serves %d addresses and ports that no object declares (%s); they stay in force as they are: "+
			"if the directory was not mounted or was moved, stop svcctl, put it back and start; if it is lost, apply the objects again; "+
			"confirm with `svcctl confirm --removals` that what is left is to go", dataDir, n, strings.Join(examples, ", "))}, true
}

// Reasons of the problem that objects cannot be stored.
const (
	reasonDiskFull   = "DiskFull"
	reasonDiskFailed = "DiskFailed"
)

// release confirms the removals that are held: of Services and of orphans. It returns their numbers.
func (l *Loop) release() (r wire.Released) {
	if services, files, engaged := l.opts.Removals.release(); engaged {
		r.Services, r.Files = services, files
		l.observed.unsynced = true
		l.log.Info("what vanished from the manifests is released", "services", r.Services, "files", r.Files)
	}
	if o := l.planner.orphans; o != nil && l.adopted {
		r.Frontends = o.frontends()
		for key := range o.ports {
			o.drop(key, func(frontend) bool { return true })
		}
		l.log.Info("what the kernel serves and no object declares is released", "frontends", r.Frontends)
	}
	return r
}

// settleOrphans removes the reservations of orphans from the store once there are no orphans any more.
func (l *Loop) settleOrphans() error {
	if o := l.planner.orphans; o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0 {
		return nil
	}
	if err := l.opts.Store.Unreserve(); err != nil {
		return err
	}
	l.planner.orphans = nil
	l.observed.unsynced = l.observed.snapshot != nil // objects that wait for a value may have it now
	return nil
}

// noteUnstored records a disk error for the status, and returns it as an unstoredError. Any other error is returned unchanged.
func (l *Loop) noteUnstored(err error) error {
	l.observed.disk = nil
	if _, failed := errors.AsType[*engine.DiskError](err); !failed && !errors.Is(err, engine.ErrNoSpace) {
		return err
	}
	l.observed.disk = err
	return unstoredError{len(l.observed.unstored), err}
}

// diskProblem returns the problem to report while nothing can be stored because of a disk error. It returns false if there was no such error.
func (l *Loop) diskProblem() (p manifest.Problem, is bool) {
	if l.observed.disk == nil {
		return p, false
	}
	if disk, failed := errors.AsType[*engine.DiskError](l.observed.disk); failed {
		return manifest.Problem{Reason: reasonDiskFailed, Message: disk.Error() + "; what is stored stays in force"}, true
	}
	return manifest.Problem{Reason: reasonDiskFull, Message: fmt.Sprintf(
		"the disk of %s is full: free space there. Tried again every %d s; nothing in force is lost", l.opts.DataDir, int(retryLast.Seconds()))}, true
}

// unstoredError is a disk error with the number of files that could not be stored. The number is 0 if only other data could not be stored.
type unstoredError struct {
	files int
	error
}

func (e unstoredError) Error() string {
	what := "not everything is"
	switch {
	case e.files == 1:
		what = "1 file is not"
	case e.files > 1:
		what = fmt.Sprintf("%d files are not", e.files)
	}
	why := "disk full"
	if !errors.Is(e.error, engine.ErrNoSpace) {
		why = "disk failed"
	}
	return what + " stored yet (" + why + "); what was in force stays in force"
}

func (e unstoredError) Unwrap() error { return e.error }

// reasonNotConfirmed is the Reason of the problem that a trial was rolled back, and changed files keep their content from before the trial.
const reasonNotConfirmed = "NotConfirmed"

// Trial returns the Request for an operation on a trial of manifests: the loop calls do with the files of the newest snapshot, and sends its error to
// done after the next step.
func Trial(do func(files manifest.Files) error, done chan<- error) Request {
	return func(l *Loop) func() {
		err := l.askTrial(do)
		return func() { done <- err }
	}
}

// clocks reads the clocks on which deadlines are based.
func (l *Loop) clocks() deadline.Reading {
	if l.opts.Clocks != nil {
		return l.opts.Clocks()
	}
	return deadline.Now()
}

// askTrial performs an operation on a trial.
func (l *Loop) askTrial(do func(files manifest.Files) error) error {
	if l.opts.Watching && l.observed.snapshot == nil {
		return errors.New(l.waitsFor())
	}
	err := do(l.found())
	if err == nil && l.observed.snapshot != nil {
		l.observed.unsynced = true // other files may be taken now
	}
	return err
}

// found returns the manifest files of the newest snapshot. There are none before the first snapshot.
func (l *Loop) found() manifest.Files {
	if l.observed.snapshot == nil {
		return manifest.Files{}
	}
	return l.observed.snapshot.Files
}

// untilTrialEnds returns the time left until the trial of manifests on this box ends. It returns false if there is no trial that can end here: there
// is none or it is over, the manifests were not read yet, or it is a trial of a fleet, whose members do not roll back by themselves.
func (l *Loop) untilTrialEnds() (left time.Duration, is bool) {
	trial, is := l.opts.Store.PendingHead(pending.Timed)
	if !is || !trial.Pending() || l.opts.Store.IsShared() || l.opts.Watching && l.observed.snapshot == nil {
		return 0, false
	}
	return trial.Ends.Left(l.clocks()), true
}

// endTrial rolls back a trial whose time has run out without a confirmation.
func (l *Loop) endTrial() error {
	left, is := l.untilTrialEnds()
	if !is {
		return nil
	}
	if left > 0 {
		return l.opts.Store.CountFrom(l.clocks())
	}
	revived, err := l.opts.Store.GoBack(l.found())
	if err != nil && !errors.Is(err, pending.ErrNoTimed) {
		return err
	}
	l.log.Warn("the trial was not confirmed in time: it was rolled back", "objects", len(revived))
	if l.observed.snapshot != nil {
		l.observed.unsynced = true
	}
	return nil
}

// TrialStatus converts the state of a trial to the type of the API.
func TrialStatus(state *pending.State, now deadline.Reading) *wire.Trial {
	left := state.Ends.Left(now)
	t := &wire.Trial{
		ID: state.ID, Began: state.Began, Ends: now.Wall.Add(left).UTC().Round(time.Second), Left: wire.Duration(left),
		User: state.User, CoversFiles: state.Head.Files, Files: state.Files, WentBack: state.Back,
	}
	if !state.Pending() {
		t.Left, t.Ends = 0, *state.Back
	}
	for _, ref := range state.Objects {
		t.Objects = append(t.Objects, ref.String())
	}
	return t
}

// trialProblem returns the problem to report while files are held at their content from before a trial. held is false if none are.
func (l *Loop) trialProblem() (p manifest.Problem, held bool) {
	if head, is := l.opts.Store.PendingHead(pending.Timed); !is || head.Pending() {
		return p, false
	}
	state, _ := l.opts.Store.Pending(pending.Timed)
	if len(state.Files) == 0 {
		return p, false
	}
	return manifest.Problem{Reason: reasonNotConfirmed, Message: fmt.Sprintf(
		"the changes in %s were not confirmed: the objects before are in force. Change the files once more, or put them back; "+
			"`svcctl confirm --start 5m` tries them again, `svcctl confirm` takes them as they are", resolve.First(state.Files, 5))}, true
}
