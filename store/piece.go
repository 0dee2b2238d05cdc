package store

import (
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
)

// pieceObjects is how many objects go into one commit of many that are new, as those of a first
// start: what a commit takes of memory, encoded objects and the pages that they are written to, is
// more than the objects themselves.
const pieceObjects = 4_000

// isFresh reports whether the changes are more than the journal holds, all of objects that are new.
func (t *transaction) isFresh(changes []*change) bool {
	if t.s.storage.shared != nil || len(changes) <= max(t.s.storage.piece, t.s.feed.journal.Bounds().Entries) || len(t.order) > 0 || t.s.trial.Pending() {
		return false
	}
	for _, c := range changes {
		if c.old != nil || c.remove {
			return false
		}
	}
	return true
}

// commitInPieces is commit for new objects. All is decided before the first commit, and nobody sees
// anything before the last one. When the process dies in between, a part of the objects is there
// at the next start, with their values, and the others come then; when a commit fails,
// those that are written are taken back with the next one.
func (t *transaction) commitInPieces(changes []*change) (SyncResult, error) {
	s := t.s
	var update journal.Update
	var written partial
	for rest := changes; len(rest) > 0; {
		some := rest[:min(s.storage.piece, len(rest))]
		if err := t.encode(some...); err != nil {
			s.storage.partial = written
			return SyncResult{}, err
		}
		var out engine.Transaction
		addObjects(&out, some, t.revision, false)
		if len(out.Puts) > 0 {
			for _, pair := range out.Puts {
				written = append(written, pair.Key)
			}
			out.Puts = append(out.Puts, engine.Pair{Key: headKey, Revision: t.revision})
			if !update.Reset {
				update = s.feed.journal.Restart(t.revision)
				update.AddTo(&out)
			}
			if err := s.write(out, t.revision); err != nil {
				s.storage.partial = written[:len(written)-len(out.Puts)+1]
				return SyncResult{}, err
			}
		}
		for _, c := range some {
			c.encoded, c.wanted = nil, nil
		}
		rest = rest[len(some):]
	}
	if len(written) == 0 {
		return t.publish(changes, s.feed.revision, update), nil
	}
	update.Revision = t.revision
	return t.publish(changes, t.revision, update), nil
}

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
