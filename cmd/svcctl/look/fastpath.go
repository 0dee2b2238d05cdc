package look

import (
	"slices"

	"svcctl.io/svcctl/api/wire"
)

// fastColumn adds the column FAST to rows of connections if one of them uses the fast path. rows begins with the header row. If wide is set, it
// replaces the last column (the time until expiry) of these connections by "-": the kernel does not report it for them.
func fastColumn(rows [][]string, wide bool, connections []wire.Connection) {
	if !slices.ContainsFunc(connections, func(c wire.Connection) bool { return c.Fast }) {
		return
	}
	rows[0] = append(rows[0], "FAST")
	for i := range connections {
		if wide && connections[i].Fast {
			rows[i+1][len(rows[i+1])-1] = "-"
		}
		rows[i+1] = append(rows[i+1], map[bool]string{true: "yes", false: "-"}[connections[i].Fast])
	}
}
