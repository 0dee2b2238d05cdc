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
		KernelVersion:   firstLine("/proc/sys/kernel/osrelease"),
		OSImage:         osImage("/etc/os-release"),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

// osImage is the name of the distribution (os-release(5)).
func osImage(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "PRETTY_NAME="); found {
			return strings.Trim(strings.TrimSpace(name), `"'`)
		}
	}
	return ""
}
