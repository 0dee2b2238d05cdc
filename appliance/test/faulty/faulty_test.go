package faulty

import (
	"errors"
	"testing"

	"svcctl.io/svcctl/store/engine"
)

func TestMemoryFaults(t *testing.T) {
	for _, test := range []struct {
		fault           Fault
		written, usable bool
	}{{Refuse, false, true}, {CrashBefore, false, false}, {CrashAfter, true, false}} {
		m := NewMemory()
		m.Inject(func(engine.Transaction) Fault { return test.fault })
		put := engine.Transaction{CompareKey: "head", Puts: []engine.Pair{{Key: "head", Revision: 1}}}
		if err := m.Commit(put); !errors.Is(err, ErrInjected) {
			t.Errorf("fault %d: got %v", test.fault, err)
		}
		m.Inject(nil)
		if written := len(m.pairs()) > 0; written != test.written {
			t.Errorf("fault %d: written %t", test.fault, written)
		}
		if usable := m.Commit(put) == nil; usable != test.usable {
			t.Errorf("fault %d: usable afterwards %t", test.fault, usable)
		}
	}
}
