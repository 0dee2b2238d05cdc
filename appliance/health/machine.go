package health

import "time"

// Waits before the next probe while the state of a Target may change, in place of the interval.
const (
	// afterRefusal follows a refusal. After silence, which took the timeout, the next probe begins at once.
	afterRefusal = 100 * time.Millisecond
	// afterFirst follows the first passes of a Target that is down, and a probe that was not made.
	afterFirst = time.Second
	// UDPSpacing is the least time between two probes of a UDP target: Linux answers a closed port
	// once a second for each asking address (net.ipv4.icmp_ratelimit).
	UDPSpacing = time.Second
)

// A Target that falls often has to pass for longer before it is up again.
const (
	flapFalls  = 3                // so many falls
	flapWindow = 10 * time.Minute // within this
	flapHold   = 30 * time.Second // for this, times the falls
	flapMost   = 5 * time.Minute  // and no longer
)

// Machine follows the state of one Target through the results of its probes. It reads no clock:
// times are monotonic durations since a moment that its caller chooses and keeps. Not safe for
// concurrent use.
type Machine struct {
	check Check
	state State
	// failures and passes came in a row at last; one of them is 0.
	failures, passes int
	last             Result
	// since is the begin of the state, -1 if before this process; passing the begin of the row of
	// passes.
	since, passing time.Duration
	// falls are the latest falls from up to down, within flapWindow of the last of them.
	falls []time.Duration
	// assumed is set until the first pass of a Target that began as up.
	assumed bool
	// hold is the time for which the Target has to pass before it is up again.
	hold time.Duration
	// past is the state from before this process. It holds until the Target is in another state.
	past Past
}

// Past is the state of a Target before this process; the zero Past: unknown.
type Past struct {
	State State
	Since time.Time
}

// NewMachine starts at a state: New, or what the Target counts as.
func NewMachine(c Check, start State, past Past, now time.Duration) Machine {
	m := Machine{check: c, state: start, since: -1, assumed: start == Up, past: past}
	if start == New {
		m.since = now
	}
	return m
}

// Observe takes the result of a probe that ended now. It returns how long to wait before the next
// one, and whether the state changed.
func (m *Machine) Observe(now time.Duration, r Result) (next time.Duration, changed bool) {
	if r.Outcome == Void {
		// The last result stays, so that "why" still speaks of the endpoint.
		return m.within(afterFirst), false
	}
	m.last = r
	if r.Outcome == Pass {
		return m.pass(now)
	}
	return m.fail(now, r.Outcome)
}

func (m *Machine) pass(now time.Duration) (next time.Duration, changed bool) {
	if m.passes == 0 {
		m.passing = now
	}
	m.passes, m.failures, m.assumed = m.passes+1, 0, false
	switch {
	case m.state == Up:
		if m.past.State == Down {
			m.past = Past{}
		}
		return m.check.Interval, false
	case m.state == Down && m.passes < m.check.Rise:
		return m.within(afterFirst), false
	case m.state == Down && now-m.passing < m.hold:
		return min(m.check.Interval, m.hold-(now-m.passing)), false
	}
	m.enter(Up, now)
	return m.check.Interval, true
}

func (m *Machine) fail(now time.Duration, o Outcome) (next time.Duration, changed bool) {
	m.failures, m.passes = m.failures+1, 0
	if m.state == Down {
		return m.check.Interval, false
	}
	if m.failures < m.check.Fall {
		switch {
		case m.check.Kind == UDP:
			return m.within(UDPSpacing), false
		case o == Silent:
			return 0, false
		}
		return m.within(afterRefusal), false
	}
	if m.state == Up {
		m.fell(now)
	}
	m.enter(Down, now)
	return m.check.Interval, true
}

// fell counts a fall, and sets for how long the Target has to pass after it.
func (m *Machine) fell(now time.Duration) {
	kept := m.falls[:0]
	for _, at := range append(m.falls, now) {
		if now-at <= flapWindow {
			kept = append(kept, at)
		}
	}
	// Of more falls than these nothing else follows.
	m.falls = kept[max(0, len(kept)-int(flapMost/flapHold)):]
	m.hold = 0
	if len(m.falls) >= flapFalls {
		m.hold = min(time.Duration(len(m.falls))*flapHold, flapMost)
	}
}

// enter changes the state. A Target that was down before this process, and is found to be, is down since then.
func (m *Machine) enter(s State, now time.Duration) {
	if m.state, m.since = s, now; s != m.past.State {
		m.past = Past{}
	} else if s == Down {
		m.since = -1
	}
}

// within is d, or the interval if that is shorter.
func (m *Machine) within(d time.Duration) time.Duration { return min(d, m.check.Interval) }

// State is the state now.
func (m *Machine) State() State { return m.state }

// Assumed reports that the Target began as up, as it was before this process, and did not pass
// since: nothing is known of it but its failures, if any.
func (m *Machine) Assumed() bool { return m.assumed }

// InTransition reports that the last result spoke against the state. The next probe then leaves
// from an ephemeral port: a reset that got lost may have left the fixed one half open at the
// server, which would fail again for no other reason.
func (m *Machine) InTransition() bool {
	return m.state == Up && m.failures > 0 || m.state == Down && m.passes > 0 || m.state == New && m.failures > 0
}

// Verdict is the state with why. epoch is the moment that the times of Observe count from.
func (m *Machine) Verdict(epoch time.Time) Verdict {
	v := Verdict{State: m.state, Assumed: m.assumed, Last: m.last, Failures: m.failures, Passes: m.passes}
	if m.since >= 0 {
		v.Since = epoch.Add(m.since)
	} else if m.state == m.past.State {
		v.Since = m.past.Since
	}
	if m.state == Down && m.passes > 0 && m.hold > 0 {
		v.Held = m.hold
	}
	return v
}
