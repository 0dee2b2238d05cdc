package diagnose

import "fmt"

// fastPath reports for each port whether its connections take the fast path, or why not; nothing on a box without one.
func (d *diagnosis) fastPath() {
	for _, port := range d.ports() {
		for _, s := range d.states(port) {
			name := fmt.Sprintf("port %d/%s (%s)", port.Port, port.Protocol, s.Family)
			switch {
			case s.Fast:
				d.good("%s is on the fast path: from about the 50th packet on, connections bypass all rules and routing", name)
			case s.Slow != "":
				d.good("%s is not on the fast path: %s", name, s.Slow)
			}
		}
	}
}
