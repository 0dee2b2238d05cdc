package manifest

import (
	"slices"
	"testing"
)

func TestFiles(t *testing.T) {
	files := map[string]*File{}
	for _, path := range []string{"b", "a", "d"} {
		files[path] = &File{Path: path}
	}
	before := FilesOf(files)
	if got := before.Get("d"); got != files["d"] {
		t.Errorf("at d is %v", got)
	}
	if got := before.Get("c"); got != nil {
		t.Errorf("at c is %v", got)
	}
	changed := &File{Path: "b"}
	for _, test := range []struct {
		now  Files
		want string
	}{
		{before, ""},
		{nil, "-a-b-d"},
		{Files{before[0], changed, before[2]}, "*b"},
		{Files{changed}, "-a*b-d"},
		{Files{before[0], before[1], {Path: "c"}, before[2], {Path: "e"}}, "+c+e"},
		{Files{{Path: "c"}}, "-a-b+c-d"},
	} {
		got := ""
		test.now.Changes(before, func(was, is *File) {
			switch {
			case was == nil:
				got += "+" + is.Path
			case is == nil:
				got += "-" + was.Path
			default:
				got += "*" + is.Path
			}
		})
		if got != test.want {
			t.Errorf("changes to %v are %q, want %q", test.now, got, test.want)
		}
	}
	if !slices.IsSortedFunc(before, func(a, b *File) int { return len(a.Path) - len(b.Path) }) || len(before) != 3 {
		t.Errorf("files of the map are %v", before)
	}
}
