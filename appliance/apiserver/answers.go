package apiserver

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/env"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// allocations returns the holders of addresses and ports, for one caller at a time: the store
// cannot be written meanwhile, so writers must not wait for a queue of callers.
func allocations(objects *store.Store) func(repair bool) wire.Allocations {
	var turn sync.Mutex
	return func(repair bool) wire.Allocations {
		turn.Lock()
		defer turn.Unlock()
		// The check first: what is told of the pools is then as it was put right.
		a := wire.Allocations{Pools: []wire.Pool{}, Disagreements: []wire.Disagreement{}}
		for _, d := range objects.CheckPools(repair) {
			a.Disagreements = append(a.Disagreements, wire.Disagreement(d))
		}
		for _, p := range objects.Pools() {
			pool := wire.Pool{Kind: p.Kind, Family: p.Family, Range: p.Range, Name: p.Name, Internal: p.Internal, Size: p.Size, Used: p.Used, Holders: []wire.Holder{}}
			for _, h := range p.Holders {
				pool.Holders = append(pool.Holders, wire.Holder(h))
			}
			a.Pools = append(a.Pools, pool)
		}
		return a
	}
}

// environment returns a function that lists the environment variables of the Services of a
// namespace.
func environment(objects *store.Store) func(namespace string) []wire.Variable {
	return func(namespace string) []wire.Variable {
		var services []*object.Service
		for _, svc := range objects.Services() {
			if svc.Metadata.Namespace == namespace {
				services = append(services, svc)
			}
		}
		var all []wire.Variable
		for _, v := range env.Of(services) {
			all = append(all, wire.Variable(v))
		}
		return all
	}
}

// journal lists the newest changes of objects, those of Events among them only when asked.
func journal(objects *store.Store) func(limit int, withEvents bool) ([]wire.JournalEntry, error) {
	return func(limit int, withEvents bool) ([]wire.JournalEntry, error) {
		about := func(ref object.Ref) bool { return withEvents || ref.Kind != object.KindEvent }
		events, err := objects.EventsAbout(objects.Recent(limit, about), 0, about)
		if err != nil {
			return nil, err
		}
		// Others may have come since.
		events = slices.DeleteFunc(events, func(e store.Event) bool { return !about(e.Ref) })
		events = events[max(0, len(events)-limit):]
		entries := make([]wire.JournalEntry, len(events))
		for i, e := range events {
			entries[i] = wire.JournalEntry{
				Revision: e.Revision, Time: e.At.UTC(), Verb: verbOf(&e),
				Kind: e.Ref.Kind, Namespace: e.Ref.Namespace, Name: e.Ref.Name,
				User: e.By.User, Manager: e.By.Manager, Agent: e.By.Agent,
			}
			if e.By == (store.Caller{}) {
				entries[i].File, entries[i].Controller = e.Owner.File, e.Owner.Controller
			}
		}
		return entries, nil
	}
}

// verbOf returns the verb of the request; for a change without one, create, update or delete.
func verbOf(e *store.Event) string {
	switch {
	case e.By.Verb != "":
		return e.By.Verb
	case e.Old == nil:
		return "create"
	case e.New == nil:
		return "delete"
	}
	return "update"
}

// inRollout returns the rollout that a Service is in, as this box programs it; nil: it is in
// none.
func inRollout(objects *store.Store, service string) *wire.ServiceRollout {
	if head, is := objects.RolloutHead(); !is || !head.Pending() {
		return nil
	}
	state, _ := objects.Rollout()
	if _, found := slices.BinarySearch(state.Services, service); !found {
		return nil
	}
	return &wire.ServiceRollout{ID: state.ID, Phase: string(state.Phase), New: state.Here, Step: state.Step + 1, Of: len(state.Steps), Why: state.Why}
}

// renewBefore returns the remaining validity at which a certificate should have been renewed: a
// fifth of its life, at most 14 days; automatic renewal (RFC 8555 clients) happens at a third.
func renewBefore(v auth.Validity) time.Duration {
	return min(v.Expires.Sub(v.Begins)/5, 14*24*time.Hour)
}

// CertificateFinding judges the certificate that the operator gave.
func CertificateFinding(v auth.Validity, now time.Time) checkup.Finding {
	until := "the certificate in use is valid until " + v.Expires.UTC().Format(time.RFC3339)
	const renew = "put a renewed certificate and its key into the files of --tls-cert and --tls-key; they are read again within 10 s"
	switch {
	case !now.Before(v.Expires):
		f := checkup.Fault(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expired at %s: clients refuse it", v.File, v.Expires.UTC().Format(time.RFC3339)), renew)
		if v.Refused != nil {
			f.Message += fmt.Sprintf("; its successor cannot be used: %v", v.Refused)
		}
		return f
	case v.Refused != nil:
		return checkup.Fault(checkup.Certificate, fmt.Sprintf("the new certificate of the API cannot be used, and the next start would fail: %v; %s", v.Refused, until), renew)
	case v.Expires.Sub(now) < renewBefore(v):
		return checkup.Doubt(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expires soon: %s", v.File, until), renew)
	}
	return checkup.Well(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, is valid until %s", v.File, v.Expires.UTC().Format(time.RFC3339)))
}

// certificate is the same as the API tells it.
func certificate(v auth.Validity, now time.Time) *wire.Certificate {
	c := &wire.Certificate{File: v.File, Expires: v.Expires}
	if f := CertificateFinding(v, now); f.Level != checkup.OK {
		c.Problem, c.Advice, c.Bad = f.Message, f.Advice, f.Level == checkup.Error
	}
	return c
}

// CertificateOffline examines the files for the next start.
func CertificateOffline(cert, key string, now time.Time) checkup.Finding {
	files, err := auth.OpenFiles(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		return checkup.Fault(checkup.Certificate, err.Error(), "replace it: `svcctl serve` does not start with it")
	}
	return CertificateFinding(files.Validity(), now)
}
