package index

import (
	"iter"
	"maps"

	"svcctl.io/svcctl/store/object"
)

// selecting are Services by their "namespace/name": nearly always one, which needs no map.
type selecting struct {
	key  string
	one  *object.Service
	more map[string]*object.Service // not nil: all of them are here
}

// with is the same with a Service.
func (s selecting) with(key string, svc *object.Service) selecting {
	switch {
	case s.more != nil:
		s.more[key] = svc
	case s.one == nil || s.key == key:
		s.key, s.one = key, svc
	default:
		s = selecting{more: map[string]*object.Service{s.key: s.one, key: svc}}
	}
	return s
}

// without is the same without a Service.
func (s selecting) without(key string) selecting {
	if s.more != nil {
		delete(s.more, key)
	} else if s.key == key {
		s = selecting{}
	}
	return s
}

func (s selecting) len() int {
	if s.one != nil {
		return 1
	}
	return len(s.more)
}

func (s selecting) all() iter.Seq2[string, *object.Service] {
	if s.one == nil {
		return maps.All(s.more)
	}
	return func(yield func(string, *object.Service) bool) { yield(s.key, s.one) }
}
