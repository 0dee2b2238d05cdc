package watch

import "testing"

// TestAtOnce: few large files are in memory at once, and many small ones.
func TestAtOnce(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		want  int
	}{
		{[]int64{0}, 1},
		{make([]int64, chunkFiles), chunkFiles},
		{make([]int64, 3*chunkFiles), chunkFiles},
		{[]int64{chunkBytes + 1, 0}, 1},
		{[]int64{chunkBytes / 2, chunkBytes / 2, 0, 1}, 3},
		{[]int64{1, chunkBytes}, 1},
	} {
		var files []*file
		for _, size := range c.sizes {
			files = append(files, &file{change: &change{seen: fileState{kind: regular, version: version{size: size}}}})
		}
		if got := atOnce(files, chunkFiles); got != c.want {
			t.Errorf("files of %v bytes: %d at once, want %d", c.sizes, got, c.want)
		}
	}
}
