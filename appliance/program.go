package appliance

import (
	"debug/elf"
	"fmt"
)

// programID is the build ID that the linker gave this program: a hash of all that went into it
// (cmd/internal/buildid). It is "" when that cannot be read.
func programID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return ""
	}
	id, err := note.Data()
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", id)
}
