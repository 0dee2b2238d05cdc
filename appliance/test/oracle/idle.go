package oracle

import (
	"strconv"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Annotations about connections without traffic (behaviors 211 to 215); the first one wins.
const (
	annotationIdle    = "svcctl.io/idle-timeout"
	annotationELBIdle = "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout"
)

// idleOf gives the idle timeout of connections to a frontend, 0 for none.
func idleOf(f frontend) time.Duration {
	annotations := f.service.Metadata.Annotations
	if f.protocol == SCTP || f.isRange() {
		return 0
	}
	if text, given := annotations[annotationIdle]; given {
		d, _ := time.ParseDuration(text) // a value that is not understood has no effect
		return d
	}
	if f.service.Spec.Type != object.TypeLoadBalancer {
		return 0
	}
	seconds, err := strconv.Atoi(annotations[annotationELBIdle])
	if err != nil || seconds < 1 || seconds > 4000 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func (g *generator) idle(service *object.Service) {
	if oneIn(g.Rand, 4) {
		service.Metadata.Annotations[annotationIdle] = pick(g.Rand, []string{"1m", "90s", "1h", "soon"})
	}
	if oneIn(g.Rand, 4) {
		service.Metadata.Annotations[annotationELBIdle] = pick(g.Rand, []string{"60", "4000", "4001", "0"})
	}
}
