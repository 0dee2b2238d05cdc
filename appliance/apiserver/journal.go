package apiserver

import (
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
)

// journal tells the newest changes of objects.
func journal(objects *store.Store) func(limit int) ([]wire.JournalEntry, error) {
	return func(limit int) ([]wire.JournalEntry, error) {
		events, err := objects.Events(objects.Recent(limit), limit)
		if err != nil {
			return nil, err
		}
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

// verbOf is what a client asked for, else what became of the object.
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
