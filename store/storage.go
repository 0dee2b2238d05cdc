package store

import (
	"slices"
	"sync/atomic"

	"svcctl.io/svcctl/store/engine"
)

// storage is the durable side: the engine, and what is known of its content. Store.writer guards it.
type storage struct {
	engine engine.Engine
	shared engine.Shared // engine, if other machines write to it; else nil
	// head is the revision of what the engine has, as a rule that of the store.
	head    uint64
	partial partial
	piece   int // see commitInPieces; tests have their own
	copies  copies
	failed  bool          // something of another machine could not be read, and nothing more is followed
	lost    atomic.Uint64 // see Store.Lost
}

// commit writes a transaction, which must be the next one after head, together with the copies that were
// taken or are small; nothing at all if both are empty. What the trial that is under way needs to go back is
// written with it: kept are the paths of the files that are among it now.
func (d *storage) commit(t engine.Transaction, revision uint64, trial *trial) (kept []string, err error) {
	d.copies.addTo(&t, revision)
	d.partial.addTo(&t)
	t.CompareKey, t.CompareRevision = headKey, d.head
	kept, err = trial.keepFiles(d.engine, revision, &t)
	if err == nil && len(t.Puts)+len(t.Deletes) != 0 {
		err = d.engine.Commit(t)
	}
	d.copies.finish(err)
	if err != nil {
		return nil, err
	}
	d.partial = nil
	if i := slices.IndexFunc(t.Puts, func(p engine.Pair) bool { return p.Key == headKey }); i >= 0 {
		d.head = t.Puts[i].Revision
	}
	return kept, nil
}

// pieceObjects bounds the objects of one commit when many are new, as at a first start: a commit
// takes more memory, for encoded objects and the pages that they are written to, than the objects
// themselves.
const pieceObjects = 4_000

// partial are the keys of objects that were written and are not there, as others that belong to
// them could not be written.
type partial []string

// addTo removes those that a transaction does not write.
func (p partial) addTo(t *engine.Transaction) {
	if len(p) == 0 {
		return
	}
	puts := make(map[string]struct{}, len(t.Puts))
	for _, pair := range t.Puts {
		puts[pair.Key] = struct{}{}
	}
	for _, key := range p {
		if _, put := puts[key]; !put {
			t.Deletes = append(t.Deletes, key)
		}
	}
}

// sharedOf is an engine that other machines write to; nil when they do not.
func sharedOf(e engine.Engine) engine.Shared {
	shared, _ := e.(engine.Shared)
	return shared
}
