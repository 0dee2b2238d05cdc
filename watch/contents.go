package watch

import (
	"slices"

	"svcctl.io/svcctl/store/manifest"
)

// contents have the last good content of each file, and the files with a problem.
type contents struct {
	good manifest.Files   // the last good content of each
	bad  map[string]*file // those with a problem, by path
}

// note brings them up to date with a file.
func (c *contents) note(f *file) {
	i, found := c.good.Find(f.path)
	switch {
	case f.good == nil:
	case found:
		c.good[i] = f.good
	default:
		c.good = slices.Insert(c.good, i, f.good)
		f.source.good++
	}
	if f.problem() != nil {
		c.bad[f.path] = f
	} else {
		delete(c.bad, f.path)
	}
}

// forget drops a file that is gone.
func (c *contents) forget(f *file) {
	delete(c.bad, f.path)
	if i, found := c.good.Find(f.path); found {
		c.good = slices.Delete(c.good, i, i+1)
		f.source.good--
	}
}
