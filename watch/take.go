package watch

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// load takes the last good contents over from the run before.
func (w *Watcher) load() error {
	contents, err := w.cfg.LastGood.Load()
	if err != nil {
		return fmt.Errorf("watch: load the last good contents: %w", err)
	}
	for path, content := range contents {
		s := w.sourceOf(path)
		if s == nil {
			// Of a directory that is not watched any more.
			w.saver.put(path, nil)
			continue
		}
		f := &file{path: path, source: s, hash: sha256.Sum256(content)}
		if parsed := manifest.Decode(path, content, w.cfg.Limits); parsed.Err == nil {
			f.good, f.goodHash = parsed, f.hash
		} else {
			f.broken = parsed.Err
			w.log.Warn("last good content is no longer good", "problem", parsed.Err.String())
		}
		w.files[path] = f
	}
	return nil
}

// settle takes the changes that are ready. When files are vanishing at the same time,
// that may be one change of several files: it waits for them, but not for long.
func (w *Watcher) settle(now time.Time) {
	var ready []*file
	vanishing := false
	for _, f := range w.waiting {
		if !f.change.ready(w.cfg).After(now) {
			ready = append(ready, f)
		} else if f.change.sight.kind != regular {
			vanishing = true
		}
	}
	w.giveUp(now)
	if len(ready) == 0 {
		w.held = time.Time{}
		return
	}
	if vanishing {
		if w.held.IsZero() {
			w.held = now
		}
		if now.Before(w.held.Add(w.cfg.Settle)) {
			return
		}
	}
	w.held = time.Time{}
	slices.SortFunc(ready, func(a, b *file) int { return cmp.Compare(a.path, b.path) })
	for _, f := range ready {
		w.take(f, now)
	}
}

// take deals with a change that settled.
func (w *Watcher) take(f *file, now time.Time) {
	switch f.change.sight.kind {
	case gone:
		delete(w.files, f.path)
		delete(w.waiting, f.path)
		w.saver.put(f.path, nil)
		w.changed = true
	case unusable:
		w.log.Warn("manifest cannot be read", "file", f.path, "reason", f.change.sight.why)
		w.done(f)
	case regular:
		w.read(f, now)
	}
}

// done makes the change the state.
func (w *Watcher) done(f *file) {
	// The same content with another date is nothing new, unless it was out of reach.
	w.changed = w.changed || f.seen.kind == unusable || f.change.sight.kind == unusable
	f.seen, f.taken = f.change.sight, true
	f.change = nil
	delete(w.waiting, f.path)
}

// read reads a file that settled, unless it turns out that it did not.
func (w *Watcher) read(f *file, now time.Time) {
	w.reads.Add(1)
	c := f.change
	last := !now.Before(c.first.Add(w.cfg.SettleCap)) // not waiting any longer
	data, seen, err := f.source.read(f.path, c.sight, w.limits().Bytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.observe(f.source, f.path, sight{kind: gone}, hint{}, now)
		return
	case err != nil:
		w.observe(f.source, f.path, sight{kind: unusable, why: reason(err)}, hint{}, now)
		return
	case data == nil || !seen.same(c.sight) && !last:
		w.observe(f.source, f.path, seen, hint{}, now)
		return
	}
	c.sight = seen
	hash := sha256.Sum256(data)
	switch {
	case hash == f.hash:
		w.done(f)
		return
	case f.good != nil && hash == f.goodHash:
		f.hash, f.broken, w.changed = hash, nil, true
		w.done(f)
		return
	}
	next := w.parse(f, data)
	if next.Err == nil && !c.complete && !last && lacks(next, f.good) {
		c.lacking = true
		return
	}
	f.hash, f.broken, w.changed = hash, next.Err, true
	if next.Err != nil {
		w.log.Warn("manifest refused", "problem", next.Err.String(), "last_good", f.good != nil)
	} else {
		f.good, f.goodHash = next, hash
		w.saver.put(f.path, data)
	}
	w.done(f)
}

// parse decodes the next content of a file, sharing what did not change.
func (w *Watcher) parse(f *file, data []byte) *manifest.File {
	if f.good == nil {
		return manifest.Decode(f.path, data, w.cfg.Limits)
	}
	return f.good.Update(data, w.cfg.Limits)
}

// limits are the effective ones.
func (w *Watcher) limits() manifest.Limits {
	limits := w.cfg.Limits
	limits.Bytes = cmp.Or(max(0, limits.Bytes), manifest.DefaultLimits().Bytes)
	return limits
}

// lacks tells whether an object of before is not in next, be it good or bad.
func lacks(next, before *manifest.File) bool {
	if before == nil || len(before.Documents) == 0 {
		return false
	}
	have := make(map[object.Ref]bool, len(next.Documents))
	for _, d := range next.Documents {
		have[object.RefOf(d.Object)] = true
	}
	for _, p := range next.Problems {
		have[p.Object] = true
	}
	return slices.ContainsFunc(before.Documents, func(d manifest.Document) bool {
		ref := object.RefOf(d.Object)
		if have[ref] {
			return false
		}
		ref.Namespace = cmp.Or(ref.Namespace, "default")
		return !have[ref]
	})
}
