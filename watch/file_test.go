package watch

import "testing"

// A file that was moved to its place is complete, unless it is written to there.
func TestMovedFileThatIsWritten(t *testing.T) {
	regularFile := func(size int64) fileState {
		s := fileState{kind: regular}
		s.version.size = size
		return s
	}
	f := &file{seen: regularFile(10)}
	another := regularFile(20) // renamed here in the moment in which it was written
	another.version.ino++
	later := another
	later.version.ctime++
	for _, c := range []struct {
		name string
		seen fileState
		hint eventHint
		want bool
	}{
		{"moved here", regularFile(20), eventHint{moved: true}, true},
		{"moved here, then written", regularFile(20), eventHint{moved: true, written: true}, false},
		{"moved here, and empty by now", regularFile(0), eventHint{moved: true}, false},
		{"written", regularFile(20), eventHint{written: true}, false},
		{"there is another one", another, eventHint{created: true}, false},
		{"there is another one, and nobody writes to it", another, eventHint{created: true, quiet: true}, true},
		{"there is another one, which is written to", another, eventHint{created: true, written: true, quiet: true}, false},
		{"there is another one, which was written before", later, eventHint{created: true}, true},
	} {
		if got := f.isComplete(c.seen, c.hint); got != c.want {
			t.Errorf("%s: complete is %v, want %v", c.name, got, c.want)
		}
	}
}
