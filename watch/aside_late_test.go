package watch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// late is a watched directory whose files of 2 KB and more are read aside, and a clock.
type late struct {
	*Watcher
	t   *testing.T
	dir string
	now time.Time
}

// newLate writes files of a length each and has them in the first snapshot.
func newLate(t *testing.T, lengths map[string]int) *late {
	t.Helper()
	l := &late{t: t, dir: t.TempDir(), now: time.Now()}
	w, err := New(Config{LastGood: NewMemory(), Dirs: []string{l.dir}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.tree.close)
	w.tree.open, w.background.large, l.Watcher = newSilent().open, 2_000, w
	for name, length := range lengths {
		l.put(name, "first", length)
	}
	l.event(0)
	l.pass(time.Minute)
	l.out.previous, l.settling.started = l.snapshot(), true
	return l
}

func (l *late) put(name, object string, length int) {
	l.t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\n#%s\n", object, strings.Repeat("x", length))
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// event is that something is heard of the files, a while later.
func (l *late) event(after time.Duration) {
	l.now = l.now.Add(after)
	l.rescan(l.now)
}

func (l *late) pass(d time.Duration) {
	l.now = l.now.Add(d)
	l.settle(l.now)
}

// pause is ten seconds without an event; the next rescan would come after them.
func (l *late) pause() {
	for range 100 {
		if l.background.current != nil {
			<-l.background.done
			l.takeAside(l.now)
		}
		l.pass(100 * time.Millisecond)
	}
}

func (l *late) want(name, object string) {
	l.t.Helper()
	got := "nothing"
	if file := l.snapshot().Files.Get(filepath.Join(l.dir, name)); file != nil {
		got = file.Documents[0].Object.GetMeta().Name
	}
	if got != object {
		l.t.Errorf("%s says %s, want %s", name, got, object)
	}
}

// A file that was away only while it was read aside, as an editor that renames has it, is
// not taken for one that went.
func TestBackAfterItWasReadAside(t *testing.T) {
	l := newLate(t, map[string]int{"large.yaml": 2_000, "with.yaml": 0})
	l.put("large.yaml", "second", 3_000)
	l.put("with.yaml", "second", 1)
	l.event(time.Second)
	path := filepath.Join(l.dir, "with.yaml")
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	l.pass(time.Second)
	<-l.background.done
	l.put("with.yaml", "third", 2)
	l.event(0)
	l.takeAside(l.now)
	l.pause()
	l.want("with.yaml", "third")
	l.want("large.yaml", "second")
}

// What was written while the version before was read aside is read in its turn, also when
// the file changes for so long that it is taken as it is.
func TestWrittenWhileReadAside(t *testing.T) {
	l := newLate(t, map[string]int{"large.yaml": 2_000})
	for i := 0; l.background.current == nil && i < 1_000; i++ {
		l.put("large.yaml", "second", 3_000+i)
		l.event(50 * time.Millisecond)
		l.pass(0)
	}
	l.pass(10 * time.Second)
	<-l.background.done
	l.put("large.yaml", "third", 5_000)
	l.event(0)
	l.takeAside(l.now)
	l.pause()
	l.want("large.yaml", "third")
}

// Not more texts are in memory at once than when they are read in the loop; the others have
// their turn.
func TestReadAsideIsBounded(t *testing.T) {
	const each, n = 4 << 20, chunkBytes/(4<<20) + 4
	lengths := map[string]int{}
	for i := range n {
		lengths[fmt.Sprint(i, ".yaml")] = 0
	}
	l := newLate(t, lengths)
	for name := range lengths {
		l.put(name, "second", each)
	}
	l.event(time.Second)
	l.pass(time.Second)
	<-l.background.done
	size := 0
	for _, content := range l.background.current.contents {
		size += len(content.data)
	}
	if size > chunkBytes || size < chunkBytes/2 {
		t.Errorf("%d MiB of texts are read at once, %d are the bound", size>>20, chunkBytes>>20)
	}
	l.takeAside(l.now)
	l.pause()
	for name := range lengths {
		l.want(name, "second")
	}
}
