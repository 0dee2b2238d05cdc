package deadline

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Reading is the state of a machine's clocks at one moment.
type Reading struct {
	Wall time.Time     // the time of day
	Boot string        // names the boot: /proc/sys/kernel/random/boot_id; "" when it cannot be read
	Up   time.Duration // CLOCK_BOOTTIME
}

// bootID is a file of the kernel with a random identifier of the current boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// Now reads the clocks of this machine.
func Now() Reading {
	r := Reading{Wall: time.Now()}
	var up unix.Timespec
	if id, err := os.ReadFile(bootID); err == nil && unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
		r.Boot, r.Up = strings.TrimSpace(string(id)), time.Duration(up.Nano())
	}
	return r
}

// Deadline is a moment that survives restarts, reboots and changes of the clock: a time of day, and while the boot lasts, a time since
// boot.
type Deadline struct {
	Wall time.Time     `json:"wall"`           // the moment by the time of day
	Boot string        `json:"boot,omitempty"` // the boot that Up is about
	Up   time.Duration `json:"up,omitempty"`   // the moment by CLOCK_BOOTTIME
	Most time.Duration `json:"most"`           // what was left when the deadline was made, or taken over by this boot
}

// After returns the Deadline a duration d after now.
func After(d time.Duration, now Reading) Deadline {
	return Deadline{Wall: now.Wall.Add(d).UTC().Round(0), Boot: now.Boot, Up: now.Up + d, Most: d}
}

// Left returns the time until the deadline, never more than when it was made; 0 once it has passed.
func (d Deadline) Left(now Reading) time.Duration {
	left := d.Wall.Sub(now.Wall)
	if d.Boot != "" && d.Boot == now.Boot {
		left = d.Up - now.Up
	}
	return max(0, min(left, d.Most))
}

// In returns the Deadline as measured by the boot that now was read in. Without a reboot since it was made, it is unchanged.
func (d Deadline) In(now Reading) Deadline {
	if now.Boot == "" || d.Boot == now.Boot {
		return d
	}
	left := d.Left(now)
	return Deadline{Wall: d.Wall, Boot: now.Boot, Up: now.Up + left, Most: left}
}
