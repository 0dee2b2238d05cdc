package fleet

import (
	"fmt"
	"maps"
	"slices"
)

// noteForeign looks at what a transaction without a head has done to objects. That is how a large commit is unfolded, which
// leaves etcd with what this box has. Anything else was written by somebody else: it is not followed, and a box without a replica would
// not find what the newest commit left. mod is the revision of etcd.
func (e *Engine) noteForeign(ops []operation, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if mod <= e.read.mod { // as of before what this box has
		return
	}
	for i := range ops {
		op := &ops[i]
		has, is := e.content.sums[op.key]
		if op.remove && !is || !op.remove && is && has == sumOf(op.key, op.value) {
			delete(e.foreign, op.key)
			continue
		}
		if e.foreign == nil {
			e.foreign = map[string]bool{}
		}
		e.foreign[op.key] = true
		what := "written"
		if op.remove {
			what = "removed"
		}
		e.cfg.Log.Warn("somebody else than the boxes of the fleet has "+what+" a key in etcd; it is not followed", "key", e.key(op.key))
		e.signal()
	}
}

// corrected forgets what somebody else has written where a commit has written it since. e.mu must be held.
func (e *Engine) corrected(ops []operation) {
	for i := range ops {
		delete(e.foreign, ops[i].key)
	}
}

// foreignKeys says which keys somebody else has written or removed; "": none. e.mu must be held.
func (e *Engine) foreignKeys() string {
	switch keys := slices.Sorted(maps.Keys(e.foreign)); len(keys) {
	case 0:
		return ""
	case 1:
		return e.key(keys[0])
	default:
		return fmt.Sprintf("%s and %d more", e.key(keys[0]), len(keys)-1)
	}
}
