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
	Boot string        // identifier of the boot, from /proc/sys/kernel/random/boot_id; "" if it cannot be read
	Up   time.Duration // time since boot (CLOCK_BOOTTIME)
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

// Deadline is a point in time that survives restarts, reboots and changes of the clock. It consists of a time of day and, for the boot in which it
// was made, a time since boot.
type Deadline struct {
	Wall time.Time     `json:"wall"`           // the deadline as a time of day
	Boot string        `json:"boot,omitempty"` // identifier of the boot that Up refers to
	Up   time.Duration `json:"up,omitempty"`   // the deadline as a time since boot (CLOCK_BOOTTIME)
	// the upper bound of Left: the time left when the deadline was made, or when In converted it to a new boot
	Most time.Duration `json:"most"`
}

// After returns the Deadline that passes when d has elapsed since now.
func After(d time.Duration, now Reading) Deadline {
	return Deadline{Wall: now.Wall.Add(d).UTC().Round(0), Boot: now.Boot, Up: now.Up + d, Most: d}
}

// Left returns the time until the deadline, 0 once it has passed. It is never more than the time that was left when the Deadline was made.
func (d Deadline) Left(now Reading) time.Duration {
	left := d.Wall.Sub(now.Wall)
	if d.Boot != "" && d.Boot == now.Boot {
		left = d.Up - now.Up
	}
	return max(0, min(left, d.Most))
}

// In returns the same deadline with its time since boot relative to the boot in which now was read. It returns d unchanged if d was made in that
// boot, or if the boot is unknown.
func (d Deadline) In(now Reading) Deadline {
	if now.Boot == "" || d.Boot == now.Boot {
		return d
	}
	left := d.Left(now)
	return Deadline{Wall: d.Wall, Boot: now.Boot, Up: now.Up + left, Most: left}
}
