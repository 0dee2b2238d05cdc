package diagnose

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// limits adds findings about the limits of a Service, with the packets of all Services that they
// refused.
func (d *diagnosis) limits() {
	var parts []string
	for _, limit := range []struct{ key, of, reason string }{
		{object.AnnotationRateLimit, "%s new connections of each port", "rate-limit"},
		{object.AnnotationClientRateLimit, "%s new connections of a client", "client-rate-limit"},
		{object.AnnotationClientConnections, "%s open connections of a client", "client-connections"},
		{object.AnnotationEndpointConnections, "%s open connections of an endpoint", ""},
	} {
		value, given := d.Service.Metadata.Annotations[limit.key]
		if !given {
			continue
		}
		text := fmt.Sprintf(limit.of, value)
		if d.Traffic != nil && d.Traffic.Counted && d.Traffic.Refusals[limit.reason] > 0 {
			text += fmt.Sprintf(" (%d packets over such limits of all Services)", d.Traffic.Refusals[limit.reason])
		}
		parts = append(parts, text)
	}
	if len(parts) > 0 {
		d.good("limited to %s", strings.Join(parts, ", "))
	}
}
