package health

import "time"

// ProofCheck is how an endpoint is asked after clients' connections to it failed: two connections in a row decide, and
// two that pass end it. An endpoint that refuses is asked again after 100 ms.
var ProofCheck = Check{Kind: TCP, Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 2}

// Dead is what connections of this host to an endpoint came to, after clients' connections to it failed.
type Dead struct {
	// Refuses is set for a reset, else nothing answers.
	Refuses bool
	// Why is the failure, as "connection refused".
	Why string
	// Since is the time of the proof; zero: before this process.
	Since time.Time
}

// DeadOf is the Dead of a verdict that is Down.
func DeadOf(v Verdict) Dead {
	return Dead{Refuses: v.Last.Outcome == Refused && v.Last.Why == "connection refused", Why: v.Last.Why, Since: v.Since}
}
