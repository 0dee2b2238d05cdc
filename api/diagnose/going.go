package diagnose

import (
	"strings"
	"time"
)

// going adds a finding about a Service that is being deleted and still serves because of its
// finalizers.
func (d *diagnosis) going() {
	meta := &d.Service.Metadata
	if meta.DeletionTimestamp == nil {
		return
	}
	d.add(Doubt, "who put them there has to take them away; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit svc/"+
		d.Name+" -n "+d.Namespace+"`",
		"it is being deleted, since %s, and serves until its finalizers are gone: %s", meta.DeletionTimestamp.UTC().Format(time.RFC3339), strings.Join(meta.Finalizers, ", "))
}
