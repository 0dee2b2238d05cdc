package checkup

import (
	"os"

	"svcctl.io/svcctl/api/wire"
)

// Packaged reports whether systemd runs svcctl on this box: it started this process, or has the unit of the package.
func Packaged() wire.Packaged {
	if os.Getenv("INVOCATION_ID") != "" { // systemd.exec(5)
		return true
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	for _, dir := range []string{"/etc", "/usr/local/lib", "/usr/lib", "/lib"} {
		if _, err := os.Stat(dir + "/systemd/system/svcctl.service"); err == nil {
			return true
		}
	}
	return false
}
