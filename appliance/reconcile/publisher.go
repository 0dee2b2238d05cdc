package reconcile

import (
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// reasonCertificate is the reason of problems with the certificate of the API.
const reasonCertificate = "Certificate"

// Publisher shows where the loop stands: in the status, the metrics and the log.
type Publisher struct {
	Board   *Board
	Metrics *metrics.Metrics
	// Reporter makes one list of the problems of all origins.
	Reporter *Reporter
	// Dirs are the manifest directories.
	Dirs []string
	// Named adds to the directories how they are doing as sources of a fleet; nil: they are none.
	Named func([]wire.Source)
	// Status is the status before the first step; what steps do not change stays.
	Status wire.Status

	foreign  uint64          // foreign changes of our tables so far
	snapshot *watch.Snapshot // that the places of problems are of
	settled  bool            // problems of objects from before the start, that are over, are forgotten
}

// publish brings the status and the metrics to where the loop stands after a step.
func (l *Loop) publish(start time.Time, done committed, err error) {
	pub := l.opts.Publisher
	if why := l.waitsFor(); why != "" {
		pub.Status.Ready, pub.Status.Reason = false, why
	}
	total := l.planner.total
	pub.Status.Counts = wire.Counts{
		Services: len(l.planner.sizes), ServicePorts: total.ports, Frontends: total.frontends,
		Endpoints: total.endpoints, VIPs: l.planner.compiler.VIPs(),
	}
	pub.Status.ForeignChanges = pub.foreign
	pub.Status.HeldRemovals, pub.Status.PendingRemovals = l.opts.Removals.counts()
	pub.Status.UnknownFrontends = l.planner.orphans.frontends()
	if done.transactions > 0 {
		pub.Status.LastTransaction = &wire.Transaction{
			At: done.at.UTC(), Duration: wire.Duration(done.duration),
			Operations: done.operations, Elements: done.elements, Generation: l.applier.generation,
		}
		l.log.Debug("committed", "rev", l.applied, "txn", l.applier.generation, "operations", done.operations, "elements", done.elements, "dur", done.duration)
	}
	pub.Status.Sources = Sources(pub.Dirs, l.observed.snapshot)
	if pub.Named != nil {
		pub.Named(pub.Status.Sources)
	}
	l.report()
	l.measure(start, done, err)
	if err == nil && l.observed.tampered {
		err = l.tamper.tableMissing()
	}
	if pub.Status.RulesAway = l.observed.tampered; pub.Status.RulesAway {
		pub.Status.Verdict.Text = "whether Services answer is not known: " + rulesAway
	}
	var unstored manifest.Files
	for _, path := range l.observed.unstored {
		if file := l.observed.snapshot.Files.Get(path); file != nil {
			unstored = append(unstored, file)
		}
	}
	pub.Board.keep(unstored)
	pub.Board.publish(pub.Status, pub.Reporter, l.applied, err)
}

// becomeReady logs once that everything is programmed.
func (l *Loop) becomeReady(done committed) {
	status := &l.opts.Publisher.Status
	if status.Ready {
		return
	}
	status.Ready, status.Reason = true, ""
	total := l.planner.total
	l.log.Info("programmed", "services", len(l.planner.sizes), "frontends", total.frontends, "endpoints", total.endpoints,
		"operations", done.operations, "elements", done.elements, "dur", done.duration.Round(time.Microsecond))
	l.opts.OnReady()
}

func (l *Loop) measure(start time.Time, done committed, err error) {
	pub := l.opts.Publisher
	now := time.Now()
	sync := metrics.Sync{At: now, Duration: now.Sub(start), Noticed: l.observed.since, Err: err}
	if err == nil {
		l.observed.since = time.Time{}
	}
	if done.transactions > 0 {
		sync.Transaction = &metrics.Transaction{Operations: done.operations, Elements: done.elements}
	}
	pub.Metrics.Synced(sync)
	c := pub.Status.Counts
	pub.Metrics.Serves(metrics.Counts{Services: c.Services, ServicePorts: c.ServicePorts, VIPs: c.VIPs, Frontends: c.Frontends, Endpoints: c.Endpoints})
	files := 0
	if l.observed.snapshot != nil {
		files = len(l.observed.snapshot.Problems)
	}
	pub.Metrics.FileProblems(files)
	pub.Metrics.Held(pub.Status.HeldRemovals, len(l.planner.quarantine.left))
	accepted, concerning := l.opts.Store.Revisions()
	pub.Metrics.Revisions(accepted, upTo(l.applied, accepted, concerning))
}

// fileProblems are the problems of files, and of the host, rather than of objects.
func (l *Loop) fileProblems() []manifest.Problem {
	var problems []manifest.Problem
	if l.observed.snapshot != nil {
		problems = slices.Clone(l.observed.snapshot.Problems)
	}
	problems = append(problems, hostProblems(l.observed.findings)...)
	problems = append(problems, l.opts.HostProblems(l.observed.facts)...)
	if p, is := l.diskProblem(); is {
		problems = append(problems, p)
	}
	if p, fight := l.tamper.problem(); fight {
		problems = append(problems, p)
	}
	if p, engaged := l.opts.Removals.problem(); engaged {
		problems = append(problems, p)
	}
	if p, held := l.trialProblem(); held {
		problems = append(problems, p)
	}
	if p, held := l.planner.orphans.problem(l.opts.DataDir); held && l.adopted { // before, the files have not declared theirs
		problems = append(problems, p)
	}
	return problems
}

// hostProblems are the findings as the status shows them. Accepted objects are in force all
// the same, so none of them is an error.
func hostProblems(findings []checkup.Finding) []manifest.Problem {
	var problems []manifest.Problem
	for _, f := range findings {
		p := manifest.Problem{Reason: manifest.ReasonHost, Message: f.String(), Warning: true}
		if f.Check == checkup.Certificate { // clients refuse a bad one
			p.Reason, p.Warning = reasonCertificate, f.Level != checkup.Error
		}
		problems = append(problems, p)
	}
	return problems
}

// Sources is the state of every manifest directory; without a snapshot all of them are being read.
func Sources(dirs []string, s *watch.Snapshot) []wire.Source {
	list := []wire.Source{}
	if s == nil {
		for _, dir := range dirs {
			list = append(list, wire.Source{Dir: dir, State: wire.SourceReading})
		}
		return list
	}
	for _, src := range s.Sources {
		w := wire.Source{Dir: src.Dir, State: wire.SourceOK, Files: src.Files}
		if src.Err != nil {
			w.Error = src.Err.Error()
		}
		if src.State == watch.StateUnavailable {
			w.State = wire.SourceUnavailable
		}
		list = append(list, w)
	}
	return list
}
