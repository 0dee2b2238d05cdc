package resolve

import (
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Rules judge an object by itself, as Service does with endpoints and the box: whatever can be said then is said to the
// client that writes the object.
type Rules struct {
	// ConnectionLog is Facts.ConnectionLog.
	ConnectionLog string
	// SourceSets are the names of the source sets of the box.
	SourceSets []string
}

// Remarks are about the annotations of an object, and what they ask for.
func (rules *Rules) Remarks(o object.Object) []annotation.Remark {
	meta := o.GetMeta()
	if len(meta.Annotations)+len(meta.Labels) == 0 {
		return nil // mostly
	}
	list := annotation.Remarks(o)
	svc, is := o.(*object.Service)
	if !is || len(meta.Annotations) == 0 {
		return list
	}
	facts := Facts{ConnectionLog: rules.ConnectionLog, SourceSet: rules.sourceSet}
	r := &resolver{Input: Input{Service: svc}, facts: &facts, ref: object.RefOf(svc), vips: addresses{}}
	r.read()
	for _, p := range r.out.Problems {
		list = append(list, annotation.Remark{Field: p.Field, Text: p.Message, Refused: r.wrong[p.Field] && annotation.IsOurs(p.Field), Safe: !p.Warning})
	}
	return list
}

// sourceSet is Facts.SourceSet with sets of which only the names are known.
func (rules *Rules) sourceSet(name string) (*nft.SourceSet, bool) {
	for _, known := range rules.SourceSets {
		if name == known {
			return &nft.SourceSet{}, true
		}
	}
	return nil, false
}
