package appliance

import (
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// What may be let go of the program are the pages of its own file that nobody can write.
func TestProgramPages(t *testing.T) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	all := programPages(maps)
	code, size := reflect.ValueOf(TestProgramPages).Pointer(), uintptr(0)
	found := false
	for _, p := range all {
		size += p.to - p.from
		found = found || p.from <= code && code < p.to
	}
	if !found || size < 1<<20 {
		t.Errorf("%d bytes, with this function: %t", size, found)
	}
	(&memory{}).giveBack()
	runtime.GC() // everything goes on
}

// Writable pages, those of other files, and those of none are left alone.
func TestProgramPagesOfOthers(t *testing.T) {
	code := reflect.ValueOf(programPages).Pointer()
	text := func(lines ...string) string { return strings.Join(lines, "\n") + "\n" }
	own := hex(code&^0xfff) + "-" + hex(code&^0xfff+0x1000) + " r-xp 00001000 fe:00 7 /opt/my programs/svcctl"
	for name, test := range map[string]struct {
		maps string
		want int
	}{
		"own":            {text(own), 1},
		"with constants": {text("1000-2000 r--p 00000000 fe:00 7 /opt/my programs/svcctl", own), 2},
		"with variables": {text(own, "1000-2000 rw-p 00003000 fe:00 7 /opt/my programs/svcctl"), 1},
		"of other files": {text(own, "1000-2000 r-xp 00003000 fe:00 8 /lib/libc.so", "3000-4000 r--p 00003000 fe:00 9 /opt/my programs/svcctl"), 1},
		"of no file":     {text(own, "1000-2000 r--p 00000000 00:00 0", "3000-4000 rw-p 00000000 00:00 0 [heap]"), 1},
		"not found":      {text("1000-2000 r-xp 00000000 fe:00 7 /opt/svcctl", "garbage"), 0},
	} {
		if got := programPages(strings.NewReader(test.maps)); len(got) != test.want {
			t.Errorf("%s: %x", name, got)
		}
	}
}

func hex(n uintptr) string { return strconv.FormatUint(uint64(n), 16) }
