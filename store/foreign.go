package store

import (
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// ReasonNoEffect is the reason of a warning about a label or annotation that asks for what does
// not happen here.
const ReasonNoEffect = "NoEffect"

// foreigners counts the objects with each label or annotation that asks for what does not happen
// here. Manifests that were exported from a cluster have some on every object, and one line about
// all of them says as much as ten thousand.
type foreigners map[annotation.Foreign]*foreigner

type foreigner struct {
	count   int
	example object.Ref // the zero Ref when that one has gone
}

// move counts an object that becomes another one; either may be nil. What the appliance has made
// itself means what it says.
func (f foreigners) move(ref object.Ref, before, after *record) {
	if before != nil && before.owner.Controller == "" {
		for _, each := range annotation.Unserved(before.object) {
			c := f[each]
			if c == nil {
				continue
			}
			if c.count--; c.count == 0 {
				delete(f, each)
			} else if c.example == ref {
				c.example = object.Ref{}
			}
		}
	}
	if after != nil && after.owner.Controller == "" {
		for _, each := range annotation.Unserved(after.object) {
			c := f[each]
			if c == nil {
				c = &foreigner{}
				f[each] = c
			}
			if c.count++; c.example == (object.Ref{}) {
				c.example = ref
			}
		}
	}
}
