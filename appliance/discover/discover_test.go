package discover

import (
	"testing"
	"time"
)

// An answer is written at once, with others when there was a write just before, and never waits for what waits itself: a slice that the
// API refused is written again after half a minute.
func TestWritesDoNotWait(t *testing.T) {
	now := time.Now()
	d := &discovery{dirty: map[string]bool{}}
	d.touch(now, "default/web")
	if !d.flushAt.Equal(now) {
		t.Errorf("the first answer is written after %v", d.flushAt.Sub(now))
	}
	d.flushAt, d.restAt = time.Time{}, now.Add(joined) // it was written
	d.touch(now, "default/db")
	if got := d.flushAt.Sub(now); got != joined {
		t.Errorf("the second answer is written after %v", got)
	}
	d.flushAt = time.Time{}
	d.flushBy(now.Add(refusedRetry))
	d.touch(now, "default/web")
	if got := d.flushAt.Sub(now); got != joined {
		t.Errorf("beside a slice that was refused, an answer is written after %v", got)
	}
	d.restAt = now.Add(time.Minute) // no write succeeds
	d.flushAt = d.restAt
	d.touch(now, "default/db")
	if got := d.flushAt.Sub(now); got != time.Minute {
		t.Errorf("while the API is away, it is asked after %v", got)
	}
}
