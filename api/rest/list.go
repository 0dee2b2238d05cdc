package rest

import (
	"errors"
	"iter"
	"net/http"
	"sort"
	"strconv"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// list answers with the objects of a collection.
func (s *Server) list(w http.ResponseWriter, r *request) error {
	o, err := listOptionsOf(r)
	if err != nil {
		return err
	}
	if o.continueToken == "" {
		if err := s.fresh(w, r, r.query.Get("resourceVersion"), o.revision); err != nil {
			return err
		}
	}
	at, start, err := s.startOf(&o)
	if err != nil {
		return err
	}
	leave, err := s.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	objects, revision, err := s.collectionOf(r.kind).list(r.namespace, at)
	switch {
	case errors.Is(err, store.ErrExpired):
		return o.expired(start)
	case err != nil:
		return err
	}
	if o.continueToken != "" {
		objects = behind(objects, start)
	}
	page := pageOf(objects, &o)
	return s.respondList(w, r, page.meta(objects, revision, &o), o.selected(objects[:page.length]))
}

// meta is the metadata of the list that the page is of.
func (p page) meta(objects []object.Object, revision uint64, o *listOptions) table.ListMeta {
	meta := table.ListMeta{ResourceVersion: strconv.FormatUint(revision, 10)}
	if !p.more {
		return meta
	}
	last := p.last.GetMeta()
	meta.Continue = after(last.Namespace, last.Name, int64(revision))
	if o.everything() {
		remaining := int64(len(objects) - p.length)
		meta.RemainingItemCount = &remaining
	}
	return meta
}

// startOf is as of which revision (0: now) a list is, and behind which object it begins.
func (s *Server) startOf(o *listOptions) (at uint64, start viewKey, err error) {
	current := s.store.Revision()
	if o.continueToken != "" {
		token, err := readToken(o.continueToken)
		switch {
		case err != nil:
			return 0, start, err
		case o.revision != 0:
			return 0, start, badRequest("specifying resource version is not allowed when using continue")
		case token.Revision == latest:
			return 0, token.position(), nil
		case uint64(token.Revision) > current:
			return 0, start, fromTheFuture(uint64(token.Revision), current)
		}
		return uint64(token.Revision), token.position(), nil
	}
	if o.revision > current {
		return 0, start, fromTheFuture(o.revision, current)
	}
	// Without a match, all pages of a list are of one revision.
	if o.match == matchExact || o.match == "" && o.limit > 0 {
		at = o.revision
	}
	return at, start, nil
}

// expired returns the answer to a list at a revision that is not known any more: the rest of a
// paged list can be had at another revision.
func (o *listOptions) expired(start viewKey) error {
	if o.continueToken == "" {
		return expired("The resourceVersion for the provided list is too old.")
	}
	e := expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the " +
		"provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk " +
		"was returned and now may show up in the list.")
	e.continueToken = after(start.namespace, start.name, latest)
	return e
}

// behind are the objects after a position.
func behind(objects []object.Object, start viewKey) []object.Object {
	first := sort.Search(len(objects), func(i int) bool {
		meta := objects[i].GetMeta()
		return compareKeys(viewKey{meta.Namespace, meta.Name}, start) > 0
	})
	return objects[first:]
}

// page is the part of a list that is answered.
type page struct {
	length int // how many objects it looks at, selected or not
	more   bool
	last   object.Object // the last one it looks at
}

// pageOf is the page that a limit leaves of objects: as many as that are selected.
func pageOf(objects []object.Object, o *listOptions) page {
	whole := page{length: len(objects)}
	if o.limit <= 0 {
		return whole
	}
	selected := int64(0)
	p := page{}
	for i, object := range objects {
		if !o.selects(object) {
			continue
		}
		if selected == o.limit {
			p.more = true
			return p
		}
		selected++
		p.length, p.last = i+1, object
	}
	return whole
}

// selected yields the objects that the options select.
func (o *listOptions) selected(objects []object.Object) iter.Seq[object.Object] {
	return func(yield func(object.Object) bool) {
		for _, object := range objects {
			if o.selects(object) && !yield(object) {
				return
			}
		}
	}
}
