package store

import (
	"errors"
	"fmt"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
)

// fresh is a first start that takes five commits, some of whose values are asked for.
func fresh(t *testing.T) *box {
	b := newBox(t)
	b.inPieces()
	for i := range 9 {
		text := fmt.Sprintf("s%d {type: NodePort}\nt%d {type: LoadBalancer}", i, i)
		if i%3 == 2 {
			text = fmt.Sprintf("s%d {clusterIP: 172.30.0.%d}\nt%d {ports: [{port: 0}]}", i, 20+i, i)
		}
		b.write(fmt.Sprintf("f%d.yaml", i), text)
	}
	return b
}

func (b *box) inPieces() {
	most := journal.DefaultBounds()
	most.Entries = 8
	b.s.storage.piece = 4
	b.bound(most)
}

// A first start that is cut off in any of its commits comes to the same when it is done again, and
// no reader has seen a part of it.
func TestFreshStartIsCutOff(t *testing.T) {
	reference := fresh(t)
	commits := reference.engine.Commits()
	reference.sync()
	if commits = reference.engine.Commits() - commits; commits != 5 {
		t.Fatalf("%d commits", commits)
	}
	for _, fault := range []faulty.Fault{faulty.Refuse, faulty.Full, faulty.CrashBefore, faulty.CrashAfter} {
		for at := range commits {
			t.Run(fmt.Sprint("fault ", fault, " in commit ", at), func(t *testing.T) {
				b := fresh(t)
				before, n := b.s.Revision(), 0
				b.engine.Inject(func(engine.Transaction) faulty.Fault {
					if n++; n-1 == at {
						return fault
					}
					return faulty.NoFault
				})
				if _, err := b.s.SyncFiles(manifest.FilesOf(b.files)); !errors.Is(err, faulty.ErrInjected) && !errors.Is(err, engine.ErrNoSpace) {
					t.Fatalf("got %v", err)
				}
				b.engine.Inject(nil)
				b.check()
				if objects(b.s) != "" || b.problems() != "" || b.s.Revision() != before {
					t.Errorf("a part of it is seen at %d, %d before:\n%s\n%s", b.s.Revision(), before, objects(b.s), b.problems())
				}
				if fault == faulty.CrashBefore || fault == faulty.CrashAfter {
					b.restart()
					b.inPieces()
				}
				b.sync()
				if objects(b.s) != objects(reference.s) || b.problems() != reference.problems() {
					t.Errorf("got\n%s\n%s\nwant\n%s\n%s", objects(b.s), b.problems(), objects(reference.s), reference.problems())
				}
				last := b.s.Revision()
				b.restart()
				if b.sync(); objects(b.s) != objects(reference.s) || b.s.Revision() != last {
					t.Errorf("after a restart, at %d after %d:\n%s", b.s.Revision(), last, objects(b.s))
				}
			})
		}
	}
}

// What was written before a commit failed, and is not wanted any more, does not come back.
func TestFreshStartIsGivenUp(t *testing.T) {
	b := fresh(t)
	n := 0
	b.engine.Inject(func(engine.Transaction) faulty.Fault {
		if n++; n == 4 {
			return faulty.Full
		}
		return faulty.NoFault
	})
	if _, err := b.s.SyncFiles(manifest.FilesOf(b.files)); !errors.Is(err, engine.ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	b.engine.Inject(nil)
	head, err := b.engine.Load(headKey)
	if err != nil || head[0].Revision <= b.s.Revision() {
		t.Fatalf("head %v, %v: nothing was written before", head, err)
	}
	b.files = map[string]*manifest.File{}
	b.apply("f0.yaml", "other {clusterIP: 172.30.0.22}")
	want := objects(b.s)
	if b.s.Revision() <= head[0].Revision {
		t.Errorf("revision %d is used again, after %d", b.s.Revision(), head[0].Revision)
	}
	b.restart()
	if objects(b.s) != want {
		t.Errorf("got\n%s\nwant\n%s", objects(b.s), want)
	}
}
