package watch

import "testing"

// A file that was moved to its place is complete, unless somebody writes to it there.
func TestMovedFileThatIsWritten(t *testing.T) {
	regularFile := func(size int64) sight {
		s := sight{kind: regular}
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
		seen sight
		hint hint
		want bool
	}{
		{"moved here", regularFile(20), hint{moved: true}, true},
		{"moved here, then written", regularFile(20), hint{moved: true, written: true}, false},
		{"moved here, and empty by now", regularFile(0), hint{moved: true}, false},
		{"written", regularFile(20), hint{written: true}, false},
		{"there is another one", another, hint{created: true}, false},
		{"there is another one, and nobody writes to it", another, hint{created: true, quiet: true}, true},
		{"there is another one, which is written to", another, hint{created: true, written: true, quiet: true}, false},
		{"there is another one, which was written before", later, hint{created: true}, true},
	} {
		if got := f.isComplete(c.seen, c.hint); got != c.want {
			t.Errorf("%s: complete is %v, want %v", c.name, got, c.want)
		}
	}
}
