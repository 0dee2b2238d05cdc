package deadline

import (
	"testing"
	"time"
)

func TestLeft(t *testing.T) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	began := Reading{Wall: noon, Boot: "one", Up: time.Hour}
	d := After(5*time.Minute, began)
	for _, test := range []struct {
		name string
		now  Reading
		want time.Duration
	}{
		{"at once", began, 5 * time.Minute},
		{"later", Reading{noon.Add(time.Minute), "one", time.Hour + time.Minute}, 4 * time.Minute},
		{"over", Reading{noon.Add(time.Hour), "one", 2 * time.Hour}, 0},
		{"the clock was set back", Reading{noon.Add(-24 * time.Hour), "one", time.Hour + time.Minute}, 4 * time.Minute},
		{"the clock was set forward", Reading{noon.Add(24 * time.Hour), "one", time.Hour + time.Minute}, 4 * time.Minute},
		{"after a reboot", Reading{noon.Add(2 * time.Minute), "two", time.Second}, 3 * time.Minute},
		{"after a reboot, too late", Reading{noon.Add(time.Hour), "two", time.Second}, 0},
		{"after a reboot, in 1970", Reading{time.Unix(0, 0), "two", time.Second}, 5 * time.Minute},
		{"nothing is known of boots", Reading{Wall: noon.Add(time.Minute)}, 4 * time.Minute},
	} {
		if got := d.Left(test.now); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// A boot that has taken the moment over counts by its own clock, whatever is done to the time of day.
func TestTakenOverByAnotherBoot(t *testing.T) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	d := After(5*time.Minute, Reading{noon, "one", time.Hour})
	if same := d.In(Reading{noon, "one", 2 * time.Hour}); same != d {
		t.Errorf("in the same boot: %+v", same)
	}
	d = d.In(Reading{time.Unix(10, 0), "two", 10 * time.Second})
	for _, now := range []Reading{{noon.Add(time.Hour), "two", 70 * time.Second}, {time.Unix(70, 0), "two", 70 * time.Second}} {
		if got := d.Left(now); got != 4*time.Minute {
			t.Errorf("at %v: %v left", now.Wall, got)
		}
	}
	// The next reboot cannot make it longer.
	d = d.In(Reading{noon.Add(3 * time.Minute), "three", 0})
	if got := d.Left(Reading{noon, "three", 30 * time.Second}); got != 90*time.Second {
		t.Errorf("%v left", got)
	}
}

func TestNow(t *testing.T) {
	a, b := Now(), Now()
	if a.Boot == "" || a.Boot != b.Boot || b.Up < a.Up || a.Up == 0 {
		t.Errorf("%+v, then %+v", a, b)
	}
}
