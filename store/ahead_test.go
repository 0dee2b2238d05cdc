package store

import (
	"errors"
	"slices"
	"testing"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// Whoever asks for it sees what a first sync comes to while that is being written, and
// nobody else does.
func TestSyncFilesAhead(t *testing.T) {
	for _, fault := range []engine.Fault{engine.NoFault, engine.Refuse} {
		b := newBox(t)
		b.write("a.yaml", "web {type: NodePort}")
		called := make(chan struct{})
		b.engine.Inject(func(engine.Transaction) engine.Fault {
			<-called
			return fault
		})
		var ahead *Ahead
		result, err := b.s.SyncFilesAhead(manifest.FilesOf(b.files), func(a *Ahead) {
			ahead = a
			if svc, _, _ := b.s.Service("default/web"); svc != nil {
				t.Error("everybody sees it before it is written")
			}
			close(called)
		})
		if !slices.Equal(ahead.ServiceKeys(), []string{"default/web"}) {
			t.Errorf("ahead knows of %v", ahead.ServiceKeys())
		}
		seen, _, _ := ahead.Service("default/web")
		stored, _, _ := b.s.Service("default/web")
		switch {
		case seen == nil || seen.Spec.Ports[0].NodePort == 0:
			t.Errorf("ahead sees %+v", seen)
		case fault == engine.NoFault && (err != nil || result.Created != 1 || stored != seen):
			t.Errorf("%+v, %v: stored is %+v", result, err, stored)
		case fault == engine.Refuse && (!errors.Is(err, engine.ErrInjected) || stored != nil):
			t.Errorf("after a failure: %v, stored is %+v", err, stored)
		}
	}
}

// A change of what is there is not told ahead.
func TestSyncFilesAheadOfNothing(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {}")
	b.write("b.yaml", "other {}")
	if _, err := b.s.SyncFilesAhead(manifest.FilesOf(b.files), func(*Ahead) { t.Error("it is") }); err != nil {
		t.Fatal(err)
	}
}
