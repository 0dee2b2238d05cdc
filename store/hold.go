package store

import "svcctl.io/svcctl/store/object"

// Removals are the objects that a SyncFiles is about to remove, because no file has a
// document for them any more.
type Removals struct {
	// Files are those that the objects came from.
	Files map[string]struct{}
	// Services is how many Services are among the objects; Total is how many there are
	// now, those included.
	Services, Total int
}

// hold asks whether what was examined may be removed, and gives what may not.
func (t *transaction) hold() map[object.Ref]struct{} {
	if t.s.cfg.Hold == nil {
		return nil
	}
	removals := Removals{Files: map[string]struct{}{}, Total: len(t.s.index.services)}
	var going []*change
	for _, c := range t.changes {
		if !c.remove {
			continue
		}
		going = append(going, c)
		removals.Files[c.old.owner.File] = struct{}{}
		if c.ref.Kind == object.KindService {
			removals.Services++
		}
	}
	if !t.s.cfg.Hold(removals) {
		return nil
	}
	held := map[object.Ref]struct{}{}
	for _, c := range going {
		c.remove = false
		c.stay(nil)
		held[c.ref] = struct{}{}
	}
	return held
}
