package resolve

import "svcctl.io/svcctl/store/annotation"

// readLogging reads what the Service asks for about a log of its connections.
func (r *resolver) readLogging() {
	asks := annotation.LoggingOf(r.Service)
	r.report(asks.Bad...)
	where := "nowhere, as the box has no --connection-log"
	if r.facts.ConnectionLog != "" {
		where = r.facts.ConnectionLog + " of the box"
	}
	for _, key := range asks.Buckets {
		r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect: nothing is written to a cloud; the log of connections is written to %s", where)
	}
	switch {
	case asks.Key == "":
	case r.facts.ConnectionLog == "":
		r.warn(r.ref, annotation.Field(asks.Key), reasonNoEffect, "no connection is logged: the box has no --connection-log; give it one, as /var/log/svcctl/connections.log")
	default:
		r.out.Logged = true
	}
}
