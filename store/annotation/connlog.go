package annotation

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The annotations about a log of connections.
const (
	ConnectionLog     = domain + "connection-log"
	awsLog            = aws + "access-log-enabled"
	awsLogInterval    = aws + "access-log-emit-interval"
	awsLogBucket      = aws + "access-log-s3-bucket-name"
	awsLogBucketUnder = aws + "access-log-s3-bucket-prefix"
)

// told reports that a warning of its own says it.
func told(string) bool { return true }

// Logging holds what a Service asks for about a log of its connections.
type Logging struct {
	// Key is the annotation that asks for it; "": none does.
	Key string
	// Buckets are annotations that name a place in a cloud, where nothing is written.
	Buckets []string
	Bad     []Bad
}

// LoggingOf reads the annotations of a Service about a log of its connections. Those of AWS hold for
// load balancers; ours wins.
func LoggingOf(svc *object.Service) (l Logging) {
	a := svc.Metadata.Annotations
	if len(a) == 0 {
		return l
	}
	for _, key := range []string{awsLog, ConnectionLog} {
		if !has(a, key) || key == awsLog && svc.Spec.Type != object.TypeLoadBalancer {
			continue
		}
		switch value := strings.ToLower(strings.TrimSpace(a[key])); {
		case value == "false":
			l.Key = ""
		case value != "true":
			l.Bad = append(l.Bad, Bad{Key: key, Text: fmt.Sprintf("%q is neither \"true\" nor \"false\", so no connection is logged for it", a[key])})
		default:
			l.Key = key
		}
	}
	if has(a, awsLogInterval) && !anyOf("", "5", "60")(a[awsLogInterval]) {
		l.Bad = append(l.Bad, Bad{Key: awsLogInterval, Text: fmt.Sprintf("%q is neither \"5\" nor \"60\" minutes; it has no effect either way, a line is written when a connection is over", a[awsLogInterval])})
	}
	for _, key := range []string{awsLogBucket, awsLogBucketUnder} {
		if strings.TrimSpace(a[key]) != "" {
			l.Buckets = append(l.Buckets, key)
		}
	}
	return l
}
