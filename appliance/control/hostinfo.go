package control

import (
	"os"
	"runtime"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// hostInfo returns Node.status.nodeInfo; what cannot be read is left empty. The boot ID is left out,
// as it would make every start of the box a change, and so are the ids of the machine, which are
// confidential (machine-id(5)).
func hostInfo() object.NodeSystemInfo {
	return object.NodeSystemInfo{
		KernelVersion:   valueIn("/proc/sys/kernel/osrelease", ""),
		OSImage:         valueIn("/etc/os-release", "PRETTY_NAME="),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
}

// valueIn returns the rest of the first line with a prefix, without quotes (os-release(5)); "": there is none.
func valueIn(path, prefix string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, prefix); found {
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}
