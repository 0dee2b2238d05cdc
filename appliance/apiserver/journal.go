package apiserver

import (
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

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
