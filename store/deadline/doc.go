// Package deadline is a moment that outlives processes, clocks that are set, and reboots.
//
// Within one boot of the machine the moment is one of CLOCK_BOOTTIME, which cannot be set and which
// counts while the machine sleeps. After a reboot that clock is another one; the rest is then
// computed by the time of day, and is never more than the rest that was stored last: a machine
// that starts in 1970 waits for no more than the whole duration, one that starts in the future for
// nothing.
//
//	d := deadline.After(5*time.Minute, deadline.Now())
//	...
//	d = d.In(deadline.Now()) // after a start; to be stored if it changed
//	left := d.Left(deadline.Now())
package deadline
