package store

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The reasons of Problems, beside those of package manifest and the types of
// object.Error.
const (
	ReasonConflict = "Conflict"     // another owner has the object, or another object one of its values
	ReasonFull     = "RangeFull"    // no free value is left
	ReasonPending  = "Pending"      // warning: a load balancer waits for an IP
	ReasonOutside  = "OutsideRange" // no range has the value; a warning when it is kept all the same
	ReasonUnusual  = "Unusual"      // warning: accepted, but strange
	ReasonUnmerged = "Unmerged"     // the document cannot be joined with what the API has added
)

// note is a Problem of an object, without the place, which is looked up when it is
// read: documents move.
type note struct {
	path    string // of the file whose document it is about; "" for the API's
	field   string
	reason  string
	message string
	warning bool
}

// fieldInFile is the field of a document that a field of the object comes from.
func fieldInFile(o object.Object, field string) string {
	svc, ok := o.(*object.Service)
	if ok && len(svc.Spec.ClusterIPs) == 0 && strings.HasPrefix(field, "spec.clusterIPs") {
		return "spec.clusterIP"
	}
	return field
}

// withheldNote is the note about a stored object that is withheld from the dataplane.
func withheldNote(r *record, err error) note {
	return note{path: r.owner.File, reason: ReasonConflict, message: fmt.Sprintf(
		"%v, which is older; nothing is programmed for this one: delete one of the two", err)}
}
